"""Multi-query associative recall, made up example by example: pairs first, then questions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from atlas_memory.data.windows import Example, mix

POWER = 0.01  # how closely the questions follow the pairs: the n-th slot has weight n^(POWER - 1)


@dataclass(frozen=True)
class Recall:
    """k1 v1 k2 v2 .. and then every key once more, somewhere; its value is to be predicted.

    Keys are 1 .. vocab_size / 2 - 1, values the upper half, 0 fills the gaps. Example n is a
    function of n and the seed.
    """

    length: int
    pairs: int
    vocab_size: int
    seed: int
    count: int

    def __post_init__(self) -> None:
        if self.pairs < 1 or 4 * self.pairs > self.length:
            raise ValueError(
                f"data.pairs={self.pairs}: it must be from 1 to a quarter of data.length, "
                f"{self.length // 4}"
            )
        if self.vocab_size // 2 <= self.pairs:
            raise ValueError(
                f"data.pairs={self.pairs} does not fit half of a vocabulary of {self.vocab_size}"
            )

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, n: int) -> Example:
        if n >= self.count:
            raise IndexError(n)
        random = np.random.default_rng(mix(self.seed, n))
        half, pairs = self.vocab_size // 2, self.pairs
        keys = 1 + random.choice(half - 1, pairs, replace=False)
        values = half + random.choice(half, pairs, replace=False)
        ids = np.zeros(self.length, dtype=np.int64)
        labels = np.full(self.length, -100, dtype=np.int64)
        ids[0 : 2 * pairs : 2], ids[1 : 2 * pairs : 2] = keys, values
        slots = (self.length - 2 * pairs) // 2
        weight = np.arange(1, slots + 1) ** (POWER - 1)
        asked = 2 * pairs + 2 * random.choice(slots, pairs, replace=False, p=weight / weight.sum())
        ids[asked] = keys
        # the label of token t + 1 is what the model says after token t
        labels[asked + 1] = values
        return {"input_ids": torch.from_numpy(ids), "labels": torch.from_numpy(labels)}
