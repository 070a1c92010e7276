"""Short causal depthwise convolution in front of keys, queries and values. [Atlas Sec. 5]"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atlas_memory.layers.documents import Lengths, Starts, document_ids, row_tail
from atlas_memory.layers.state import LayerState


@dataclass(frozen=True)
class ConvState(LayerState):
    """The last size - 1 inputs of each row; zeros stand for inputs that do not exist."""

    tail: Tensor  # [b, s, dim]


class ShortConv(nn.Module):
    """y_t = sum_{j < size} weight[:, j] * x_{t-j}, within the document of token t."""

    def __init__(self, dim: int, size: int = 4, bias: bool = False) -> None:
        super().__init__()
        if size < 2:
            raise ValueError(f"a short convolution needs size >= 2, got {size}")
        self.size = size
        self.weight = nn.Parameter(torch.empty(dim, size))
        self.bias = nn.Parameter(torch.zeros(dim)) if bias else None
        nn.init.uniform_(self.weight, -(size**-0.5), size**-0.5)

    def forward(
        self,
        x: Tensor,  # [b, t, dim]
        state: ConvState | None = None,
        *,
        starts: Starts | None = None,
        lengths: Lengths | None = None,
    ) -> tuple[Tensor, ConvState]:
        older = self.size - 1
        tail = x.new_zeros(x.shape[0], older, x.shape[2]) if state is None else state.tail
        inputs = torch.cat([tail.to(x.dtype), x], dim=1)
        if starts is None:
            return self._convolve(inputs), ConvState(row_tail(inputs, older, lengths))
        document = F.pad(document_ids(starts), (older, 0))
        last = row_tail(inputs, older, lengths)
        return self._convolve_within(inputs, document), ConvState(
            last * self._of_last_document(document, lengths).to(x.dtype)
        )

    def _convolve(self, inputs: Tensor) -> Tensor:
        kernel = self.weight.flip(1)[:, None].to(inputs.dtype)
        bias = None if self.bias is None else self.bias.to(inputs.dtype)
        outputs = F.conv1d(inputs.transpose(1, 2), kernel, bias, groups=kernel.shape[0])
        return outputs.transpose(1, 2)

    def _convolve_within(self, inputs: Tensor, document: Tensor) -> Tensor:
        """The same, where an input of another document counts as zero."""
        time = inputs.shape[1] - self.size + 1
        weight = self.weight.to(inputs.dtype)
        outputs = torch.zeros_like(inputs[:, self.size - 1 :])
        for j in range(self.size):
            begin = self.size - 1 - j
            same = document[:, begin : begin + time] == document[:, self.size - 1 :]
            outputs = outputs + inputs[:, begin : begin + time] * same[:, :, None] * weight[:, j]
        return outputs if self.bias is None else outputs + self.bias.to(inputs.dtype)

    def _of_last_document(self, document: Tensor, lengths: Tensor | None) -> Tensor:
        """Which of the tail's entries belong to the row's last document."""
        tail = row_tail(document[:, :, None], self.size - 1, lengths)
        return tail == tail[:, -1:]

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, size={self.size}, bias={self.bias is not None}"
