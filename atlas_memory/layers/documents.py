"""Where documents begin inside a row, and where a ragged row ends.

A row may hold several documents, marked by `starts`; tokens of one document never see another.
A row may also be shorter than its batch: `lengths` counts its tokens, the rest is padding on the
right that never enters a state.
"""

import torch
from torch import Tensor

from atlas_memory.memory.layout import age_of_tokens

Starts = Tensor  # bool [b, t]: a document begins at this token
Lengths = Tensor  # int64 [b]: tokens of the row


def document_ids(starts: Starts) -> Tensor:
    """Number the documents of a row; 0 is the one that the state belongs to."""
    return starts.long().cumsum(dim=1)


def positions(begin: Tensor, time: int, starts: Starts | None) -> Tensor:
    """Position of every token in its own document, the row's first token standing at `begin`."""
    return age_of_tokens(begin, time, starts)


def next_position(
    begin: Tensor, time: int, starts: Starts | None, lengths: Lengths | None
) -> Tensor:
    """Position of the token that would follow the last one of each row."""
    if time == 0:
        return begin
    if starts is None:
        return begin + (time if lengths is None else lengths)
    following = positions(begin, time, starts) + 1
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
        return x[:, x.shape[1] - size :].clone()  # a view would keep all of x alive
    index = lengths[:, None] + torch.arange(size, device=x.device)
    return torch.take_along_dim(x, index.view(*index.shape, *[1] * (x.ndim - 2)), dim=1)
