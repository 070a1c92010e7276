"""How tokens lie in rows: where documents begin, where a ragged row ends, where padding was.

A row may hold several documents, marked by `starts`; tokens of one document never see another.
A row may also be shorter than its batch: `lengths` counts its tokens, the rest is padding on the
right that never enters a state. `Rows` comes to this from transformers' masks and positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from atlas_memory.memory.graphs import untraced
from atlas_memory.memory.tokens import age_of_tokens

Starts = Tensor  # bool [b, t]: a document begins at this token
Lengths = Tensor  # int64 [b]: tokens of the row


def document_ids(starts: Starts) -> Tensor:
    """Number the documents of a row; 0 is the one that the state belongs to."""
    return starts.long().cumsum(dim=1)


def next_position(
    begin: Tensor, time: int, starts: Starts | None, lengths: Lengths | None
) -> Tensor:
    """Position of the token that would follow the last one of each row."""
    if time == 0:
        return begin
    if starts is None:
        return begin + (time if lengths is None else lengths)
    following = age_of_tokens(begin, time, starts) + 1
    if lengths is None:
        return following[:, -1]
    return torch.cat([begin[:, None], following], dim=1).gather(1, lengths[:, None])[:, 0]


def valid_tokens(time: int, lengths: Lengths) -> Tensor:
    """True for the tokens of a ragged row, False for its padding."""
    return torch.arange(time, device=lengths.device) < lengths[:, None]


def row_tail(x: Tensor, size: int, lengths: Lengths | None) -> Tensor:
    """Each row's own last `size` entries.

    `x` holds `size` older entries followed by new ones, of which the first `lengths` are valid.
    """
    if lengths is None:
        # a view would keep all of x alive, and a copy with its strides be another input to compile
        return x[:, x.shape[1] - size :].clone(memory_format=torch.contiguous_format)
    index = lengths[:, None] + torch.arange(size, device=x.device)
    return torch.take_along_dim(x, index.view(*index.shape, *[1] * (x.ndim - 2)), dim=1)


@dataclass(frozen=True)
class Rows:
    """How the tokens of a batch lie: everything None for full rows of one document each.

    order [b, t]: which token comes at each place once padding has moved to the right end.
    """

    starts: Starts | None = None
    lengths: Lengths | None = None
    order: Tensor | None = None

    @staticmethod
    @untraced
    def read(
        shape: tuple[int, int], mask: Tensor | None, position: Tensor | None, seen: int
    ) -> Rows:
        """Rows of `shape` from an attention mask and position ids that restart with a document.

        The mask covers these tokens or also the `seen` ones before them; what it hides does not
        exist. A document begins where a position is 0, and at the first token of all.
        """
        valid = None if mask is None else _valid(mask, shape, seen)
        if valid is not None and bool(valid.all()):
            valid = None
        lengths = order = None
        if valid is not None:
            lengths = valid.sum(dim=1)
            order = torch.argsort((~valid).to(torch.int8), dim=1, stable=True)
        return Rows(_starts(position, shape, order, lengths, seen), lengths, order)

    @untraced
    def pack(self, x: Tensor) -> Tensor:
        """Move the padding of x [b, t, ...] to the right end."""
        return x if self.order is None else _pick(x, self.order)

    @untraced
    def unpack(self, x: Tensor) -> Tensor:
        """Move every token back to where it was."""
        return x if self.order is None else _pick(x, self.order.argsort(dim=1))

    @untraced
    def targets(self, labels: Tensor) -> Tensor:
        """Labels without those that nothing predicts: padding, and the first of a document."""
        if self.starts is None and self.lengths is None:
            return labels
        batch, time = labels.shape
        lost = torch.zeros(batch, time, dtype=torch.bool, device=labels.device)
        if self.starts is not None:
            lost = lost | self.starts
        if self.lengths is not None:
            lost = lost | ~valid_tokens(time, self.lengths)
            lost = lost | F.pad(torch.zeros_like(lost[:, 1:]), (1, 0), value=True)
        return labels.masked_fill(self.unpack(lost), -100)


def _pick(x: Tensor, order: Tensor) -> Tensor:
    return torch.take_along_dim(x, order.view(*order.shape, *[1] * (x.ndim - 2)), dim=1)


def _valid(mask: Tensor, shape: tuple[int, int], seen: int) -> Tensor:
    batch, time = shape
    if mask.ndim != 2 or mask.shape[0] != batch or mask.shape[1] not in (time, seen + time):
        raise ValueError(
            f"attention_mask has shape {tuple(mask.shape)}; give [{batch}, {time}] for these "
            f"tokens or [{batch}, {seen + time}] with the {seen} tokens in the cache"
        )
    return mask[:, -time:] != 0


def _starts(
    position: Tensor | None,
    shape: tuple[int, int],
    order: Tensor | None,
    lengths: Tensor | None,
    seen: int,
) -> Tensor | None:
    if position is None:
        return None
    if (
        position.ndim != 2
        or position.shape[1] != shape[1]
        or position.shape[0] not in (1, shape[0])
    ):
        raise ValueError(
            f"position_ids has shape {tuple(position.shape)}; give [{shape[0]}, {shape[1]}]"
        )
    position = position.expand(shape)
    position = position if order is None else _pick(position, order)
    starts = position == 0
    if seen == 0:
        starts = F.pad(starts[:, 1:], (1, 0))
    if lengths is not None:
        starts = starts & valid_tokens(shape[1], lengths)
    _check_counting(position, lengths)
    return starts if bool(starts.any()) else None


def _check_counting(position: Tensor, lengths: Tensor | None) -> None:
    jumps = (position[:, 1:] != position[:, :-1] + 1) & (position[:, 1:] != 0)
    if lengths is not None:
        jumps = jumps & valid_tokens(position.shape[1], lengths)[:, 1:]
    if bool(jumps.any()):
        row, column = jumps.nonzero()[0].tolist()
        before, after = position[row, column : column + 2].tolist()
        raise ValueError(
            f"position_ids go from {before} to {after} in row {row}; they must count up by one and "
            "restart at 0 with every document"
        )
