"""Memory beside attention and memory under attention: MAG and MAL. [Titans Sec. 4]"""

from dataclasses import dataclass

from torch import Tensor, nn

from atlas_memory.layers.projections import RMSNorm
from atlas_memory.layers.rows import Lengths, Starts
from atlas_memory.memory.tree import State


@dataclass(frozen=True, repr=False)
class HybridState(State):
    memory: State
    attention: State


class Hybrid(nn.Module):
    """Abstract: a memory and an attention, each with its state; two answers become one."""

    def __init__(self, memory: nn.Module, attention: nn.Module) -> None:
        super().__init__()
        self.memory, self.attention = memory, attention

    def forward(
        self,
        x: Tensor,  # [b, t, dim]
        state: HybridState | None = None,
        *,
        starts: Starts | None = None,
        lengths: Lengths | None = None,
    ) -> tuple[Tensor, HybridState]:
        memory, attention = (None, None) if state is None else (state.memory, state.attention)
        remembered, memory = self.memory(x, memory, starts=starts, lengths=lengths)
        seen = self.attended(x, remembered)
        attended, attention = self.attention(seen, attention, starts=starts, lengths=lengths)
        return self.combined(remembered, attended), HybridState(memory, attention)

    def attended(self, x: Tensor, remembered: Tensor) -> Tensor:
        """What the attention sees of a token and of what the memory says of it."""
        return x

    def combined(self, remembered: Tensor, attended: Tensor) -> Tensor:
        raise NotImplementedError


COMBINATIONS = ("product", "sum")


class MemoryAsGate(Hybrid):
    """MAG: o = norm(attention(x)) * sigmoid(norm(memory(x))), or attention(x) + memory(x)."""

    def __init__(
        self, dim: int, memory: nn.Module, attention: nn.Module, combine: str = "product"
    ) -> None:
        super().__init__(memory, attention)
        if combine not in COMBINATIONS:
            raise ValueError(f"combine={combine!r}; choose from: {', '.join(COMBINATIONS)}")
        product = combine == "product"
        self.memory_norm = RMSNorm(dim) if product else None
        self.attention_norm = RMSNorm(dim) if product else None

    def combined(self, remembered: Tensor, attended: Tensor) -> Tensor:
        if self.memory_norm is None or self.attention_norm is None:
            return attended + remembered
        return self.attention_norm(attended) * self.memory_norm(remembered).sigmoid()


class MemoryAsLayer(Hybrid):
    """MAL: o = attention(norm(memory(x))), or m + attention(norm(x + m)) with the token kept.

    residual: without it what the memory m does not say of a token is lost to the attention.
    """

    def __init__(
        self, dim: int, memory: nn.Module, attention: nn.Module, residual: bool = False
    ) -> None:
        super().__init__(memory, attention)
        self.residual, self.norm = residual, RMSNorm(dim)

    def attended(self, x: Tensor, remembered: Tensor) -> Tensor:
        return self.norm(x + remembered if self.residual else remembered)

    def combined(self, remembered: Tensor, attended: Tensor) -> Tensor:
        return remembered + attended if self.residual else attended
