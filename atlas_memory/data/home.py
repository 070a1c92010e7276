"""Where downloaded corpora and token caches are kept."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def home() -> Path:
    """$ATLAS_HOME, or `atlas-memory` in the user's cache folder."""
    if given := os.environ.get("ATLAS_HOME"):
        return Path(given).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "atlas-memory"


@contextmanager
def written_whole(folder: Path) -> Iterator[Path]:
    """A temporary folder that becomes `folder` when everything in it has been written.

    Whoever comes second keeps the folder of the first: both wrote the same thing.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    draft.chmod(0o755)
    try:
        yield draft
        try:
            draft.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
