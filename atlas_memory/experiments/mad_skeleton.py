"""MAD's network around any mixer of the package: two blocks of width 128."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from atlas_memory.blocks import Block
from atlas_memory.config import AtlasConfig
from atlas_memory.experiments.fit import device_of
from atlas_memory.layers.projections import RMSNorm

WIDTH, HIDDEN, LAYERS, EPS = 128, 352, 2, 1e-5
# 16 heads of 8 for softmax attention, 8 heads of 16 for a memory: MAD's own choices
ATTENTION = ("attention", "swa", "transformer_plus")
ATTENTION_HEADS = 16


@dataclass(frozen=True)
class Shape:
    """The published one, but for `expansion` (of deep memories), which nobody tells."""

    width: int = WIDTH
    hidden: int = HIDDEN
    layers: int = LAYERS
    memory_heads: int = 8
    expansion: int = 4


def _blocks(variant: str, shape: Shape) -> nn.ModuleList:
    attends = variant in ATTENTION
    config = AtlasConfig.from_variant(
        variant,
        size="tiny",
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=ATTENTION_HEADS if attends else shape.memory_heads,
    )
    if config.memory is not None and "expansion" in config.memory["architecture"]:
        config.memory["architecture"]["expansion"] = shape.expansion
    mixers = [mixer.build(config.width) for mixer in config.mixer_of_layer()]
    return nn.ModuleList(Block(shape.width, shape.hidden, mixer, EPS) for mixer in mixers)


class LanguageModel(nn.Module):
    """Embedding N(0, 0.02), blocks, norm; the head has a bias and is not the embedding."""

    def __init__(self, variant: str, vocabulary: int, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, shape.width)
        self.blocks = _blocks(variant, shape)
        self.norm = RMSNorm(shape.width, EPS)
        self.head = nn.Linear(shape.width, vocabulary)
        nn.init.normal_(self.embedding.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    def forward(self, ids: Tensor) -> Tensor:
        """What the head reads, [b, t, width]."""
        x = self.embedding(ids)
        for block in self.blocks:
            x, _ = block(x)
        normed: Tensor = self.norm(x)
        return normed

    def state_bytes(self, length: int) -> int:
        """What the mixers carry on after `length` tokens of one sequence."""
        return _state_bytes(self.embedding, self.blocks, length)


class AutoEncoder(nn.Module):
    """The last position's vector, and a decoder that says every token from it.

    z + position, then twice norm, linear, GELU; norm; head. All linear layers N(0, 0.02).
    """

    def __init__(self, variant: str, vocabulary: int, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = _blocks(variant, shape)
        parts = [(RMSNorm(width, EPS), nn.Linear(width, width), nn.GELU()) for _ in range(2)]
        self.decoder = nn.Sequential(*(part for three in parts for part in three))
        self.norm = RMSNorm(width, EPS)
        self.head = nn.Linear(width, vocabulary)
        nn.init.normal_(self.embedding.weight, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for block in self.blocks:
            x, _ = block(x)
        position = sinusoids(ids.shape[1], x.shape[2]).to(x)
        normed: Tensor = self.norm(self.decoder(x[:, -1:] + position))
        return normed

    def state_bytes(self, length: int) -> int:
        return _state_bytes(self.embedding, self.blocks, length)


def sinusoids(length: int, width: int) -> Tensor:
    """Fixed positions [length, width]: sines in the even places, cosines in the odd ones."""
    place = torch.arange(length)[:, None]
    rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width))
    waves = torch.stack([torch.sin(place * rate), torch.cos(place * rate)], dim=2)
    return waves.flatten(1)


@torch.no_grad()
def _state_bytes(embedding: nn.Module, blocks: nn.ModuleList, length: int) -> int:
    ids = torch.zeros(1, length, dtype=torch.int64, device=device_of(embedding))
    x, total = embedding(ids), 0
    for block in blocks:
        x, state = block(x)
        total += state.num_bytes
    return total
