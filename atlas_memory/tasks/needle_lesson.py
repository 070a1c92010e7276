"""Single needles for a model that is trained on them: in words, with shorter values.

    ... one of the special magic numbers for solid - forest is : 4 0 7 1 . ...
    what is the special magic number for solid - forest ? <gen> 4 0 7 1

A text to learn from may hide several needles, each with its question behind it.
"""

from dataclasses import dataclass

import numpy as np

from atlas_memory.tasks.babilong import hide
from atlas_memory.tasks.background import Background, Hidden, Ids
from atlas_memory.tasks.needle import ADJECTIVES, KEYS, NEEDLE, NOISE, NOUNS, values
from atlas_memory.tasks.words import Words

GEN = "<gen>"
QUESTION = "What is the special magic {what} for {key}? " + GEN
SIGNS = {"number": "0123456789", "uuid": "0123456789abcdef"}
# Words by which a sentence of a haystack looks like a needle; "a" of a uuid is in all of them.
CONFUSED = f"{ADJECTIVES} {NOUNS} special magic number numbers uuid uuids " + " ".join(
    SIGNS["number"]
)


@dataclass(frozen=True)
class Sample:
    """A context with one needle in it, the question and the value's tokens."""

    context: Hidden
    question: list[int]
    value: list[int]


def vocabulary(buckets: int) -> Words:
    """The words of needles, questions and noise, the signs of values, and buckets for the rest."""
    spoken = [*ADJECTIVES.split(), *NOUNS.split(), *SIGNS["uuid"], NOISE, NEEDLE, QUESTION]
    spoken += ["number numbers uuid uuids"]
    return Words.of([text.replace("{", "").replace("}", "") for text in spoken], buckets, (GEN,))


def sample(
    kind: str,
    tokens: int,
    signs: int,
    haystack: Background,
    words: Words,
    random: np.random.Generator,
) -> Sample:
    """A context of exactly `tokens` ids whose needle may stand between any two sentences."""
    told, question, value = _needle(kind, signs, words, random)
    text = haystack.draw(tokens - len(told), random)
    gap = int(random.integers(text.sentences + 1))
    return Sample(Hidden(text, ((text.offset(gap), told),)), question, value)


def lesson(
    kind: str,
    tokens: int,
    needles: int,
    signs: int,
    haystack: Background,
    words: Words,
    random: np.random.Generator,
) -> tuple[Ids, Ids]:
    """ids and labels [tokens]: the label of a token of an answer is the next one, else -100."""
    parts: list[Ids] = []
    labels: list[Ids] = []
    for _ in range(needles):
        told, question, value = _needle(kind, signs, words, random)
        parts += [told, np.array(question + value, dtype=np.int32)]
        silent = np.full(len(question) - 1, -100, dtype=np.int32)
        labels += [np.full_like(told, -100), np.concatenate([silent, value, [-100]])]
    room = tokens - sum(map(len, parts))
    if room < 0:
        raise ValueError(f"{needles} needles do not fit {tokens} tokens; give more")
    hidden = hide(parts, room, haystack, random)
    marked = np.full_like(ids := hidden.ids(), -100)
    passed = 0
    for (offset, part), label in zip(hidden.insertions, labels, strict=True):
        marked[offset + passed : offset + passed + len(part)] = label
        passed += len(part)
    return ids, marked


def _needle(
    kind: str, signs: int, words: Words, random: np.random.Generator
) -> tuple[Ids, list[int], list[int]]:
    what = values(kind)
    key = KEYS[int(random.integers(len(KEYS)))]
    value = " ".join(random.choice(list(SIGNS[what]), signs))
    told = words.encode(NEEDLE.format(what=what, key=key, value=value))
    question = words.encode(QUESTION.format(what=what, key=key))
    return np.array(told, dtype=np.int32), question, words.encode(value)
