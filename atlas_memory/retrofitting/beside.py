"""A memory beside a pretrained attention, and what the attention itself may learn."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atlas_memory.layers.memory_layer import MemoryLayer
from atlas_memory.memory.spec import MemorySpec
from atlas_memory.retrofitting.reading import Reading

MAPS = ("q_proj", "k_proj", "v_proj", "o_proj")


class MemoryBeside(nn.Module):
    """y = attention(x) + gate * memory(x), a gate for every channel, 0 at first.

    A memory beside attention is often asked for what it never read, and must then be able to say
    nothing: answers shorter than the values it wrote, which have length 1, stay short.
    """

    def __init__(self, attention: Any, dim: int, heads: int, spec: MemorySpec) -> None:
        super().__init__()
        self.attention = attention
        self.layer: int = attention.layer_idx
        self.memory = MemoryLayer(dim, heads, spec, floor=heads / dim)
        self.gate = nn.Parameter(torch.empty(dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.gate)

    def forward(
        self, hidden_states: Tensor, reading: Reading, **given: Any
    ) -> tuple[Tensor, Tensor | None]:
        attended, maps = self.attention(hidden_states=hidden_states, reading=reading, **given)
        remembered = reading.remember(self.layer, self.memory, hidden_states)
        return attended + self.gate * remembered, maps

    @torch.no_grad()
    def start_from_attention(self) -> None:
        """The memory's maps as copies of the attention's, so that keys mean something at once.

        A head of the memory is a part of a head of the attention; where attention shares keys
        and values between heads, they are repeated. Biases stay behind.
        """
        part, dim = self.memory.head_dim, self.gate.shape[0]
        width: Any = self.attention.head_dim
        q, k, v, o = (getattr(self.attention, name).weight for name in MAPS)
        rows = torch.arange(dim, device=q.device)
        number = rows // part  # of the memory's head
        queries = len(q) // part
        chosen = number * queries // (dim // part)  # of all parts of the attention's heads
        of_query = chosen * part + rows % part
        group = len(q) // len(k)
        of_key = of_query // width // group * width + of_query % width
        own = self.memory.projections
        own.q_proj.weight.copy_(q[of_query])
        own.k_proj.weight.copy_(k[of_key])
        own.v_proj.weight.copy_(v[of_key])
        self.memory.read_out.out_proj.weight.copy_(o[:, of_query])


class LowRank(nn.Linear):
    """W x + up down x: a pretrained map that learns in `rank` directions. (Hu et al. 2021)"""

    def __init__(self, linear: nn.Linear, rank: int) -> None:
        super().__init__(linear.in_features, linear.out_features, linear.bias is not None)
        self.weight, self.bias = linear.weight, linear.bias
        self.down = nn.Parameter(linear.weight.new_empty(rank, linear.in_features))
        self.up = nn.Parameter(linear.weight.new_empty(linear.out_features, rank))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Of what is added alone: the pretrained map stays as it is."""
        if "up" in self._parameters:
            nn.init.normal_(self.down, std=self.in_features**-0.5)
            nn.init.zeros_(self.up)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + F.linear(F.linear(x, self.down), self.up)

    def plain(self) -> nn.Linear:
        """The pretrained map alone, with the same tensors."""
        linear = nn.Linear(1, 1, bias=self.bias is not None, device="meta")
        linear.in_features, linear.out_features = self.in_features, self.out_features
        linear.weight, linear.bias = self.weight, self.bias
        return linear


def add_low_rank(attention: nn.Module, rank: int) -> None:
    for name in MAPS:
        setattr(attention, name, LowRank(getattr(attention, name), rank))
