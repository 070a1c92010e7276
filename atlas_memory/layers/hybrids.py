"""Memory beside attention and memory under attention: MAG and MAL. [Titans Sec. 4]"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from atlas_memory.layers.documents import Lengths, Starts
from atlas_memory.layers.norms import RMSNorm
from atlas_memory.memory.tree import State


@dataclass(frozen=True, repr=False)
class HybridState(State):
    memory: State
    attention: State


COMBINATIONS = ("product", "sum")


class MemoryAsGate(nn.Module):
    """MAG: o = norm(attention(x)) * sigmoid(norm(memory(x))), or attention(x) + memory(x)."""

    def __init__(
        self, dim: int, memory: nn.Module, attention: nn.Module, combine: str = "product"
    ) -> None:
        super().__init__()
        if combine not in COMBINATIONS:
            raise ValueError(f"combine={combine!r}; choose from: {', '.join(COMBINATIONS)}")
        self.memory, self.attention = memory, attention
        product = combine == "product"
        self.memory_norm = RMSNorm(dim) if product else None
        self.attention_norm = RMSNorm(dim) if product else None

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
        after = HybridState(memory, attention)
        if self.memory_norm is None or self.attention_norm is None:
            return attended + remembered, after
        return self.attention_norm(attended) * self.memory_norm(remembered).sigmoid(), after


class MemoryAsLayer(nn.Module):
    """MAL: o = attention(norm(memory(x))), or m + attention(norm(x + m)) with the token kept.

    residual: without it what the memory m does not say of a token is lost to the attention.
    """

    def __init__(
        self, dim: int, memory: nn.Module, attention: nn.Module, residual: bool = False
    ) -> None:
        super().__init__()
        self.memory, self.attention, self.residual = memory, attention, residual
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
        inner = self.norm(x + remembered if self.residual else remembered)
        attended, attention = self.attention(inner, attention, starts=starts, lengths=lengths)
        after = HybridState(memory, attention)
        return (remembered + attended if self.residual else attended), after


def _parts(state: HybridState | None) -> tuple[State | None, State | None]:
    return (None, None) if state is None else (state.memory, state.attention)
