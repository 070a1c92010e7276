"""What the write gate did, in numbers few enough to be looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from atlas_memory.demo.result import Passage, Picture
from atlas_memory.demo.text import Lexicon, excerpt, positions
from atlas_memory.tasks.background import Hidden

PARTS = 400
AROUND = 30  # words before and behind
OTHERS = 4

Gates = np.ndarray[Any, Any]


def picture(hidden: Hidden, gates: Gates, lexicon: Lexicon) -> Picture:
    """gates [words]: of every word of the text."""
    spans = [
        (begin, begin + len(ids))
        for begin, (_, ids) in zip(positions(hidden), hidden.insertions, strict=True)
    ]
    cut = np.array_split(gates, min(PARTS, len(gates)))
    centres = [(begin + end) // 2 for begin, end in spans]
    return Picture(
        parts=tuple(round(float(part.max()), 4) for part in cut),
        facts=tuple(_passage(at, hidden, gates, spans, lexicon) for at in centres),
        others=tuple(
            _passage(at, hidden, gates, spans, lexicon) for at in _elsewhere(gates, spans)
        ),
    )


def _passage(
    at: int, hidden: Hidden, gates: Gates, spans: Sequence[tuple[int, int]], lexicon: Lexicon
) -> Passage:
    begin, end = max(0, at - AROUND), min(len(hidden), at + AROUND)
    return Passage(
        position=begin,
        words=tuple(lexicon.words[i] for i in excerpt(hidden, begin, end)),
        gates=tuple(round(float(gate), 4) for gate in gates[begin:end]),
        hidden=tuple(any(a <= n < b for a, b in spans) for n in range(begin, end)),
    )


def _elsewhere(gates: Gates, spans: Sequence[tuple[int, int]]) -> list[int]:
    """The words outside of the facts with the widest open gates, far from each other."""
    left = gates.astype(np.float32)
    for begin, end in spans:
        left[begin:end] = 0
    found: list[int] = []
    while len(found) < OTHERS and left.max() > 0:
        found.append(int(left.argmax()))
        left[max(0, found[-1] - AROUND) : found[-1] + AROUND] = 0
    return sorted(found)
