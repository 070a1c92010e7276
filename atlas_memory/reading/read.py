"""read: a text of any length into a Memory of constant size.

A memory is what a language model carries between two tokens: the states of its layers behind all
tokens but the last, and that last token, which is the next one to be fed. So reading on and
generating are the same thing, and every token that is read is also predicted: the memory knows
how surprising the text was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atlas_memory.cache import AtlasCache
from atlas_memory.model import AtlasForCausalLM, feed, surprise
from atlas_memory.reading.fingerprint import Fingerprint, fingerprint

BLOCK = 4096  # tokens of one forward pass

Block = Tensor | np.ndarray[Any, Any] | Sequence[int] | int


@dataclass(frozen=True, repr=False)
class Memory:
    """What a model knows after `position` tokens; a value, which reading leaves as it is.

    last [rows, 1]: the last token, which the states have not seen yet. bits [rows]: the surprise
    -log2 p(token | tokens before) of all tokens but the first.
    """

    model: Fingerprint
    cache: AtlasCache
    last: Tensor
    bits: Tensor

    def __repr__(self) -> str:
        told = f"{self.position:,} tokens, {self.surprise:.2f} bits each, {self.num_bytes:,} bytes"
        return f"Memory({told if self.rows == 1 else f'{self.rows} rows, {told}'})"

    @property
    def position(self) -> int:
        """Tokens read, of each row."""
        return self.cache.seen + 1

    @property
    def rows(self) -> int:
        return len(self.last)

    @property
    def num_bytes(self) -> int:
        """Bytes of the states: the same after a thousand tokens and after a billion."""
        return self.cache.num_bytes + self.last.nbytes + self.bits.nbytes

    @property
    def surprise(self) -> float:
        """Mean bits per token so far."""
        return float(self.bits.mean()) / max(1, self.position - 1)

    def fork(self, rows: int = 1) -> Memory:
        """The memory of one text as `rows` rows of a batch, to be continued in different ways."""
        if self.rows != 1 or rows < 1:
            raise ValueError(f"cannot fork {self.rows} rows into {rows}; fork one into 1 or more")
        return self.select(torch.zeros(rows, dtype=torch.long))

    def select(self, rows: Tensor) -> Memory:
        """The rows `rows` of the batch, in that order; a row may come twice or not at all."""
        chosen = rows.to(self.last.device)
        cache = self.cache.select(chosen)
        return Memory(self.model, cache, self.last[chosen], self.bits[chosen])

    def to(self, device: torch.device | str) -> Memory:
        cache = self.cache.to(device)
        return Memory(self.model, cache, self.last.to(device), self.bits.to(device))

    def inputs(self, prompts: Sequence[Sequence[int]] | None = None) -> dict[str, Any]:
        """What transformers' `model.generate` needs to go on from here, with a prompt per row.

        The last token is put in front of every prompt and shorter ones are padded on the left.
        generate counts tokens from here on, so its cost does not depend on what was read before.
        """
        given = [[]] * self.rows if prompts is None else prompts
        if len(given) != self.rows:
            raise ValueError(
                f"{len(given)} prompts for a memory of {self.rows} rows; give one for each row, "
                f"or fork({len(given)}) it first"
            )
        longest = max(map(len, given))
        ids = torch.zeros(self.rows, 1 + longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(given):
            first = longest - len(prompt)
            ids[row, first + 1 :] = torch.as_tensor(prompt, dtype=torch.long)
            ids[row, first] = self.last[row, 0]
            mask[row, first:] = 1
        device = self.last.device
        states = AtlasCache(self.cache.states, 0, self.cache.fingerprint)
        return {
            "input_ids": ids.to(device),
            "attention_mask": mask.to(device),
            "past_key_values": states,
        }

    def save(self, path: str | Path) -> None:
        """One safetensors file, whole or not there; see `memory_file.py`."""
        from atlas_memory.reading.memory_file import save

        save(self, path)

    @staticmethod
    def load(path: str | Path, model: AtlasForCausalLM) -> Memory:
        """Read a memory of this very model; any other, or a damaged file, is a ValueError."""
        from atlas_memory.reading.memory_file import load

        return load(path, model).memory


def read(model: AtlasForCausalLM, tokens: Iterable[Block], memory: Memory | None = None) -> Memory:
    """Read blocks of token ids, [t] or [rows, t] each, of any number and length, in order.

    Only a block is ever held, and where the iterable cuts the text makes no difference at all.
    `memory` is what was read before; it stays as it is.
    """
    for after in read_blocks(model, tokens, memory):
        memory = after
    if memory is None:
        raise ValueError("there is no token to read; give at least one")
    return memory


def read_blocks(
    model: AtlasForCausalLM,
    tokens: Iterable[Block],
    memory: Memory | None = None,
    block: int = BLOCK,
) -> Iterator[Memory]:
    """The memory after each forward pass; passes end where a multiple of `block` was fed."""
    if block < 1:
        raise ValueError(f"block={block}: a forward pass needs at least 1 token")
    own = fingerprint(model)
    if memory is not None:
        memory.model.require(own, "the memory")
    for piece in _passes(tokens, 0 if memory is None else memory.position, block):
        piece = piece.to(model.device)
        if memory is None:
            bits = torch.zeros(len(piece), dtype=torch.float64, device=piece.device)
            memory = Memory(own, AtlasCache(), piece[:, :1], bits)
            piece = piece[:, 1:]
        if piece.shape[1]:
            memory = _advance(model, memory, piece)
        yield memory


@torch.no_grad()
def _advance(model: AtlasForCausalLM, memory: Memory, tokens: Tensor) -> Memory:
    """Feed the last token and all of `tokens` but their last, and see how well they are told."""
    known = torch.cat([memory.last.expand(-1, 1), tokens], dim=1)
    hidden, cache = feed(model, known[:, :-1], memory.cache)
    bits = memory.bits + surprise(model, hidden, tokens).double().sum(1)
    return Memory(memory.model, cache, tokens[:, -1:], bits)


def _passes(blocks: Iterable[Block], position: int, size: int) -> Iterator[Tensor]:
    """The same tokens cut anew: the first token opens the text, then `size` tokens a pass."""
    missing = size - (position - 1) % size if position else size + 1
    held: list[Tensor] = []
    for block in _rows(blocks):
        held.append(block)
        missing -= block.shape[1]
        if missing > 0:
            continue
        joined = torch.cat(held, dim=1)
        first, rest = joined.tensor_split([joined.shape[1] + missing], dim=1)
        yield first
        held, missing = [], size
        for piece in rest.split(size, dim=1):
            if piece.shape[1] == size:
                yield piece
            elif piece.shape[1]:
                held, missing = [piece], size - piece.shape[1]
    if held:
        yield torch.cat(held, dim=1)


def _rows(blocks: Iterable[Block]) -> Iterator[Tensor]:
    """Blocks as int64 [rows, t], all with the same rows."""
    rows = None
    for block in [blocks] if isinstance(blocks, Tensor | np.ndarray) else blocks:
        ids = block if isinstance(block, Tensor) else torch.tensor(np.asarray(block))
        if not ids.numel():
            continue
        if ids.dim() > 2 or ids.is_floating_point() or ids.is_complex():
            kind = str(ids.dtype).removeprefix("torch.")
            raise ValueError(f"a block of {kind} {tuple(ids.shape)}: give ids [t] or [rows, t]")
        ids = ids.long() if ids.dim() == 2 else ids.long().reshape(1, -1)
        if rows is not None and len(ids) != rows:
            raise ValueError(f"a block has {len(ids)} rows, the blocks before it had {rows}")
        rows = len(ids)
        yield ids
