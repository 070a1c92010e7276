"""MesaLayer: the least-squares memory between the projections of every memory layer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from atlas_memory.layers.gates import gate_logits
from atlas_memory.layers.projections import ConvState, Projections, ReadOut
from atlas_memory.layers.rows import Lengths, Starts
from atlas_memory.memory.mesa import MesaState, mesa
from atlas_memory.memory.tree import State

SMALLEST_RIDGE = 0.01  # keeps the solve well-posed whatever the outer training does


@dataclass(frozen=True, repr=False)
class MesaLayerState(State):
    memory: MesaState
    conv: ConvState

    def save(self, path: str | Path) -> None:
        from safetensors.torch import save_file

        memory = self.memory
        parts = {"G": memory.G, "H": memory.H, "ridge": memory.ridge, "conv.tail": self.conv.tail}
        save_file({name: x.detach().contiguous() for name, x in parts.items()}, path)

    @classmethod
    def load(cls, path: str | Path) -> MesaLayerState:
        from safetensors.torch import load_file

        parts = load_file(path)
        if sorted(parts) != ["G", "H", "conv.tail", "ridge"]:
            raise ValueError(f"{path} holds {sorted(parts)}, not G, H, conv.tail and ridge")
        memory = MesaState(parts["G"], parts["H"], parts["ridge"])
        return cls(memory, ConvState(parts["conv.tail"]))


class MesaLayer(nn.Module):
    """The least-squares fit of all pairs so far as a sequence mixer, with a learned ridge."""

    def __init__(self, dim: int, heads: int, *, designed_heads: str = "half") -> None:
        super().__init__()
        self.heads = heads
        self.projections = Projections(dim, heads, designed_heads)
        self.log_ridge = nn.Parameter(torch.empty(heads))
        self.weight = nn.Parameter(torch.empty(heads, dim))
        self.bias = nn.Parameter(torch.empty(heads))
        self.read_out = ReadOut(dim, heads)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """alpha starts near 1, lambda at 1."""
        self.read_out.undo(self.projections)
        nn.init.zeros_(self.log_ridge)
        nn.init.normal_(self.weight, std=0.02)
        nn.init.constant_(self.bias, 6.0)

    def forward(
        self,
        x: Tensor,  # [b, t, dim]
        state: MesaLayerState | None = None,
        *,
        starts: Starts | None = None,
        lengths: Lengths | None = None,
    ) -> tuple[Tensor, MesaLayerState]:
        older = None if state is None else state.conv
        (q, k, v), conv = self.projections(x, older, starts, lengths)
        past = None if state is None else state.memory
        ridge = self.log_ridge.to(q.dtype).exp() + SMALLEST_RIDGE
        alpha = gate_logits(x, self.weight, self.bias).sigmoid().transpose(1, 2)
        y, memory = mesa(q, k, v, alpha, ridge, past, starts=starts, lengths=lengths, check=False)
        return self.read_out(x, y), MesaLayerState(memory, conv)
