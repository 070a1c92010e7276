"""Zoology's network: two layers without feed-forward networks, the head tied to the embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from atlas_memory.config import AtlasConfig
from atlas_memory.layers.mamba2 import Mamba2State
from atlas_memory.layers.memory_layer import MemoryLayerState
from atlas_memory.memory.tree import State

if TYPE_CHECKING:
    from atlas_memory.experiments.mqar import Cell

KERNEL = 3


class BaseConv(nn.Module):
    """A causal depthwise convolution of three tokens times a linear gate."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(dim, dim, KERNEL, groups=dim, padding=KERNEL - 1)
        self.gate = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.conv(x.mT)[:, :, : x.shape[1]].mT
        gated: Tensor = mixed * self.gate(x)
        return gated


class Recaller(nn.Module):
    """Embedding, pre-norm mixers on residual paths, norm, and the embedding again as the head.

    base_conv: the first layer is a BaseConv and the mixer under test is alone in the second.
    """

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        dim, config = cell.dim, _config(cell)
        self.first = BaseConv(dim) if cell.base_conv else None
        self.embedding = nn.Embedding(cell.vocabulary, dim)
        self.mixers = nn.ModuleList(m.build(config.width) for m in config.mixer_of_layer())
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        """What the head reads, [b, t, dim]."""
        return self._read(ids)[0]

    def head(self, hidden: Tensor) -> Tensor:
        return hidden @ self.embedding.weight.mT

    def _read(self, ids: Tensor) -> tuple[Tensor, list[State]]:
        x, states, norms = self.embedding(ids), [], iter(self.norms)
        if self.first is not None:
            x = x + self.first(next(norms)(x))
        for mixer in self.mixers:
            y, state = mixer(next(norms)(x))
            x = x + y
            states.append(state)
        return next(norms)(x), states

    @torch.no_grad()
    def sizes(self, length: int) -> dict[str, int]:
        """Bytes after `length` tokens of one sequence.

        state: all that is carried on. memory: matrices and momentum alone, or the cache.
        """
        ids = torch.zeros(1, length, dtype=torch.int64, device=self.embedding.weight.device)
        states = self._read(ids)[1]
        first = 0 if self.first is None else KERNEL * self.embedding.weight[0].nbytes
        return {
            "state": first + sum(state.num_bytes for state in states),
            "memory": sum(map(_memory_bytes, states)),
        }


def _memory_bytes(state: State) -> int:
    if isinstance(state, MemoryLayerState | Mamba2State):
        return sum(x.nbytes for x in (*state.memory.start, *state.memory.start_momentum))
    return state.num_bytes


def _config(cell: Cell) -> AtlasConfig:
    config = AtlasConfig.from_variant(
        cell.variant,
        size="tiny",
        hidden_size=cell.dim,
        num_hidden_layers=1 if cell.base_conv else 2,
        num_attention_heads=cell.heads,
        designed_heads=cell.designed_heads,
    )
    if config.memory is not None and "expansion" in config.memory["architecture"]:
        config.memory["architecture"]["expansion"] = cell.expansion
    return config
