"""Carried memory: consecutive segments of a text, one after another through one memory.

The memory that a segment leaves behind is where the next one begins, without its graph: truncated
back-propagation through time. It belongs to the checkpoint as the weights do.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from atlas_memory.cache import AtlasCache


class Stream:
    """One cache for every micro-batch of a step; they come round in the same order each step."""

    def __init__(self, micro_batches: int) -> None:
        self.caches: list[AtlasCache | None] = [None] * micro_batches
        self.turn = 0

    def take(self) -> AtlasCache | None:
        """What the micro-batch that comes now has read so far."""
        return self.caches[self.turn]

    def give(self, cache: AtlasCache) -> None:
        """What it has read by now; the next one comes."""
        self.caches[self.turn] = cache.detach()
        self.turn = (self.turn + 1) % len(self.caches)

    def save(self, folder: Path, process: int, processes: int) -> None:
        for turn, cache in enumerate(self.caches):
            if cache is not None:
                cache.save(folder / _name(turn, len(self.caches), process, processes))

    def load(self, folder: Path, process: int, processes: int, say: Callable[[str], None]) -> None:
        """Go on as saved. A run that is divided differently begins with an empty memory."""
        names = [
            _name(turn, len(self.caches), process, processes) for turn in range(len(self.caches))
        ]
        if all((folder / name).is_file() for name in names):
            self.caches = [AtlasCache.load(folder / name) for name in names]
        else:
            say("the carried memory was saved by another division of the batch; it starts empty")


def _name(turn: int, turns: int, process: int, processes: int) -> str:
    return f"stream-{process}-of-{processes}-{turn}-of-{turns}.safetensors"
