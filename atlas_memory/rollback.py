"""Taking tokens back: an older state, and the input that was read since.

What a memory has read cannot be unread. A cache that is to be cropped therefore keeps a state from
before the tokens in question, and the next forward pass reads those that stay again, in front of
its own. Only full rows of one document each are cut and put together; others are read as they came.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from atlas_memory.layers.rows import Rows
from atlas_memory.memory.tree import State

WHILE_RECORDING = 32  # tokens between two states that are kept while somebody is about to crop
TOGETHER = 16  # tokens that are cheaper read again with each new pass than once on their own


@dataclass(frozen=True)
class Piece:
    """Embedded tokens x [b, t, dim] that follow `seen` others, and how they lie in their rows."""

    x: Tensor
    seen: int
    rows: Rows
    mask: Tensor | None = None
    position: Tensor | None = None

    @staticmethod
    def read(x: Tensor, mask: Tensor | None, position: Tensor | None, seen: int) -> Piece:
        rows = Rows.read((x.shape[0], x.shape[1]), mask, position, seen)
        if rows.order is None and rows.starts is None:
            return Piece(x, seen, rows)
        own = None if mask is None else mask[:, -x.shape[1] :]
        return Piece(x, seen, rows, own, position)

    def __len__(self) -> int:
        return self.x.shape[1]

    @property
    def plain(self) -> bool:
        return self.mask is None and self.position is None

    @property
    def num_bytes(self) -> int:
        return sum(t.nbytes for t in (self.x, self.mask, self.position) if t is not None)

    def first(self, tokens: int) -> Piece:
        """Without the last ones; a piece of no other kind can lose its first ones."""
        mask, position = (t if t is None else t[:, :tokens] for t in (self.mask, self.position))
        return Piece.read(self.x[:, :tokens], mask, position, self.seen)

    def behind(self, tokens: int) -> Piece:
        return replace(self, x=self.x[:, tokens:], seen=self.seen + tokens)

    def joined(self, after: Piece) -> Piece:
        return replace(self, x=torch.cat([self.x, after.x], dim=1))

    def select(self, chosen: Tensor) -> Piece:
        mask, position = (
            t if t is None else t.expand(len(self.x), -1)[chosen]
            for t in (self.mask, self.position)
        )
        return Piece.read(self.x[chosen], mask, position, self.seen)

    def to(self, device: torch.device | str) -> Piece:
        mask, position = (t if t is None else t.to(device) for t in (self.mask, self.position))
        return Piece.read(self.x.to(device), mask, position, self.seen)

    def detach(self) -> Piece:
        return replace(self, x=self.x.detach())


@dataclass(frozen=True)
class Segment:
    """What the layers knew, and what they read then."""

    states: tuple[State, ...]
    piece: Piece

    @property
    def num_bytes(self) -> int:
        return sum(state.num_bytes for state in self.states) + self.piece.num_bytes

    def select(self, chosen: Tensor) -> Segment:
        states = tuple(state.select(chosen) for state in self.states)
        return Segment(states, self.piece.select(chosen))

    def to(self, device: torch.device | str) -> Segment:
        return Segment(tuple(s.to(device) for s in self.states), self.piece.to(device))

    def detach(self) -> Segment:
        return Segment(tuple(s.detach() for s in self.states), self.piece.detach())


@dataclass(frozen=True)
class Past:
    """The segments that end where a cache stands; the last one may still have to be read again.

    horizon: tokens that can always be taken back. recording: all can, until the next crop.
    """

    horizon: int = 0
    recording: bool = False
    segments: tuple[Segment, ...] = ()
    unread: Segment | None = None

    @property
    def kept(self) -> bool:
        return self.recording or self.horizon > 0

    @property
    def tokens(self) -> int:
        """How many can be taken back."""
        return sum(len(segment.piece) for segment in self._all)

    @property
    def num_bytes(self) -> int:
        return sum(segment.num_bytes for segment in self._all)

    @property
    def _all(self) -> tuple[Segment, ...]:
        return (*self.segments, self.unread) if self.unread else self.segments

    def passes(self, piece: Piece) -> list[Piece]:
        """What to feed, one after another, so that `piece` is read and can be taken back."""
        if self.unread is None:
            return self._cut(piece)
        again = self.unread.piece
        if again.plain and piece.plain and len(again) <= TOGETHER:
            return self._cut(again.joined(piece))
        return [again, *self._cut(piece)]

    def _cut(self, piece: Piece) -> list[Piece]:
        """A state is kept inside of a long piece, so that taking back its end costs its end."""
        last = self._spacing
        if not self.kept or not piece.plain or len(piece) <= 2 * last:
            return [piece]
        return [piece.first(len(piece) - last), piece.behind(len(piece) - last)]

    @property
    def _spacing(self) -> int:
        return self.horizon or WHILE_RECORDING

    def after(self, read: Sequence[Segment]) -> Past:
        """With these passes behind it."""
        if not self.kept:
            return self
        segments = list(self.segments)
        for new in read:
            if self.unread is None and segments and self._grows(segments[-1].piece, new.piece):
                segments[-1] = replace(segments[-1], piece=segments[-1].piece.joined(new.piece))
            else:
                segments.append(new)
        past = replace(self, segments=tuple(segments), unread=None)
        return past if self.recording else past.trimmed()

    def _grows(self, last: Piece, new: Piece) -> bool:
        """Decoding is a piece per token, and a state for each of them would be too many."""
        return last.plain and new.plain and len(last) < self._spacing

    def cropped(self, seen: int) -> tuple[tuple[State, ...], Past]:
        """The states and the past of a cache that is taken back to `seen`, before its end."""
        index = max(i for i, segment in enumerate(self._all) if segment.piece.seen <= seen)
        here = self._all[index]
        left = seen - here.piece.seen
        unread = Segment(here.states, here.piece.first(left)) if left else None
        past = replace(self, segments=self._all[:index], unread=unread)
        return here.states, past.trimmed()

    def trimmed(self) -> Past:
        """Without what lies further back than the horizon."""
        segments, tokens = self.segments, self.tokens
        while segments and tokens - len(segments[0].piece) >= self.horizon:
            tokens -= len(segments[0].piece)
            segments = segments[1:]
        return replace(self, segments=segments)

    def select(self, chosen: Tensor) -> Past:
        return self._with([s.select(chosen) for s in self._all])

    def to(self, device: torch.device | str) -> Past:
        return self._with([s.to(device) for s in self._all])

    def detach(self) -> Past:
        return self._with([s.detach() for s in self._all])

    def _with(self, segments: Sequence[Segment]) -> Self:
        if self.unread is None:
            return replace(self, segments=tuple(segments))
        return replace(self, segments=tuple(segments[:-1]), unread=segments[-1])
