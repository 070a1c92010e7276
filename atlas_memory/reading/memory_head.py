"""The first bytes of a memory file: whether it can be one at all, and its header in order.

Nothing heavy is imported, so that a wrong file is told of at once.
"""

import json
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

LENGTH = 8  # bytes that say how long the header of a safetensors file is; then it begins, as JSON


def require_memory_file(path: str | Path) -> None:
    """Refuse a file that cannot be read, and one that is something else, such as a text."""
    try:
        with Path(path).open("rb") as file:
            head = file.read(LENGTH + 1)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    if len(head) <= LENGTH:
        raise ValueError(f"{path} is no whole memory file: it has {len(head)} bytes")
    if is_something_else(head):
        made = f"atlas memorize RUN {path} --out {Path(path).stem}.memory"
        raise ValueError(f"{path} is no memory file; of a text `{made}` makes one")


def is_something_else(data: bytes) -> bool:
    """Whether these bytes begin no memory file, whole or not."""
    return not data.startswith(b"{", LENGTH) and len(data) > LENGTH


def in_order(data: bytes) -> bytes:
    file = BytesIO(data)
    put_in_order(file)
    return file.getvalue()


def put_in_order(file: BinaryIO) -> None:
    """Sort the entries of the header, in place: safetensors writes them in a random order."""
    length = int.from_bytes(file.read(LENGTH), "little")
    plain = json.loads(file.read(length))
    plain["__metadata__"] = dict(sorted(plain["__metadata__"].items()))
    text = json.dumps(plain, separators=(",", ":"), ensure_ascii=False).encode()
    assert len(text) <= length, "the header of safetensors is compact JSON"
    file.seek(LENGTH)
    file.write(text.ljust(length))
    file.flush()
