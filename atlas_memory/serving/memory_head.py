"""Whether a file can be a memory at all, by its first bytes, without importing anything heavy."""

from __future__ import annotations

from pathlib import Path

LENGTH = 8  # bytes that say how long the header of a safetensors file is; then it begins, as JSON


def require_memory_file(path: str | Path) -> None:
    """Refuse a file that cannot be read, and one that is something else, such as a text."""
    try:
        with Path(path).open("rb") as file:
            head = file.read(LENGTH + 1)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    if head[LENGTH:] != b"{":
        made = f"atlas memorize RUN {path} --out {Path(path).stem}.memory"
        raise ValueError(f"{path} is no memory file; of a text `{made}` makes one")
