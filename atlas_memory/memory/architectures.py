"""Architectures of the memory M(phi(x); W): the network, written once.   [Atlas App. E]

`forward` is a function of "apply this linear map": the same lines serve a plain matrix (recurrent
form), the sum over a chunk's pairs (chunkwise), a kernel expansion (phi*) or one matrix per token
(Muon). `backward` turns the surprise dl/dy into the rank-one gradients (d, x) of all matrices:
dl/dW_l = sum_i d_i (x) x_i, with d = dl/d(W x).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import pi, sqrt
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import gelu

LinearMap = Callable[[Tensor], Tensor]
Tape = tuple[Tensor, ...]
RankOne = tuple[Tensor, Tensor]


def plain(W: Tensor) -> LinearMap:
    """x -> W x for a matrix stored [.., out, in] and x [.., t, in]."""
    return lambda x: x @ W.mT


class _ThroughGelu(torch.autograd.Function):
    """gradient * gelu'(z), with gelu''(z) = pdf(z) (2 - z^2) in few passes over memory."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, z: Tensor) -> Tensor:
        ctx.save_for_backward(gradient, z)
        passed: Tensor = torch.ops.aten.gelu_backward(gradient, z)
        return passed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, w: Tensor) -> tuple[Tensor, Tensor]:
        gradient, z = ctx.saved_tensors
        squared = z * z
        curvature = (squared * -0.5).exp_().mul_(w).mul_(gradient)
        curvature.mul_(squared.sub_(2).mul_(-1 / sqrt(2 * pi)))
        return torch.ops.aten.gelu_backward(w, z), curvature


def _through_gelu(gradient: Tensor, z: Tensor) -> Tensor:
    passed: Tensor = _ThroughGelu.apply(gradient, z)  # type: ignore[no-untyped-call]
    return passed


class Architecture(Protocol):
    """`inputs` are the positions of the matrices that act on phi(x) itself."""

    @property
    def inputs(self) -> tuple[int, ...]: ...
    def shapes(self, features: int, dv: int) -> tuple[tuple[int, int], ...]: ...
    def forward(self, maps: Sequence[LinearMap], phi: Tensor, x: Tensor) -> tuple[Tensor, Tape]: ...
    def backward(self, W: Sequence[Tensor], tape: Tape, e: Tensor) -> tuple[RankOne, ...]: ...


@dataclass(frozen=True)
class Matrix:
    """M(x) = W phi(x), linear memory. W [dv, D]."""

    residual = False
    inputs = (0,)

    def shapes(self, features: int, dv: int) -> tuple[tuple[int, int], ...]:
        return ((dv, features),)

    def forward(self, maps: Sequence[LinearMap], phi: Tensor, x: Tensor) -> tuple[Tensor, Tape]:
        return maps[0](phi), (phi,)

    def backward(self, W: Sequence[Tensor], tape: Tape, e: Tensor) -> tuple[RankOne, ...]:
        return ((e, tape[0]),)


def _require_expansion(expansion: int) -> None:
    if expansion < 1:
        raise ValueError(
            f"expansion={expansion}: the hidden layer needs an expansion of at least 1"
        )


@dataclass(frozen=True)
class MLP:
    """M(x) = x + W1 s(W2 phi(x)), s = GELU. W1 [dv, hidden], W2 [hidden, D].   [Atlas Eq. 42]"""

    expansion: int = 4
    residual: bool = True
    inputs = (1,)

    def __post_init__(self) -> None:
        _require_expansion(self.expansion)

    def shapes(self, features: int, dv: int) -> tuple[tuple[int, int], ...]:
        hidden = self.expansion * dv
        return ((dv, hidden), (hidden, features))

    def forward(self, maps: Sequence[LinearMap], phi: Tensor, x: Tensor) -> tuple[Tensor, Tape]:
        z = maps[1](phi)
        h = gelu(z)
        y = maps[0](h)
        return (y + x if self.residual else y), (phi, z, h)

    def backward(self, W: Sequence[Tensor], tape: Tape, e: Tensor) -> tuple[RankOne, ...]:
        phi, z, h = tape
        return ((e, h), (_through_gelu(e @ W[0], z), phi))


@dataclass(frozen=True)
class GatedMLP:
    """M(x) = x + W1 (s(W2 phi(x)) * W3 phi(x)), the memory of Atlas++.   [Atlas Eq. 43]"""

    expansion: int = 4
    residual: bool = True
    inputs = (1, 2)

    def __post_init__(self) -> None:
        _require_expansion(self.expansion)

    def shapes(self, features: int, dv: int) -> tuple[tuple[int, int], ...]:
        hidden = self.expansion * dv
        return ((dv, hidden), (hidden, features), (hidden, features))

    def forward(self, maps: Sequence[LinearMap], phi: Tensor, x: Tensor) -> tuple[Tensor, Tape]:
        z2, z3 = maps[1](phi), maps[2](phi)
        s = gelu(z2)
        h = s * z3
        y = maps[0](h)
        return (y + x if self.residual else y), (phi, z2, z3, s, h)

    def backward(self, W: Sequence[Tensor], tape: Tape, e: Tensor) -> tuple[RankOne, ...]:
        phi, z2, z3, s, h = tape
        dh = e @ W[0]
        return ((e, h), (_through_gelu(dh * z3, z2), phi), (dh * s, phi))


MemoryArchitecture = Matrix | MLP | GatedMLP

ARCHITECTURES: dict[str, Callable[..., Any]] = {
    "matrix": Matrix,
    "mlp": MLP,
    "gated_mlp": GatedMLP,
}
