"""Which tokens the n-th example of a run consists of: a function of n and a seed, nothing else.

There is no position to remember and none to replay: to go on after n examples, ask for the n-th.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atlas_memory.data.token_cache import Tokens

Example = dict[str, Tensor]


@dataclass(frozen=True)
class Shuffled:
    """Windows of `length` tokens in random order, every one once in an epoch.

    Neighbours share a token, so every token but the first is predicted once.
    """

    tokens: Tokens
    length: int
    seed: int
    count: int  # examples of the whole run

    def __len__(self) -> int:
        return self.count

    @property
    def windows(self) -> int:
        return num_windows(len(self.tokens.ids), self.length)

    def __getitem__(self, n: int) -> Example:
        epoch, place = divmod(n, self.windows)
        window = permuted(place, self.windows, mix(self.seed, epoch))
        first = window * (self.length - 1)
        return cut(self.tokens, first, self.length, fresh=True)


@dataclass(frozen=True)
class Lanes:
    """Consecutive segments: example n goes on where example n - rows ended.

    The corpus is cut into `rows` lanes of equal length; a batch takes one segment of each, so
    that a memory can be carried from batch to batch.
    """

    tokens: Tokens
    length: int
    rows: int
    count: int

    def __len__(self) -> int:
        return self.count

    @property
    def segments(self) -> int:
        return len(self.tokens.ids) // self.rows // self.length

    def __getitem__(self, n: int) -> Example:
        step, row = divmod(n, self.rows)
        lane = row * (len(self.tokens.ids) // self.rows)
        segment = step % self.segments
        first = lane + segment * self.length
        return cut(self.tokens, first, self.length, fresh=segment == 0)


@dataclass(frozen=True)
class InOrder:
    """The first `most` windows of a text from left to right, for validation."""

    tokens: Tokens
    length: int
    most: int | None = None

    def __len__(self) -> int:
        windows = num_windows(len(self.tokens.ids), self.length)
        return windows if self.most is None else min(windows, self.most)

    def __getitem__(self, n: int) -> Example:
        if n >= len(self):
            raise IndexError(n)
        return cut(self.tokens, n * (self.length - 1), self.length, fresh=True)


def num_windows(tokens: int, length: int) -> int:
    return (tokens - 1) // (length - 1)


def cut(tokens: Tokens, first: int, length: int, *, fresh: bool) -> Example:
    """Tokens first .. first + length - 1 with positions that restart with every document.

    `fresh`: nothing before `first` is known to the model. The first token of a document has no
    label, for nothing predicts it.
    """
    ids = torch.from_numpy(tokens.ids[first : first + length].astype(np.int64))
    index = int(np.searchsorted(tokens.starts, first, side="right"))
    begin = first if fresh else int(tokens.starts[index - 1])
    last = int(np.searchsorted(tokens.starts, first + length, side="left"))
    offsets = np.full(length, first - begin)
    for start in tokens.starts[index:last]:
        offsets[start - first :] = first - start
    positions = torch.from_numpy(np.arange(length) + offsets)
    return {
        "input_ids": ids,
        "position_ids": positions,
        "labels": ids.masked_fill(positions == 0, -100),
    }


def collate(examples: list[Example]) -> Example:
    return {name: torch.stack([e[name] for e in examples]) for name in examples[0]}


def mix(*numbers: int) -> int:
    """A 64-bit hash of whole numbers (splitmix64)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


_MASK = (1 << 64) - 1
ROUNDS = 4


def permuted(place: int, count: int, key: int) -> int:
    """Where a random permutation of 0 .. count - 1 sends `place`, without making it.

    A Feistel network permutes the next power of four; walking its cycle ends below `count`.
    """
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    low = (1 << half) - 1
    while True:
        left, right = place >> half, place & low
        for turn in range(ROUNDS):
            left, right = right, left ^ (mix(key, turn, right) & low)
        place = left << half | right
        if place < count:
            return place


def describe(tokens: Tokens) -> dict[str, Any]:
    return {
        "tokens": len(tokens.ids),
        "documents": len(tokens.starts),
        "bytes": tokens.num_bytes,
        "fingerprint": tokens.fingerprint,
    }
