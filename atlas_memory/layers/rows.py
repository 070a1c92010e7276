"""From transformers' masks and positions to rows that begin at the left and know their length."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from atlas_memory.layers.documents import Lengths, Starts, valid_tokens
from atlas_memory.memory.tracing import untraced


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
