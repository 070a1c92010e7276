"""Examples that repeat themselves, so that a model learns that what was read may come again.

Both are functions of n and the seed, as all windows are: a run that goes on reads the same ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from atlas_memory.data.windows import Example, mix

REREAD, PRIME = 1, 2  # keep the draws of both apart
SHORTEST, LONGEST = 24, 48  # random tokens that a priming example repeats


@dataclass(frozen=True)
class Reread:
    """A `share` of the windows has a stretch twice: a copy of it stands in place of later text.

    The stretch has an eighth to a half of the window, and the gap before its copy is random. Such
    a window is read as one document: a memory that starts afresh could not know the stretch.
    """

    windows: Sequence[Example]
    share: float
    seed: int

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, n: int) -> Example:
        example = self.windows[n]
        draw = np.random.default_rng(mix(self.seed, REREAD, n))
        if draw.random() >= self.share:
            return example
        ids, length = example["input_ids"].clone(), len(example["input_ids"])
        size = int(draw.integers(max(1, length // 8), length // 2, endpoint=True))
        first = int(draw.integers(0, length - 2 * size, endpoint=True))
        copy = int(draw.integers(first + size, length - size, endpoint=True))
        ids[copy : copy + size] = ids[first : first + size]
        positions = example["position_ids"][0] + torch.arange(length)
        labels = ids.masked_fill(positions == 0, -100)
        return {"input_ids": ids, "position_ids": positions, "labels": labels}


@dataclass(frozen=True)
class Primed:
    """First `primers` examples of random tokens, repeated to fill the window; then the windows.

    Only what can be known is asked: the tokens of the first round have no label.
    """

    windows: Sequence[Example]
    primers: int
    length: int
    vocab_size: int
    seed: int

    def __len__(self) -> int:
        return self.primers + len(self.windows)

    def __getitem__(self, n: int) -> Example:
        if n >= self.primers:
            return self.windows[n - self.primers]
        draw, most = np.random.default_rng(mix(self.seed, PRIME, n)), self.length // 2
        period = int(draw.integers(min(SHORTEST, most), min(LONGEST, most), endpoint=True))
        ids = torch.from_numpy(np.resize(draw.integers(self.vocab_size, size=period), self.length))
        places = torch.arange(self.length)
        labels = ids.masked_fill(places < period, -100)
        return {"input_ids": ids, "position_ids": places, "labels": labels}
