"""Functions learned online by a small MLP: one pair, one step.   [Atlas Sec. 6.4]

Differs from the paper, whose text has four slips: the loss compares M(i_j) with o_j, v_j uses W_V,
setting 3 maps o'_j, and the network that makes the data (g) is not the one that learns (M).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu

from atlas_memory.memory.optimizers import newton_schulz

Pairs = tuple[Tensor, Tensor]
ROWS = 256  # of the attention matrix that are held at once


@dataclass(frozen=True)
class Sizes:
    """length T, dimension d, rank k of the low-rank map, window of the sliding attention."""

    length: int
    dim: int
    rank: int
    window: int


def _random(out: int, inner: int, generator: torch.Generator) -> Tensor:
    return torch.randn(out, inner, generator=generator) / math.sqrt(inner)


def _teacher(d: int, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
    """g: one hidden layer of width d, GELU."""
    first, second = _random(d, d, generator), _random(d, d, generator)
    return lambda x: gelu(x @ first.mT) @ second.mT


def attend(q: Tensor, k: Tensor, v: Tensor, window: int | None = None) -> Tensor:
    """Causal softmax attention at scale 1/sqrt(d), `window` pairs back, in blocks of rows."""
    blocks = []
    for first in range(0, len(q), ROWS):
        last = min(first + ROWS, len(q))
        scores = q[first:last] @ k[:last].mT / math.sqrt(q.shape[-1])
        age = torch.arange(first, last)[:, None] - torch.arange(last)
        hidden = age < 0 if window is None else (age < 0) | (age >= window)
        blocks.append(scores.masked_fill(hidden, -math.inf).softmax(-1) @ v[:last])
    return torch.cat(blocks)


def draw_pairs(mapping: str, sizes: Sizes, seed: int) -> Pairs:
    """Inputs i [T, d] and outputs o [T, d] of one of MAPPINGS."""
    generator = torch.Generator().manual_seed(seed)
    i = torch.randn(sizes.length, sizes.dim, generator=generator)
    return MAPPINGS[mapping](i, sizes, generator)


def _low_rank(i: Tensor, sizes: Sizes, generator: torch.Generator) -> Pairs:
    down = _random(sizes.rank, sizes.dim, generator)
    up = _random(sizes.dim, sizes.rank, generator)
    return i, i @ down.mT @ up.mT


def _mlp(i: Tensor, sizes: Sizes, generator: torch.Generator) -> Pairs:
    return i, _teacher(sizes.dim, generator)(i)


def _attended(
    i: Tensor, sizes: Sizes, generator: torch.Generator, window: int | None = None
) -> Pairs:
    """o' = attention over i, o = g(o')."""
    q, k, v = (i @ _random(sizes.dim, sizes.dim, generator).mT for _ in range(3))
    middle = attend(q, k, v, window)
    return middle, _teacher(sizes.dim, generator)(middle)


def _attention_mlp(i: Tensor, sizes: Sizes, generator: torch.Generator) -> Pairs:
    return i, _attended(i, sizes, generator)[1]


def _attention_as_input(i: Tensor, sizes: Sizes, generator: torch.Generator) -> Pairs:
    return _attended(i, sizes, generator)


def _sliding(i: Tensor, sizes: Sizes, generator: torch.Generator) -> Pairs:
    return i, _attended(i, sizes, generator, sizes.window)[1]


MAPPINGS: dict[str, Callable[[Tensor, Sizes, torch.Generator], Pairs]] = {
    "1 low rank": _low_rank,
    "2 MLP": _mlp,
    "3 attention + MLP": _attention_mlp,
    "4 attention as input": _attention_as_input,
    "5 sliding attention + MLP": _sliding,
}


# ---- the learner ---------------------------------------------------------------------------------


def learner(dim: int, hidden_layers: int, expansion: int, seed: int) -> list[Tensor]:
    """Matrices [out, in] of a plain MLP without biases."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [dim, *[expansion * dim] * hidden_layers, dim]
    drawn = [_random(out, inner, generator) for inner, out in pairwise(sizes)]
    return [W.requires_grad_() for W in drawn]


def answer(weights: list[Tensor], x: Tensor) -> Tensor:
    for layer, W in enumerate(weights):
        x = (gelu(x) if layer else x) @ W.mT
    return x


class Muon(torch.optim.Optimizer):
    """S <- momentum S + g, W <- W - lr NS_5(S): the inner rule of Atlas as an optimizer.

    S advances with every pair, W with every `period`-th one.
    """

    def __init__(self, params: list[Tensor], lr: float, period: int = 8) -> None:
        super().__init__(params, {"lr": lr, "momentum": 0.9, "period": period})
        self.taken = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        self.taken += 1
        for group in self.param_groups:
            for W in group["params"]:
                S = self.state[W].setdefault("S", torch.zeros_like(W))
                S.mul_(group["momentum"]).add_(W.grad)
                if self.taken % group["period"] == 0:
                    W.sub_(newton_schulz(S, 5), alpha=group["lr"])


@dataclass(frozen=True)
class Rule:
    """An optimizer, and how many of the last pairs the loss of a step sums over."""

    optimizer: Callable[[list[Tensor], float], torch.optim.Optimizer]
    window: int = 1


RULES = {
    "SGD": Rule(lambda W, lr: torch.optim.SGD(W, lr=lr, fused=True)),
    "RMSprop": Rule(lambda W, lr: torch.optim.RMSprop(W, lr=lr, foreach=True)),
    "Adam": Rule(lambda W, lr: torch.optim.Adam(W, lr=lr, fused=True)),
    "Omega 4": Rule(lambda W, lr: torch.optim.SGD(W, lr=lr, fused=True), window=4),
    "Omega 16": Rule(lambda W, lr: torch.optim.SGD(W, lr=lr, fused=True), window=16),
    "Muon": Rule(Muon),
    "Omega 16 + Muon": Rule(Muon, window=16),
}


def learn(pairs: Pairs, weights: list[Tensor], rule: Rule, rate: float) -> Tensor:
    """loss_j = ||M(i_j) - o_j||^2 / ||o_j||^2 before step j; infinite once it diverges.

    The loss of a step is the sum over the last `rule.window` pairs; what is recorded is the last.
    """
    inputs, outputs = pairs
    scales = 1 / (outputs**2).sum(-1)
    optimizer = rule.optimizer(weights, rate)
    losses = torch.full((len(inputs),), math.inf)
    for j in range(len(inputs)):
        seen = slice(max(0, j + 1 - rule.window), j + 1)
        each = ((answer(weights, inputs[seen]) - outputs[seen]) ** 2).sum(-1) * scales[seen]
        losses[j] = each[-1].detach()
        if not losses[j] < 1e6:
            losses[j:] = math.inf
            break
        optimizer.zero_grad(set_to_none=True)
        each.sum().backward()
        optimizer.step()
    return losses
