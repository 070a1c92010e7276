"""MesaLayer: the least-squares memory between the projections of every memory layer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from atlas_memory.layers.documents import Lengths, Starts
from atlas_memory.layers.projections import Projections, ReadOut
from atlas_memory.layers.short_conv import ConvState
from atlas_memory.layers.state import LayerState
from atlas_memory.memory.mesa import MesaState, mesa


@dataclass(frozen=True)
class MesaLayerState(LayerState):
    memory: MesaState
    conv: ConvState

    def save(self, path: str | Path) -> None:
        from safetensors.torch import save_file

        parts = {"G": self.memory.G, "R": self.memory.R, "conv.tail": self.conv.tail}
        save_file({name: x.detach().contiguous() for name, x in parts.items()}, path)

    @classmethod
    def load(cls, path: str | Path) -> MesaLayerState:
        from safetensors.torch import load_file

        parts = load_file(path)
        if sorted(parts) != ["G", "R", "conv.tail"]:
            raise ValueError(f"{path} holds {sorted(parts)}, not the G, R and conv.tail of a Mesa")
        return cls(MesaState(parts["G"], parts["R"]), ConvState(parts["conv.tail"]))


class MesaLayer(nn.Module):
    """The least-squares fit of all pairs so far as a sequence mixer, with a learned ridge.

    Nothing is forgotten (alpha = 1): under a decay the inverse grows without end in directions
    that no key visits any more.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.projections = Projections(dim, heads)
        self.log_ridge = nn.Parameter(torch.empty(heads))
        self.read_out = ReadOut(dim, heads)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.log_ridge)

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
        ridge = self.log_ridge.to(q.dtype).exp()
        alpha = q.new_ones(q.shape[:3])
        y, memory = mesa(q, k, v, alpha, ridge, past, starts=starts, lengths=lengths)
        return self.read_out(x, y), MesaLayerState(memory, conv)
