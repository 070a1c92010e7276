"""PrefixCache: a text that begins like one that was read before is read from there on.

What is known at the end of every block is kept under a digest of all tokens up to there, so a
prefix is found by its tokens and by nothing else. The blocks that follow are the same as without a
cache, and so is every bit of the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from atlas_memory.reading.fingerprint import fingerprint
from atlas_memory.reading.read import Memory, read_blocks
from atlas_memory.reading.recent import Recent

if TYPE_CHECKING:
    from atlas_memory.model import AtlasForCausalLM

MAX_BYTES = 512 * 2**20
BLOCK = 512


def borders(begin: str, ids: Tensor, block: int) -> Iterator[tuple[int, bytes]]:
    """The end of every whole block of ids [n], with a digest of all ids before it and `begin`."""
    digest = sha256(begin.encode()).digest()
    for number, part in enumerate(ids.split(block), start=1):
        if len(part) == block:
            digest = sha256(digest + part.numpy().tobytes()).digest()
            yield number * block, digest


class PrefixCache:
    """Reads texts of a model as `read` does, and remembers what it knew at every `block` tokens."""

    def __init__(
        self, model: AtlasForCausalLM, max_bytes: int = MAX_BYTES, block: int = BLOCK
    ) -> None:
        if max_bytes < 0 or block < 1:
            raise ValueError(
                f"max_bytes={max_bytes}, block={block}: give at least 0 bytes and blocks of 1 token"
            )
        self.model, self.block, self.reused = model, block, 0
        self._known: Recent[bytes, Memory] = Recent(max_bytes)

    def __repr__(self) -> str:
        known = f"{len(self._known)} prefixes, {self.num_bytes} bytes"
        return f"PrefixCache({known}, {self.reused} tokens reused)"

    @property
    def num_bytes(self) -> int:
        return self._known.num_bytes

    def read(self, tokens: Tensor | Sequence[int]) -> Memory:
        """The memory of one text of ids [t]; `reused` counts the tokens that were known already."""
        ids = torch.as_tensor(tokens).long().cpu().reshape(-1)
        if not len(ids):
            raise ValueError("there is no token to read; give at least one")
        keys = self._keys(ids)
        found = (self._known.get(key) for key in reversed(keys.values()))
        memory = next((m for m in found if m is not None), None)
        begin = 0 if memory is None else memory.position
        self.reused += begin
        for after in read_blocks(self.model, [ids[begin:]], memory, self.block):
            memory = after
            if after.position in keys:
                self._known.put(keys[after.position], own(after))
        assert memory is not None
        return memory

    def _keys(self, ids: Tensor) -> dict[int, bytes]:
        """By position; a block ends where a multiple of its size was fed, and one token waits."""
        begin = f"{fingerprint(self.model)} {int(ids[0])}"
        return {end + 1: key for end, key in borders(begin, ids[1:], self.block)}


def own(memory: Memory) -> Memory:
    """A copy that shares nothing with larger tensors, so that its bytes are those it holds."""
    return memory.select(torch.arange(memory.rows))
