"""Attentional biases l: what the memory minimizes while it reads.   [Atlas Eq. 3, 44]

Each bias gives its loss and its surprise, the gradient dl/dy at the memory's answer y = M(phi(k)).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


class AttentionalBias:
    """What the engine and the layers ask of a bias, besides `loss` and `surprise`.

    hebbian: the surprise is -v, whatever the memory answers. linear: it is linear in the answer, so
    that a step can be solved exactly. power: the loss grows as the error to this power. longest: of
    the surprise, for values of length one; None where it has no bound.
    """

    hebbian = False
    linear = False

    @property
    def power(self) -> float:
        return 2.0

    @property
    def longest(self) -> float | None:
        return None


@dataclass(frozen=True)
class DotProduct(AttentionalBias):
    """l = -<y, v>, the Hebbian rule.   [Atlas Eq. Hebbian Rule] [Atlas Eq. 45, 46, 49]

    Differs from the paper: the minus sign, without which descent would unlearn the pair.
    """

    hebbian = True
    linear = True

    @property
    def longest(self) -> float:
        return 1.0

    def loss(self, y: Tensor, v: Tensor) -> Tensor:
        return -(y * v).sum(dim=-1)

    def surprise(self, y: Tensor, v: Tensor) -> Tensor:
        return -v


@dataclass(frozen=True)
class L2(AttentionalBias):
    """l = 1/2 ||y - v||^2, so that eta is the delta rule's beta.   [Atlas Eq. 47]"""

    linear = True

    def loss(self, y: Tensor, v: Tensor) -> Tensor:
        return (y - v).square().sum(dim=-1) / 2

    def surprise(self, y: Tensor, v: Tensor) -> Tensor:
        return y - v


@dataclass(frozen=True)
class Lp(AttentionalBias):
    """l = 1/p ||y - v||_p^p.   [Miras: Moneta]"""

    p: float = 3.0

    def __post_init__(self) -> None:
        if self.p < 1:
            raise ValueError(f"p={self.p}: Lp needs p >= 1, below it the loss is not convex")

    @property
    def power(self) -> float:
        return self.p

    def loss(self, y: Tensor, v: Tensor) -> Tensor:
        return (y - v).abs().pow(self.p).sum(dim=-1) / self.p

    def surprise(self, y: Tensor, v: Tensor) -> Tensor:
        e = y - v
        # e |e|^(p-2); the clamp keeps the derivative finite at e = 0 when p < 2
        return e * e.abs().clamp(min=1e-8).pow(self.p - 2)


@dataclass(frozen=True)
class Huber(AttentionalBias):
    """The vector Huber loss: the surprise is never longer than delta.   [Miras: Yaad]

    l = 1/2 ||e||^2 inside ||e|| <= delta, delta (||e|| - delta/2) outside, e = y - v.
    """

    delta: float = 1.0

    def __post_init__(self) -> None:
        if self.delta <= 0:
            raise ValueError(f"delta={self.delta}: Huber needs delta > 0")

    @property
    def longest(self) -> float:
        return self.delta

    def loss(self, y: Tensor, v: Tensor) -> Tensor:
        squared = (y - v).square().sum(dim=-1)
        outside = self.delta * squared.clamp(min=self.delta**2).sqrt() - self.delta**2 / 2
        return torch.where(squared <= self.delta**2, squared / 2, outside)

    def surprise(self, y: Tensor, v: Tensor) -> Tensor:
        e = y - v
        squared = e.square().sum(dim=-1, keepdim=True)
        return e * (self.delta * squared.clamp(min=self.delta**2).rsqrt())


Bias = DotProduct | L2 | Lp | Huber

BIASES: dict[str, Callable[..., Bias]] = {
    "dot_product": DotProduct,
    "l2": L2,
    "lp": Lp,
    "huber": Huber,
}
