"""Multi-query associative recall, made up example by example: pairs first, then questions."""

from dataclasses import dataclass

import numpy as np
import torch

from atlas_memory.data.windows import Example, mix
from atlas_memory.tasks.mqar import MQAR


@dataclass(frozen=True)
class Recall:
    """MQAR for a trainer of language models; example n is a function of n and the seed."""

    length: int
    pairs: int
    vocab_size: int
    seed: int
    count: int

    def __post_init__(self) -> None:
        try:
            self.task()
        except ValueError as error:
            raise ValueError(f"data.{error}") from error

    def task(self) -> MQAR:
        return MQAR(self.vocab_size, self.length, self.pairs)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, n: int) -> Example:
        if n >= self.count:
            raise IndexError(n)
        ids, targets = self.task().draw(np.random.default_rng(mix(self.seed, n)))
        # the label of token t + 1 is what the model says after token t
        labels = np.roll(targets, 1)
        return {"input_ids": torch.from_numpy(ids), "labels": torch.from_numpy(labels)}
