"""A vocabulary of words for models that are trained on one task: the task's own words, each with an
id of its own, and all others hashed into a number of buckets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from zlib import crc32

WORD = re.compile(r"<\w+>|\w+|[^\w\s]")


@dataclass(frozen=True)
class Words:
    """`known` words have the first ids, in their order; buckets follow. Case does not matter.

    >>> Words(("<gen>", "john", "."), buckets=4).encode("John slept.")
    [1, 4, 2]
    """

    known: tuple[str, ...]
    buckets: int
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ids", {word: i for i, word in enumerate(self.known)})

    @classmethod
    def of(cls, texts: Iterable[str], buckets: int, first: Sequence[str] = ()) -> Words:
        """`first`, then every word of the texts, in the order of the alphabet."""
        found = {word for text in texts for word in WORD.findall(text.lower())}
        return cls((*first, *sorted(found.difference(first))), buckets)

    def __len__(self) -> int:
        return len(self.known) + self.buckets

    @property
    def others(self) -> range:
        """The ids of the buckets."""
        return range(len(self.known), len(self))

    def encode(self, text: str) -> list[int]:
        return [self._id(word) for word in WORD.findall(text.lower())]

    def _id(self, word: str) -> int:
        found = self._ids.get(word)
        if found is None:
            found = self._ids[word] = len(self.known) + crc32(word.encode()) % self.buckets
        return found

    def decode(self, ids: Iterable[int]) -> str:
        """The words with spaces between them; a bucket is shown as its number."""
        known = len(self.known)
        return " ".join(self.known[i] if i < known else f"#{i - known}" for i in ids)
