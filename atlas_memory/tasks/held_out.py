"""Benchmark items cut from any text that was not trained on, in the columns of the hub.

They stand in for WikiText, LAMBADA and PIQA where there is no network:

    >>> last_words("one two three four five. six seven eight nine ten", 4, 2)
    [{'text': 'one two three four'}, {'text': 'six seven eight nine'}]
"""

import re

import numpy as np

Row = dict[str, str | int]


def pages(text: str, size: int, count: int) -> list[Row]:
    """Articles of about `size` characters, cut at a line's end or else at a space."""
    found: list[Row] = []
    begin = 0
    while len(found) < count and begin < len(text):
        end = begin + size
        cut = text.rfind("\n", begin + size // 2, end)
        cut = text.rfind(" ", begin + size // 2, end) if cut < 0 else cut
        end = len(text) if end >= len(text) else cut + 1 if cut >= 0 else end
        found.append({"page": text[begin:end]})
        begin = end
    return [row for row in found if str(row["page"]).strip()]


def last_words(text: str, length: int, count: int) -> list[Row]:
    """Passages of `length` words; the last one has letters only and is to be told."""
    words = text.split()
    found: list[Row] = []
    n = 0
    while len(found) < count and n + length <= len(words):
        passage = words[n : n + length]
        if re.fullmatch(r"[A-Za-z]+", passage[-1]):
            found.append({"text": " ".join(passage)})
            n += length
        n += 1
    return found


def continuations(text: str, length: int, count: int, seed: int = 0) -> list[Row]:
    """A passage, how it goes on, and how another one goes on; which is the right one?"""
    words, random = text.split(), np.random.default_rng(seed)
    starts = range(0, len(words) - 2 * length + 1, 2 * length)
    passages = [words[n : n + 2 * length] for n in starts][: count + 1]
    found: list[Row] = []
    for one, other in zip(passages, [*passages[1:], *passages[:1]], strict=True):
        right, wrong = " ".join(one[length:]), " ".join(other[length:])
        label = int(random.integers(2))
        first, second = (wrong, right) if label else (right, wrong)
        goal = " ".join(one[:length])
        found.append({"goal": goal, "sol1": first, "sol2": second, "label": label})
    return found[:count]
