"""Short causal depthwise convolution in front of keys, queries and values. [Atlas Sec. 5]"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atlas_memory.layers.rows import Lengths, Starts, document_ids, row_tail
from atlas_memory.memory.tree import State


@dataclass(frozen=True, repr=False)
class ConvState(State):
    """The last size - 1 inputs of each row; zeros stand for inputs that do not exist."""

    tail: Tensor  # [b, size - 1, dim]


class ShortConv(nn.Module):
    """A learned `short_convolution` of `size` taps."""

    def __init__(self, dim: int, size: int = 4) -> None:
        super().__init__()
        if size < 2:
            raise ValueError(f"a short convolution needs size >= 2, got {size}")
        self.weight = nn.Parameter(torch.empty(dim, size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = self.weight.shape[1] ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(
        self,
        x: Tensor,  # [b, t, dim]
        state: ConvState | None = None,
        *,
        starts: Starts | None = None,
        lengths: Lengths | None = None,
    ) -> tuple[Tensor, ConvState]:
        return short_convolution(x, self.weight, state, starts, lengths)

    def extra_repr(self) -> str:
        dim, size = self.weight.shape
        return f"{dim}, size={size}"


def short_convolution(
    x: Tensor,  # [b, t, dim]
    weight: Tensor,  # [dim, size]
    state: ConvState | None,
    starts: Starts | None,
    lengths: Lengths | None,
) -> tuple[Tensor, ConvState]:
    """y_t = sum_{j < size} weight[:, j] * x_{t-j}, within the document of token t."""
    older = weight.shape[1] - 1
    tail = x.new_zeros(x.shape[0], older, x.shape[2]) if state is None else state.tail
    inputs = torch.cat([tail.to(x.dtype), x], dim=1)
    last = row_tail(inputs, older, lengths)
    if starts is None:
        return _convolve(inputs, weight.to(x.dtype)), ConvState(last)
    document = F.pad(document_ids(starts), (older, 0))
    last_document = row_tail(document, older, lengths)
    kept = (last_document == last_document[:, -1:]).to(x.dtype)
    outputs = _convolve_within(inputs, weight.to(x.dtype), document)
    return outputs, ConvState(last * kept[:, :, None])


def _convolve(inputs: Tensor, weight: Tensor) -> Tensor:
    kernel = weight.flip(1)[:, None]
    if inputs.shape[1] == weight.shape[1]:  # one token: conv1d takes longer to set up than to run
        return (inputs * kernel[:, 0].mT).sum(dim=1, keepdim=True)
    return F.conv1d(inputs.transpose(1, 2), kernel, groups=len(kernel)).transpose(1, 2)


def _convolve_within(inputs: Tensor, weight: Tensor, document: Tensor) -> Tensor:
    """The same, where an input of another document counts as zero."""
    older = weight.shape[1] - 1
    time = inputs.shape[1] - older
    outputs = inputs[:, older:] * weight[:, 0]
    for j in range(1, older + 1):
        earlier = slice(older - j, older - j + time)
        same = (document[:, earlier] == document[:, older:]).to(inputs.dtype)
        outputs = outputs + inputs[:, earlier] * same[:, :, None] * weight[:, j]
    return outputs
