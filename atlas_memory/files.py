"""Files that are whole or not there, whatever happens while they are written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def draft_of(path: Path) -> Path:
    """The name under which a file is written until it is whole."""
    return path.with_name(f".{path.name}.{os.getpid()}.draft")


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A draft to write to; it is flushed and takes the place of `path` if nothing went wrong."""
    draft = draft_of(path)
    try:
        yield draft
        flush(draft)
        draft.replace(path)
        flush(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    with whole(path) as draft:
        draft.write_text(text)


def flush(path: Path) -> None:
    """On the disk for good; a name that was given or taken is when its folder is."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
