"""The six tasks of MAD (Poli et al. 2024): what a sequence of each looks like, and its ladder.

Every task draws (inputs, targets) of one length; a target of -100 is not asked for, any other is
what the model has to say at that position. The in-context tasks train on every next token and
ask for the recallable ones alone when they test.
"""

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

IGNORED = -100
SEED = 12345
TRAIN, TEST = 12_800, 1_280

Tokens = NDArray[np.int64]
Pair = tuple[Tokens, Tokens]
Motif = tuple[int, ...]


class Task(Protocol):
    """vocabulary and length are the published ones; inputs may be one token shorter."""

    @property
    def vocabulary(self) -> int: ...

    @property
    def length(self) -> int: ...

    def draw(self, random: np.random.Generator, test: bool) -> Pair: ...


@dataclass(frozen=True)
class InContextRecall:
    """Pairs of a key and a value; a key keeps its value for the whole sequence.

    Keys are the lower half of the vocabulary without noise, values the upper. L/2 - 1 slots hold
    a pair with a random key, or with probability `noise` two tokens of the noise vocabulary (one
    slot is protected); the last slot asks for a key that was shown. Drawn with seed 0, vocabulary
    8, length 12 (test):

        inputs   2 6 1 5 0 4 0 4 3 6 3
        targets  . . . . . . 4 . . . 6

    and with vocabulary 16, length 16, 8 noise tokens, noise 0.4:

        inputs   13 10 8 9 3 6 2 6 2 6 14 11 3 6 3
        targets  . . . . . . . . 6 . . . 6 . 6
    """

    vocabulary: int = 16
    length: int = 128
    noise_vocabulary: int = 0
    noise: float = 0.0

    def draw(self, random: np.random.Generator, test: bool) -> Pair:
        known = self.vocabulary - self.noise_vocabulary
        values: dict[int, int] = {}
        tokens: list[int] = []
        asked: list[int] = []
        protected = random.integers(self.length // 2)
        for slot in range(self.length // 2 - 1):
            if slot != protected and self.noise > 0 and random.random() < self.noise:
                tokens += random.integers(known, self.vocabulary, 2).tolist()
                asked += [IGNORED, IGNORED]
                continue
            key = int(random.integers(known // 2))
            asked += [IGNORED, values.get(key, IGNORED)]
            tokens += [key, values.setdefault(key, int(random.integers(known // 2, known)))]
        if not values:  # the protected slot was the last one, and all others are noise
            return self.draw(random, test)
        probe = int(random.choice(list(values)))
        tokens += [probe, values[probe]]
        asked += [IGNORED, values[probe]]
        return _shifted(tokens, asked, test)


@dataclass(frozen=True)
class FuzzyRecall:
    """Keys and values of 1 to 3 distinct tokens each; tests have keys of 3.

    Token V - 1 pads on the left; of the others the first half (floor) makes keys, the rest values.
    A probe pair is put in at a random place and its key is asked for at the end. As published, a
    place near the end is never reached: then the probe was not shown and cannot be known (some 3%
    of the sequences). Drawn with seed 0, vocabulary 8, length 40 (test):

        inputs   7 7 7 7 7 7 7 0 1 2 4 5 6 2 0 1 3 1 0 2 4 3 6 0 1 2 4 5 6 2 0 1 3 1 2 0 3 2 0 1
        targets  . . . . . . . . . . . . . . . . . . . . . . . . . 4 5 6 . . . 3 . . . . . . . 3
    """

    vocabulary: int = 16
    length: int = 128
    longest: int = 3

    def draw(self, random: np.random.Generator, test: bool) -> Pair:
        probe_key, probe_value = self._key(random, test), self._value(random)
        size = len(probe_key) + len(probe_value)
        begin = random.integers(self.length - 2 * size)
        values: dict[Motif, Motif] = {}
        tokens: list[int] = []
        asked: list[int] = []
        while len(tokens) < self.length - size - 2 * self.longest:
            if len(tokens) >= begin and probe_key not in values:
                key, value = probe_key, probe_value
            else:
                key, value = self._key(random, test), self._value(random)
                value = probe_value if key == probe_key else values.get(key, value)
            asked += [IGNORED] * len(key) + list(values.get(key, [IGNORED] * len(value)))
            values[key] = value
            tokens += [*key, *value]
        tokens += [*probe_key, *probe_value]
        asked += [IGNORED] * len(probe_key) + list(probe_value)
        pad = self.length + 1 - len(tokens)
        return _shifted([self.vocabulary - 1] * pad + tokens, [IGNORED] * pad + asked, test)

    def _key(self, random: np.random.Generator, test: bool) -> Motif:
        size = self.longest if test else 1 + int(random.integers(self.longest))
        return _distinct(random, (self.vocabulary - 1) // 2, size, 0)

    def _value(self, random: np.random.Generator) -> Motif:
        first = (self.vocabulary - 1) // 2
        size = 1 + int(random.integers(self.longest))
        return _distinct(random, self.vocabulary - 1 - first, size, first)


@dataclass(frozen=True)
class SelectiveCopying:
    """Content tokens between blanks, the copy token, and room to say the content again.

    Token V - 1 is copy, V - 2 blank. Each blank stands before a random content token, so the last
    content token is always right before the copy token. Drawn with seed 0, vocabulary 8,
    length 12, 3 to copy:

        inputs   6 6 6 6 6 5 3 3 7 6 6 6
        targets  . . . . . . . . . 5 3 3
    """

    vocabulary: int = 16
    length: int = 256
    copied: int = 16

    def draw(self, random: np.random.Generator, test: bool) -> Pair:
        copy, blank = self.vocabulary - 1, self.vocabulary - 2
        content = random.integers(0, blank, self.copied)
        before = random.integers(0, self.copied, self.length - 2 * self.copied - 1)
        tokens = [*np.insert(content, before, blank), copy, *[blank] * self.copied]
        targets = np.full(self.length, IGNORED)
        targets[-self.copied :] = content
        return np.array(tokens), targets


@dataclass(frozen=True)
class Compression:
    """Random tokens and the compression token V - 1, whose one vector has to give all of them.

    Drawn with seed 0, vocabulary 8, length 8:

        inputs   5 4 3 1 2 0 0 7
        targets  5 4 3 1 2 0 0 7
    """

    vocabulary: int = 16
    length: int = 32

    def draw(self, random: np.random.Generator, test: bool) -> Pair:
        content = random.integers(0, self.vocabulary - 1, self.length - 1)
        tokens = np.append(content, self.vocabulary - 1)
        return tokens, tokens.copy()


@dataclass(frozen=True)
class Memorization:
    """Random keys, each before the insert token V - 1, where its value has to be said.

    The one-to-one map from keys (first half of the V - 1 others, floor) to values is the same in
    all sequences of train and test: it can only be learned in the weights. Drawn with seed 0,
    vocabulary 16, length 8:

        inputs   5 15 4 15 3 15 1 15
        targets  . 7 . 9 . 11 . 8
    """

    vocabulary: int = 256
    length: int = 32

    @property
    def values(self) -> Tokens:
        """The value of every key."""
        return _values(self.vocabulary)

    def draw(self, random: np.random.Generator, test: bool) -> Pair:
        keys = random.integers(0, len(self.values), self.length // 2)
        tokens = np.full(self.length, self.vocabulary - 1)
        targets = np.full(self.length, IGNORED)
        tokens[0::2], targets[1::2] = keys, self.values[keys]
        return tokens, targets


@lru_cache
def _values(vocabulary: int) -> Tokens:
    random = np.random.default_rng(SEED)
    half = (vocabulary - 1) // 2
    keys = random.permutation(half)
    values = random.permutation(np.arange(half, vocabulary - 1))[:half]
    return values[np.argsort(keys)]


def _shifted(tokens: list[int], asked: list[int], test: bool) -> Pair:
    targets = asked if test else tokens
    return np.array(tokens[:-1]), np.array(targets[1:])


def _distinct(random: np.random.Generator, count: int, size: int, first: int) -> Motif:
    """`size` distinct tokens of first .. first + count - 1, in random order."""
    return tuple((first + random.choice(count, size, replace=False)).tolist())


# ---- the benchmark: a baseline and a ladder of difficulties for every task ---------------------

BASELINE: dict[str, Task] = {
    "in_context_recall": InContextRecall(),
    "noisy_recall": InContextRecall(vocabulary=32, noise_vocabulary=16, noise=0.2),
    "fuzzy_recall": FuzzyRecall(),
    "selective_copying": SelectiveCopying(),
    "compression": Compression(),
    "memorization": Memorization(),
}
FEWER = (6_400, 3_200, 1_600, 800)
LADDER: dict[str, dict[str, tuple[Any, ...]]] = {
    "in_context_recall": {"vocabulary": (32, 64, 128), "length": (256, 512, 1024), "train": FEWER},
    "noisy_recall": {
        "vocabulary": (48, 80, 144),
        "length": (256, 512, 1024),
        "train": FEWER,
        "noise": (0.4, 0.6, 0.8),
    },
    "fuzzy_recall": {"vocabulary": (32, 64, 128), "length": (256, 512, 1024), "train": FEWER},
    "selective_copying": {
        "vocabulary": (32, 64, 128),
        "length": (512, 1024),
        "train": FEWER,
        "copied": (32, 64, 96),
    },
    "compression": {"vocabulary": (32, 64, 128), "length": (64, 128, 256), "train": FEWER},
    "memorization": {"vocabulary": (512, 1024, 2048, 4096, 8192)},
}
TASKS = tuple(BASELINE)


def train_size(name: str) -> int:
    return 256 if name == "memorization" else TRAIN


def settings(name: str) -> list[dict[str, Any]]:
    """The baseline ({}) and every step of the ladder, as changes of the baseline."""
    steps = [{field: value} for field, many in LADDER[name].items() for value in many]
    return [{}, *steps]


def task(name: str, changes: dict[str, Any]) -> Task:
    """A task at a difficulty; "train" among the changes is the number of examples."""
    if name not in BASELINE:
        raise ValueError(f"unknown task {name!r} of MAD; choose from: {', '.join(TASKS)}")
    baseline: Any = BASELINE[name]
    known = [field.name for field in fields(baseline)]
    for field in changes:
        if field not in (*known, "train"):
            raise ValueError(f"{name} has no {field!r}; choose from: {', '.join(known)}, train")
    own = {field: value for field, value in changes.items() if field != "train"}
    return replace(baseline, **own)


def splits(task: Task, train: int, test: int = TEST, seed: int = SEED) -> tuple[Pair, Pair]:
    """(inputs, targets) [n, L] of train and test: one generator, train first."""
    random = np.random.default_rng(seed)
    return draws(task, random, train, test=False), draws(task, random, test, test=True)


def draws(task: Task, random: np.random.Generator, count: int, *, test: bool) -> Pair:
    """(inputs, targets) [count, L]."""
    drawn = [task.draw(random, test) for _ in range(count)]
    return np.stack([x for x, _ in drawn]), np.stack([y for _, y in drawn])
