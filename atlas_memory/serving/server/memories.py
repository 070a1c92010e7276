"""The memories that a server keeps: values under ids that cannot be guessed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from atlas_memory.reading.recent import Recent
from atlas_memory.serving.server.errors import ApiError
from atlas_memory.serving.server.kept import Entry, Kept
from atlas_memory.serving.server.limits import Limits
from atlas_memory.serving.server.store import Store


class Memories:
    """In RAM, or in a store's files, of which the latest used ones are in RAM too."""

    def __init__(self, limits: Limits, store: Store | None = None) -> None:
        self.most, self.max_bytes, self.store = limits.memories, limits.memory_bytes, store
        self._entries: dict[str, Entry] = {}
        self._unstored: dict[str, Kept] = {}
        self._loaded: Recent[str, Kept] = Recent(limits.resident_bytes)
        self._loading = asyncio.Lock()
        self._coming = 0
        for entry in store.entries() if store else []:
            self._entries[entry.id] = entry

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    @property
    def num_bytes(self) -> int:
        """Bytes of all of them, wherever they lie."""
        return sum(entry.num_bytes for entry in self._entries.values())

    @property
    def resident_bytes(self) -> int:
        return self._loaded.num_bytes + sum(kept.num_bytes for kept in self._unstored.values())

    def find(self, name: str) -> Entry:
        entry = self._entries.get(name)
        if entry is None:
            raise ApiError(404, "there is no memory with this id", "memory")
        return entry

    async def load(self, name: str) -> Kept:
        """The memory itself; many who ask for it at once make one reading of its file."""
        self.find(name)
        if (kept := self._in_ram(name)) is not None:
            return kept
        async with self._loading:
            if (kept := self._in_ram(name)) is not None:
                return kept
            self.find(name)
            assert self.store is not None
            try:
                kept = await asyncio.to_thread(self.store.read, name)
            except (KeyError, TypeError, ValueError) as error:
                raise ApiError(500, f"memory {name} cannot be read: {error}", "memory") from error
            self.find(name)
            self._loaded.put(name, kept)
            return kept

    def _in_ram(self, name: str) -> Kept | None:
        return self._unstored.get(name) or self._loaded.get(name)

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place is taken before the text is read."""
        if len(self._entries) + self._coming >= self.most:
            raise ApiError(403, f"{self.most} memories are kept already; delete one first")
        if self.num_bytes >= self.max_bytes:
            raise self._full()
        self._coming += 1
        try:
            yield
        finally:
            self._coming -= 1

    async def add(self, kept: Kept) -> Entry:
        """Kept for good when this returns."""
        if self.num_bytes + kept.num_bytes > self.max_bytes:
            raise self._full()
        if self.store is None:
            return self.hold(kept)
        try:
            await asyncio.to_thread(self.store.write, kept)
        except ValueError as error:
            raise ApiError(507, "the memory could not be written to the store") from error
        self._loaded.put(kept.id, kept)
        self._entries[kept.id] = kept.entry
        return kept.entry

    def hold(self, kept: Kept) -> Entry:
        """Kept in RAM, until the server ends."""
        self._unstored[kept.id] = kept
        self._entries[kept.id] = kept.entry
        return kept.entry

    async def delete(self, name: str) -> None:
        self.find(name)
        del self._entries[name]
        self._loaded.drop(name)
        if self._unstored.pop(name, None) is None and self.store is not None:
            await asyncio.to_thread(self.store.delete, name)

    def _full(self) -> ApiError:
        return ApiError(403, f"memories may have {self.max_bytes} bytes; delete one first")
