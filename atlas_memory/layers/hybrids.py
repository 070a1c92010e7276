"""Memory beside attention and memory under attention: MAG and MAL. [Titans Sec. 4]"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from atlas_memory.layers.documents import Lengths, Starts
from atlas_memory.layers.norms import RMSNorm
from atlas_memory.layers.state import LayerState, State


@dataclass(frozen=True)
class HybridState(LayerState):
    memory: State
    attention: State


class MemoryAsGate(nn.Module):
    """MAG: o = norm(attention(x)) * sigmoid(norm(memory(x)))."""

    def __init__(self, dim: int, memory: nn.Module, attention: nn.Module) -> None:
        super().__init__()
        self.memory, self.attention = memory, attention
        self.memory_norm, self.attention_norm = RMSNorm(dim), RMSNorm(dim)

    def forward(
        self,
        x: Tensor,  # [b, t, dim]
        state: HybridState | None = None,
        *,
        starts: Starts | None = None,
        lengths: Lengths | None = None,
    ) -> tuple[Tensor, HybridState]:
        memory, attention = _parts(state)
        remembered, memory = self.memory(x, memory, starts=starts, lengths=lengths)
        attended, attention = self.attention(x, attention, starts=starts, lengths=lengths)
        gate = self.memory_norm(remembered).sigmoid()
        return self.attention_norm(attended) * gate, HybridState(memory, attention)


class MemoryAsLayer(nn.Module):
    """MAL: o = attention(norm(memory(x)))."""

    def __init__(self, dim: int, memory: nn.Module, attention: nn.Module) -> None:
        super().__init__()
        self.memory, self.attention = memory, attention
        self.norm = RMSNorm(dim)

    def forward(
        self,
        x: Tensor,  # [b, t, dim]
        state: HybridState | None = None,
        *,
        starts: Starts | None = None,
        lengths: Lengths | None = None,
    ) -> tuple[Tensor, HybridState]:
        memory, attention = _parts(state)
        remembered, memory = self.memory(x, memory, starts=starts, lengths=lengths)
        inner = self.norm(remembered)
        attended, attention = self.attention(inner, attention, starts=starts, lengths=lengths)
        return attended, HybridState(memory, attention)


def _parts(state: HybridState | None) -> tuple[State | None, State | None]:
    return (None, None) if state is None else (state.memory, state.attention)
