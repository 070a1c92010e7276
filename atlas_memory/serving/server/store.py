"""Store: a folder with one file for each memory, which outlives the server.

A file is written under another name, flushed and renamed, so a memory is there whole or not at all,
whenever the process is killed. What such a process leaves of its drafts is removed at the start.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from atlas_memory.files import flush
from atlas_memory.reading.fingerprint import Fingerprint, fingerprint
from atlas_memory.reading.memory_file import inspect, parsed, restore, save_file
from atlas_memory.serving.server.kept import Entry, Kept

if TYPE_CHECKING:
    from atlas_memory.model import AtlasForCausalLM

log = logging.getLogger("atlas.serve")
ID = re.compile(r"mem_[A-Za-z0-9_-]{24}")
# Ours, and those under which safetensors writes before it gives a file the name it was asked for.
DRAFTS = (".mem_*.memory.*.draft", ".tmp??????")


class Store:
    """The folder is one server's alone, for as long as that server runs."""

    def __init__(self, folder: Path, model: AtlasForCausalLM) -> None:
        self.folder, self.model = folder, model
        self._own = fingerprint(model)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder, os.O_RDONLY)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(f"another server keeps its memories in {folder}") from error
        except OSError as error:
            raise ValueError(f"cannot keep memories in {folder}: {error.strerror}") from error
        for draft in (path for pattern in DRAFTS for path in folder.glob(pattern)):
            draft.unlink()

    def close(self) -> None:
        os.close(self._lock)

    def entries(self) -> list[Entry]:
        """All memories by their headers, oldest first; a damaged file is named and left alone."""
        found = []
        for path in self.folder.glob("*.memory"):
            try:
                found.append(self._entry(path))
            except (KeyError, TypeError, ValueError) as error:
                log.warning("%s is left out: %s", path, error)
        return sorted(found, key=lambda entry: (entry.created, entry.id))

    def _entry(self, path: Path) -> Entry:
        from safetensors import SafetensorError, safe_open

        if not ID.fullmatch(path.stem):
            raise ValueError("its name is not the id of a memory")
        try:
            with safe_open(path, framework="pt") as file:
                header = parsed(file.metadata() or {}, str(path))
                shown = file.get_slice("note.tokens").get_shape()[0]
        except SafetensorError as error:
            raise ValueError(f"it is no whole memory file: {error}") from error
        Fingerprint(**header["model"]).require(self._own, str(path))
        return Entry.of_header(path.stem, header, shown)

    def write(self, kept: Kept) -> None:
        save_file(kept.file(), self._path(kept.id))

    def read(self, name: str) -> Kept:
        path = self._path(name)
        return Kept.of_file(restore(inspect(path), self.model, self._own, str(path)), name)

    def delete(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)
        flush(self.folder)

    def _path(self, name: str) -> Path:
        assert ID.fullmatch(name), "an id is never made of what a client says"
        return self.folder / f"{name}.memory"
