"""Files and folders that are whole or not there, whatever happens while they are made."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
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


def home() -> Path:
    """Where corpora and token caches are: $ATLAS_HOME, or `atlas-memory` in the user's cache."""
    if given := os.environ.get("ATLAS_HOME"):
        return Path(given).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "atlas-memory"


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """`folder`, made by `make` if it is not there; of many processes one makes it, the rest wait.

    It is made under another name, so it is whole or not there.
    """
    if not folder.is_dir():
        from filelock import FileLock

        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{folder.name}.lock")):
            if not folder.is_dir():
                _make(folder, make)
    return folder


def _make(folder: Path, make: Callable[[Path], None]) -> None:
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    draft.chmod(0o755)
    try:
        make(draft)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
