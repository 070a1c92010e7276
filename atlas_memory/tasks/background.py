"""The text that facts and needles are hidden in: sentences of any corpus as token ids.

A corpus is held once, as one array; a text of any length is a plan over it (which sentences, in
which order), so that ten million tokens cost no more memory than ten thousand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Random = np.random.Generator
Ids = np.ndarray[Any, np.dtype[np.int32]]
Encode = Callable[[str], Sequence[int]]

FEWEST = 10  # tokens of a sentence that is used
SENTENCE = re.compile(r"(?<=[.!?])[\"')\]]*\s+")


def sentences(text: str) -> list[str]:
    """Cut behind a full stop, an exclamation or a question mark that is followed by a space."""
    return [sentence for s in SENTENCE.split(text) if (sentence := " ".join(s.split()))]


@dataclass(frozen=True)
class Background:
    """Sentences of books, one after another.

    ends: how many ids there are up to the end of each sentence; books: how many sentences.
    """

    ids: Ids
    ends: np.ndarray[Any, np.dtype[np.int64]]
    books: np.ndarray[Any, np.dtype[np.int64]]

    @classmethod
    def from_texts(cls, texts: Iterable[str], encode: Encode, fewest: int = FEWEST) -> Background:
        """Sentences of at least `fewest` tokens, each encoded with a space in front of it."""
        kept: list[Ids] = []
        books: list[int] = []
        for text in texts:
            found = (np.array(encode(" " + s), dtype=np.int32) for s in sentences(text))
            kept += [ids for ids in found if len(ids) >= fewest]
            books.append(len(kept))
        return cls._of(kept, books, fewest)

    @classmethod
    def noise(cls, words: Sequence[int], random: Random, count: int = 2_000) -> Background:
        """A made-up book: sentences of 10 to 20 words, the n-th of them with probability ~ 1/n."""
        weight = 1 / np.arange(1, len(words) + 1)
        pool = np.array(words, dtype=np.int32)
        lengths = random.integers(FEWEST, 2 * FEWEST + 1, count)
        kept = [random.choice(pool, n, p=weight / weight.sum()) for n in lengths]
        return cls._of(kept, [count], FEWEST)

    @classmethod
    def _of(cls, kept: list[Ids], books: list[int], fewest: int) -> Background:
        if not kept:
            raise ValueError(f"the background has no sentence of {fewest} tokens; give more text")
        ends = np.cumsum([len(ids) for ids in kept])
        borders = np.unique([border for border in books if border])
        return cls(np.concatenate(kept), ends, borders)

    def start(self, sentence: int) -> int:
        """The place of a sentence's first id."""
        return int(self.ends[sentence - 1]) if sentence else 0

    def draw(self, tokens: int, random: Random) -> Text:
        """A text of exactly `tokens` ids: from a random sentence to the end of its random book.

        Then comes another book, until there are enough; the last sentence is cut.
        """
        runs: list[tuple[int, int]] = []
        left = tokens
        while left > 0:
            book = int(random.integers(len(self.books)))
            begin, end = int(self.books[book - 1]) if book else 0, int(self.books[book])
            first = int(random.integers(begin, end))
            last = int(np.searchsorted(self.ends, self.start(first) + left)) + 1
            runs.append((first, min(last, end)))
            left -= self.start(runs[-1][1]) - self.start(first)
        return Text(self, tuple(runs), tokens)

    def with_emphasis(self, wanted: Sequence[int]) -> Background:
        """One more book: the sentences that contain one of the wanted ids, if there are any."""
        starts = np.concatenate([[0], self.ends[:-1]])
        seen = np.concatenate([[0], np.cumsum(np.isin(self.ids, wanted))])
        chosen = np.nonzero(seen[self.ends] > seen[starts])[0]
        if not len(chosen):
            return self
        copies = [self.ids[starts[n] : self.ends[n]] for n in chosen]
        ends = self.ends[-1] + np.cumsum([len(ids) for ids in copies])
        books = np.append(self.books, len(self.ends) + len(chosen))
        return Background(
            np.concatenate([self.ids, *copies]), np.concatenate([self.ends, ends]), books
        )

    def prefix(self, tokens: int) -> Text:
        """The first `tokens` ids, and from the beginning again where there are fewer."""
        runs, left = [], tokens
        while left > 0:
            last = int(np.searchsorted(self.ends, left)) + 1
            runs.append((0, min(last, len(self.ends))))
            left -= self.start(runs[-1][1])
        return Text(self, tuple(runs), tokens)


@dataclass(frozen=True)
class Text:
    """A text of `tokens` ids as runs of sentences [first, last)."""

    background: Background
    runs: tuple[tuple[int, int], ...]
    tokens: int

    @property
    def sentences(self) -> int:
        return sum(last - first for first, last in self.runs)

    def offset(self, gap: int) -> int:
        """How many ids stand before gap number `gap` of the sentences + 1 gaps."""
        passed = 0
        if gap == 0:
            return 0
        for first, last in self.runs:
            start = self.background.start(first)
            if gap <= last - first:
                return min(self.tokens, passed + self.background.start(first + gap) - start)
            gap -= last - first
            passed += self.background.start(last) - start
        raise ValueError(f"gap {gap} is behind the end of the text")

    def slices(self) -> Iterator[Ids]:
        """The ids in order, in pieces that are views of the corpus."""
        left = self.tokens
        for first, last in self.runs:
            start = self.background.start(first)
            stop = min(self.background.start(last), start + left)
            yield self.background.ids[start:stop]
            left -= stop - start


@dataclass(frozen=True)
class Hidden:
    """A text with insertions: (offset in the text, ids), in their order."""

    text: Text
    insertions: tuple[tuple[int, Ids], ...]

    def __len__(self) -> int:
        return self.text.tokens + sum(len(ids) for _, ids in self.insertions)

    def slices(self) -> Iterator[Ids]:
        waiting, passed = list(self.insertions), 0
        for piece in self.text.slices():
            while waiting and waiting[0][0] <= passed + len(piece):
                offset, ids = waiting.pop(0)
                yield piece[: offset - passed]
                yield ids
                piece, passed = piece[offset - passed :], offset
            yield piece
            passed += len(piece)
        yield from (ids for _, ids in waiting)

    def blocks(self, size: int) -> Iterator[Ids]:
        """All ids in blocks of `size`, the last one shorter; only a block is ever held."""
        held: list[Ids] = []
        missing = size
        for piece in self.slices():
            while len(piece) >= missing:
                yield np.concatenate([*held, piece[:missing]])
                piece, held, missing = piece[missing:], [], size
            if len(piece):
                held, missing = [*held, piece], missing - len(piece)
        if held:
            yield np.concatenate(held)

    def ids(self) -> Ids:
        return np.concatenate([np.empty(0, np.int32), *self.slices()])


def in_rows(rows: Sequence[Hidden], size: int) -> Iterator[np.ndarray[Any, Any]]:
    """Blocks [rows, size] of several texts of one length, side by side."""
    lengths = sorted({len(row) for row in rows})
    if len(lengths) != 1:
        raise ValueError(f"the rows have {lengths} tokens; they must have the same number")
    for blocks in zip(*(row.blocks(size) for row in rows), strict=True):
        yield np.stack(blocks)


# ---- text of Wikipedia without its markup ------------------------------------------------------

_MARKUP = [
    (re.compile(r"&lt;.*?&gt;|<[^>]*>", re.S), " "),
    (re.compile(r"&(?:amp;)?\w+;"), " "),
    (re.compile(r"\{\{[^{}]*\}\}|\{\|.*?\|\}", re.S), " "),
    (re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]"), r"\1"),
    (re.compile(r"\[?https?://\S*"), " "),
    (re.compile(r"^[*#:;=|!].*$", re.M), " "),
    (re.compile(r"'{2,}|[\[\]{}|]"), ""),
]


def without_markup(text: str) -> str:
    """Roughly the prose of a Wikipedia dump."""
    for pattern, plain in _MARKUP:
        text = pattern.sub(plain, text)
    return text
