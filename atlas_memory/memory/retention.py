"""Retention: what is kept of the old memory.   [Atlas Eq. 6]

A rule accumulates linearly, L_t = alpha_t L_{t-1} - ..; `weights` maps the accumulator to the
matrices W_t that the network uses, and `accumulator` starts it from W_0. For all but Memora and
Moneta both are the identity.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


class RetentionRule:
    """What the engine and the layers ask of a retention.

    forgets: there is an alpha at all. fixed: one per head, not a function of the token. channel:
    one per token and feature. before_gradient: it decays before the gradient is taken. mapped:
    W is no multiple of L, and is made at every token. positive: W is, and W_0 has to be. steep: W
    grows as L fades.
    """

    forgets = True
    fixed = False
    channel = False
    before_gradient = False
    mapped = False
    positive = False
    steep = False

    def accumulator(self, W: Tensor) -> Tensor:
        return W

    def weights(self, L: Tensor) -> Tensor:
        return L


@dataclass(frozen=True)
class NoRetention(RetentionRule):
    """alpha = 1: nothing is forgotten; gates.alpha must be None."""

    forgets = False


@dataclass(frozen=True)
class FixedRetention(RetentionRule):
    """One alpha per head, not a function of the input. alpha [h].   [RetNet]"""

    fixed = True


@dataclass(frozen=True)
class ScalarRetention(RetentionRule):
    """One alpha per token. alpha [b, h, t].

    before_gradient: the gradient is taken at alpha_t W_{t-1}, as Gated DeltaNet does; it needs
    chunk = 1, for inside a chunk all gradients share one point.
    """

    before_gradient: bool = False


@dataclass(frozen=True)
class ChannelRetention(RetentionRule):
    """One alpha per token and feature, W_{t-1} diag(alpha_t). alpha [b, h, t, D].   [GLA]"""

    channel = True


@dataclass(frozen=True)
class SoftmaxRetention(RetentionRule):
    """L_0 = log W_0, W_t = scale * softmax of L_t over the input axis.   [Miras: Memora]

    The normalizer inside the paper's logarithm cancels, so L accumulates linearly.
    """

    scale: float = 1.0
    mapped = True
    positive = True

    def __post_init__(self) -> None:
        if self.scale <= 0:
            raise ValueError(f"scale={self.scale}: SoftmaxRetention needs scale > 0")

    def accumulator(self, W: Tensor) -> Tensor:
        return W.log()

    def weights(self, L: Tensor) -> Tensor:
        return self.scale * torch.softmax(L, dim=-1)


@dataclass(frozen=True)
class LqRetention(RetentionRule):
    """A_0 = W_0, W_t = A_t / ||A_t||_q^(q-2), the norm over one head's matrix.   [Miras: Moneta]"""

    q: float = 4.0
    mapped = True
    steep = True

    def __post_init__(self) -> None:
        if self.q < 2:
            raise ValueError(f"q={self.q}: LqRetention needs q >= 2")

    def weights(self, L: Tensor) -> Tensor:
        total = L.abs().pow(self.q).sum(dim=(-2, -1), keepdim=True)
        return L * total.clamp(min=1e-30).pow((2 - self.q) / self.q)


Retention = (
    NoRetention
    | FixedRetention
    | ScalarRetention
    | ChannelRetention
    | SoftmaxRetention
    | LqRetention
)

RETENTIONS: dict[str, Callable[..., Any]] = {
    "none": NoRetention,
    "fixed": FixedRetention,
    "scalar": ScalarRetention,
    "channel": ChannelRetention,
    "softmax": SoftmaxRetention,
    "lq": LqRetention,
}
