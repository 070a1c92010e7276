"""Checkpoints that are whole or not there: written under another name, listed, renamed.

Every checkpoint holds a list of its files with their sizes and checksums; one that does not agree
with its list is damaged, and the one before it is used.
"""

import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

from atlas_memory.files import flush

PREFIX = "checkpoint-"
LISTING = "files.json"
BLOCK = 1 << 22


class SaveError(Exception):
    """A checkpoint could not be written; the older ones are as they were."""


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix(PREFIX))


def checkpoints(folder: Path) -> list[Path]:
    """Oldest first; a checkpoint that was still being written has another name."""
    if not folder.is_dir():
        return []
    found = [p for p in folder.iterdir() if p.name.removeprefix(PREFIX).isdigit() and p.is_dir()]
    return sorted((p for p in found if p.name.startswith(PREFIX)), key=step_of)


def publish(draft: Path, final: Path) -> None:
    """List and flush the files of a draft, then give it its name."""
    files = sorted(p for p in draft.rglob("*") if p.is_file())
    listing = {str(p.relative_to(draft)): [p.stat().st_size, _checksum(p)] for p in files}
    (draft / LISTING).write_text(json.dumps(listing))
    for path in [*files, draft / LISTING]:
        flush(path)
    if final.exists():
        shutil.rmtree(final)
    draft.rename(final)
    flush(final.parent)


def damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        listing = json.loads((checkpoint / LISTING).read_text())
    except (OSError, ValueError):
        return f"it has no readable {LISTING}"
    for name, (size, checksum) in listing.items():
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes instead of {size}"
        if _checksum(path) != checksum:
            return f"{name} has changed"
    return None


def newest_whole(folder: Path, say: Callable[[str], None]) -> Path | None:
    """The newest checkpoint that is not damaged; damaged ones are told of."""
    for checkpoint in reversed(checkpoints(folder)):
        wrong = damage(checkpoint)
        if wrong is None:
            return checkpoint
        say(f"{checkpoint} is damaged ({wrong}); trying the one before it")
    return None


def forget(folder: Path, keep: int, best: int | None) -> None:
    """Remove all but the newest `keep` checkpoints and the best one."""
    for checkpoint in checkpoints(folder)[:-keep]:
        if step_of(checkpoint) != best:
            shutil.rmtree(checkpoint)


def sweep(folder: Path) -> None:
    """Remove drafts that a killed process left behind."""
    for draft in folder.glob(f".{PREFIX}*"):
        shutil.rmtree(draft, ignore_errors=True)


def _checksum(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            value = zlib.crc32(block, value)
    return value
