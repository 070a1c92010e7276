"""The words that facts are hidden between: Python's own manual, or a text of the user's."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from atlas_memory.tasks import babi, babilong
from atlas_memory.tasks.background import Background, Hidden
from atlas_memory.tasks.words import WORD, Words

Random = np.random.Generator


@dataclass(frozen=True)
class Lexicon:
    """Every word as it is written has an id of its own, so that a text can be shown again.

    What a model reads is `known`'s id of it: most words share one of a few hundred buckets.
    """

    known: Words
    words: list[str] = field(default_factory=list)
    _ids: dict[str, int] = field(default_factory=dict, repr=False)

    def encode(self, text: str) -> list[int]:
        return [self._id(word) for word in WORD.findall(text)]

    def _id(self, word: str) -> int:
        found = self._ids.setdefault(word, len(self.words))
        if found == len(self.words):
            self.words.append(word)
        return found

    def table(self) -> np.ndarray[Any, Any]:
        """The model's id of every word so far, by its id here."""
        return np.array([self.known.encode(word)[0] for word in self.words], dtype=np.int32)


def background(text: str | None, lexicon: Lexicon) -> Background:
    return Background.from_texts(manual() if text is None else [text], lexicon.encode)


def manual() -> list[str]:
    """The reference of the language that every Python brings along for help()."""
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise ValueError(
            "this Python was installed without its manual; give --text FILE"
        ) from error
    return [topics[name] for name in sorted(topics)]


def hide(
    problem: babi.Problem, words: int, text: Background, lexicon: Lexicon, random: Random
) -> Hidden:
    """A text of exactly so many words with the problem's facts between its sentences."""
    facts = [np.array(lexicon.encode(fact), dtype=np.int32) for fact in problem.facts]
    return babilong.hide(facts, words - sum(map(len, facts)), text, random)


def positions(hidden: Hidden) -> list[int]:
    """Words before each of the insertions."""
    sizes = np.cumsum([0, *(len(ids) for _, ids in hidden.insertions)])
    return [offset + int(size) for (offset, _), size in zip(hidden.insertions, sizes, strict=False)]


def excerpt(hidden: Hidden, begin: int, end: int) -> Sequence[int]:
    """The ids from `begin` to `end`, without holding the others."""
    kept, passed = [], 0
    for piece in hidden.slices():
        kept.append(piece[max(0, begin - passed) : max(0, end - passed)])
        passed += len(piece)
        if passed >= end:
            break
    return np.concatenate(kept).tolist()
