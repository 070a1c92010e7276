"""Where downloaded corpora and token caches are kept."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def home() -> Path:
    """$ATLAS_HOME, or `atlas-memory` in the user's cache folder."""
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
