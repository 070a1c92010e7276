"""Cut rows into pieces that never cross the border of a segment or of a document."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from atlas_memory.layers.rows import Lengths, Starts, valid_tokens
from atlas_memory.memory.tokens import age_of_tokens


@dataclass(frozen=True)
class Piece:
    """Tokens of one segment that are read together, one run of them per row.

    index [b, n]: their places in the row. lengths [b]: how many of the n are tokens; None: all.
    begins [b]: they open a segment; None: in every row. starts [b]: they open a document.
    """

    index: Tensor
    lengths: Lengths | None = None
    begins: Tensor | None = None
    starts: Tensor | None = None

    def pick(self, x: Tensor) -> Tensor:
        return torch.take_along_dim(x, self.index[:, :, None], dim=1)


@dataclass(frozen=True)
class Cut:
    """The pieces of a row in order, and where each token is among them, [b, t]."""

    pieces: list[Piece]
    place: Tensor

    def join(self, outputs: list[Tensor]) -> Tensor:
        """The outputs of all pieces, every token back in its place."""
        return torch.take_along_dim(torch.cat(outputs, dim=1), self.place[:, :, None], dim=1)


def cut_fresh(batch: int, time: int, segment: int, device: torch.device) -> Cut:
    """Full rows of one document each that are read from their beginning."""
    index = torch.arange(time, device=device).expand(batch, -1)
    return Cut([Piece(part) for part in index.split(segment, dim=1)], index)


def cut_rows(
    begin: Tensor, time: int, segment: int, starts: Starts | None, lengths: Lengths | None
) -> Cut:
    """Rows that may stand anywhere: `begin` [b] is the position of each row's first token."""
    column = torch.arange(time, device=begin.device)
    opens = age_of_tokens(begin, time, starts) % segment == 0
    number = opens.long().cumsum(dim=1)
    if lengths is not None:
        number = number.masked_fill(~valid_tokens(time, lengths), -1)
    if time == 1:  # nothing to look up, so that a decoding step never waits for its own tensors
        number = number.clamp(max=0)
    last = 0 if time == 1 else max(0, int(number.max()))
    pieces, place, offset = [], torch.zeros_like(number), 0
    for j in range(last + 1):
        member = number == j
        count = member.sum(dim=1)
        width = 1 if time == 1 else int(count.max())
        if width == 0 and j < last:
            continue
        width = max(1, width)
        first = member.long().argmax(dim=1, keepdim=True)
        index = (first + torch.arange(width, device=begin.device)).clamp(max=time - 1)
        place = torch.where(member, offset + column - first, place)
        offset += width
        ragged = lengths is not None if time == 1 else bool((count < width).any())
        begins = (opens & member).any(dim=1)
        fresh = None if starts is None else (starts & member).any(dim=1)
        pieces.append(Piece(index, count if ragged else None, begins, fresh))
    return Cut(pieces, place)
