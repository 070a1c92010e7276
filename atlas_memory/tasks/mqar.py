"""Multi-query associative recall (Zoology): pairs first, then every key once more."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IGNORED = -100
POWER = 0.01  # how closely the questions follow the pairs

Tokens = NDArray[np.int64]


@dataclass(frozen=True)
class MQAR:
    """k1 v1 k2 v2 .. and then each key in a slot of two tokens; its label is its value.

    Keys are distinct tokens of 1 .. V/2 - 1, values distinct ones of the upper half. Slot g after
    the pairs is drawn with probability ~ (g + 1)^(power - 1), without replacement: with 0.01
    questions crowd behind the pairs, with 1 they are uniform. The label stands where the key does,
    and the answer is not shown. Fillers are 0, or with `random_fillers` any token. Drawn with seed
    0, vocabulary 16, length 16, 3 pairs:

        inputs   4 15 7 14 5 8 0 0 7 0 5 0 0 0 4 0
        targets  . . . . . . . . 14 . 8 . . . 15 .
    """

    vocabulary: int = 8_192
    length: int = 64
    pairs: int = 4
    power: float = POWER
    random_fillers: bool = False

    def __post_init__(self) -> None:
        if self.pairs < 1 or 4 * self.pairs > self.length:
            raise ValueError(
                f"pairs={self.pairs}: it must be from 1 to a quarter of the length, "
                f"{self.length // 4}"
            )
        if self.vocabulary // 2 <= self.pairs:
            raise ValueError(
                f"pairs={self.pairs} does not fit half of a vocabulary of {self.vocabulary}"
            )

    def draw(self, random: np.random.Generator) -> tuple[Tokens, Tokens]:
        """(inputs, targets), each [length]."""
        half, pairs = self.vocabulary // 2, self.pairs
        keys = 1 + random.choice(half - 1, pairs, replace=False)
        values = half + random.choice(half, pairs, replace=False)
        asked = 2 * pairs + 2 * random.choice(self.slots, pairs, replace=False, p=self.law())
        inputs = np.zeros(self.length, dtype=np.int64)
        targets = np.full(self.length, IGNORED, dtype=np.int64)
        inputs[0 : 2 * pairs : 2], inputs[1 : 2 * pairs : 2] = keys, values
        inputs[asked], targets[asked] = keys, values
        if self.random_fillers:
            empty = inputs == 0
            inputs[empty] = random.integers(0, self.vocabulary, empty.sum())
        return inputs, targets

    @property
    def slots(self) -> int:
        return (self.length - 2 * self.pairs) // 2

    def law(self) -> NDArray[np.float64]:
        """The probability of each slot for the first key."""
        weight = np.arange(1, self.slots + 1) ** (self.power - 1)
        return weight / weight.sum()

    def draws(self, count: int, seed: tuple[int, ...], first: int = 0) -> tuple[Tokens, Tokens]:
        """Examples first .. first + count - 1 of a seed, [count, length]; each has its own."""
        numbers = range(first, first + count)
        drawn = [self.draw(np.random.default_rng((*seed, n))) for n in numbers]
        return np.stack([x for x, _ in drawn]), np.stack([y for _, y in drawn])
