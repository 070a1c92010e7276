"""Where documents begin inside a row, and where a ragged row ends.

A row may hold several documents, marked by `starts`; tokens of one document never see another.
A row may also be shorter than its batch: `lengths` counts its tokens, the rest is padding on the
right that never enters a state.
"""

import torch
from jaxtyping import Bool, Int64, Shaped
from torch import Tensor

Starts = Bool[Tensor, "b t"]
Lengths = Int64[Tensor, " b"]


def document_ids(starts: Starts) -> Int64[Tensor, "b t"]:
    """Number the documents of a row; 0 is the one that the state belongs to."""
    return starts.long().cumsum(dim=1)


def positions(begin: Int64[Tensor, " b"], time: int, starts: Starts | None) -> Int64[Tensor, "b t"]:
    """Position of every token in its own document, the row's first token standing at `begin`."""
    index = torch.arange(time, device=begin.device)
    counted = begin[:, None] + index
    if starts is None:
        return counted
    last_start = torch.where(starts, index, -1).cummax(dim=1).values
    return torch.where(last_start < 0, counted, index - last_start)


def next_position(
    begin: Int64[Tensor, " b"], time: int, starts: Starts | None, lengths: Lengths | None
) -> Int64[Tensor, " b"]:
    """Position of the token that would follow the last one of each row."""
    if time == 0:
        return begin
    if starts is None:
        return begin + (time if lengths is None else lengths)
    following = positions(begin, time, starts) + 1
    if lengths is None:
        return following[:, -1]
    return torch.cat([begin[:, None], following], dim=1).gather(1, lengths[:, None])[:, 0]


def valid_tokens(time: int, lengths: Lengths) -> Bool[Tensor, "b t"]:
    """True for the tokens of a ragged row, False for its padding."""
    return torch.arange(time, device=lengths.device) < lengths[:, None]


def row_tail(
    x: Shaped[Tensor, "b n d"], size: int, lengths: Lengths | None
) -> Shaped[Tensor, "b s d"]:
    """Each row's own last `size` entries, of rows whose last `lengths` of t are counted.

    `x` holds `size` older entries followed by t new ones, of which `lengths` are valid.
    """
    if lengths is None:
        return x[:, x.shape[1] - size :]
    index = lengths[:, None] + torch.arange(size, device=x.device)
    return x.gather(1, index[:, :, None].expand(-1, -1, x.shape[2]))
