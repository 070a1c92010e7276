"""Architectures of the memory M(phi(x); W): the network, written once.   [Atlas App. E]

`forward` is a function of "apply this linear map": the same lines serve a plain matrix (recurrent
form), the sum over a chunk's pairs (chunkwise), a kernel expansion (phi*) or one matrix per token
(Muon). `backward` turns the surprise dl/dy into the rank-one gradients (d, x) of all matrices:
dl/dW_l = sum_i d_i (x) x_i, with d = dl/d(W x).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import pi, sqrt
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import gelu

from atlas_memory.memory.graphs import OwnBackward, scalar
from atlas_memory.memory.native import functions as native
from atlas_memory.memory.native.library import served
from atlas_memory.memory.products import matmul

LinearMap = Callable[[Tensor], Tensor]
Tape = tuple[Tensor, ...]
RankOne = tuple[Tensor, Tensor]
TINY = 1e-30  # at d = 0 the bound has no direction
SMALL = 1e-4  # what keeps the length of a hidden layer of zeros from dividing by nothing


def plain(W: Tensor) -> LinearMap:
    """x -> W x for a matrix stored [.., out, in] and x [.., t, in]."""
    return lambda x: matmul(x, W.mT)


class _ThroughGelu(OwnBackward):
    """gradient * gelu'(z), with gelu''(z) = pdf(z) (2 - z^2) in few passes over memory."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, z: Tensor) -> Tensor:
        ctx.save_for_backward(gradient, z)
        return torch.ops.aten.gelu_backward(gradient, z)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, w: Tensor) -> tuple[Tensor, Tensor]:
        gradient, z = ctx.saved_tensors
        squared = z * z
        curvature = (squared * -0.5).exp_().mul_(w).mul_(gradient)
        curvature.mul_(squared.sub_(2).mul_(-1 / sqrt(2 * pi)))
        return torch.ops.aten.gelu_backward(w, z), curvature


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(dim=-1, keepdim=True)


class _Unit(OwnBackward):
    """h = s / length, length = sqrt(||s||^2 + SMALL)."""

    @staticmethod
    def forward(ctx: Any, s: Tensor) -> tuple[Tensor, Tensor]:
        length = torch.linalg.vector_norm(s, dim=-1, keepdim=True)
        length = torch.hypot(length, scalar(sqrt(SMALL), s.dtype, s.device))
        h = s / length
        ctx.save_for_backward(h, length)
        return h, length

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dh: Tensor, d_length: Tensor) -> Tensor:
        h, length = ctx.saved_tensors
        along = torch.addcmul(_dot(h, dh), d_length, length, value=-1)
        return torch.addcmul(dh, h, along, value=-1).div_(length)


class _ThroughUnit(OwnBackward):
    """(dh - h <h, dh>) / length: the derivative of `_Unit`, and its own."""

    @staticmethod
    def forward(ctx: Any, dh: Tensor, h: Tensor, length: Tensor) -> Tensor:
        along = _dot(h, dh)
        ds = torch.addcmul(dh, h, along, value=-1).div_(length)
        ctx.save_for_backward(dh, h, length, along, ds)
        return ds

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        dh, h, length, along, ds = ctx.saved_tensors
        w = w / length
        back = _dot(h, w)
        d_h = (w * along).addcmul_(dh, back).neg_()
        return torch.addcmul(w, h, back, value=-1), d_h, _dot(ds, w).neg_()


class _Bounded(OwnBackward):
    """d / (1 + ||d||)."""

    @staticmethod
    def forward(ctx: Any, d: Tensor) -> Tensor:
        norm = torch.linalg.vector_norm(d, dim=-1, keepdim=True)
        bounded = d / (1 + norm)
        ctx.save_for_backward(bounded, norm)
        return bounded

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, w: Tensor) -> Tensor:
        bounded, norm = ctx.saved_tensors
        along = _dot(bounded, w).div_(norm.clamp(min=TINY))
        return (w / (1 + norm)).addcmul_(bounded, along, value=-1)


class Architecture(ABC):
    """`inputs` are the positions of the matrices that act on phi(x) itself.

    deep: it has hidden matrices. gated: two of them multiply each other. normalize: the features
    that the output matrix reads have length one at most.
    `hidden` makes the features h that the output matrix W[0] reads, from the maps of the other
    matrices; `back` takes dl/dh through them to dl/d(W x) of each, and `bounded` makes those no
    longer than 1. `forward` and `backward` are the whole network and its rank-one gradients.
    """

    inputs: tuple[int, ...]
    deep = True
    gated = False

    @abstractmethod
    def back(self, tape: Tape, dh: Tensor) -> tuple[Tensor, ...]: ...

    def bounded(self, tape: Tape, dh: Tensor) -> tuple[Tensor, ...]:
        return tuple(_Bounded.run(d) for d in self.back(tape, dh))


@dataclass(frozen=True)
class Matrix(Architecture):
    """M(x) = W phi(x), linear memory, or x + W phi(x). W [dv, D]."""

    residual: bool = False

    inputs = (0,)
    deep = False
    normalize = False

    def shapes(self, features: int, dv: int) -> tuple[tuple[int, int], ...]:
        return ((dv, features),)

    def hidden(self, maps: Sequence[LinearMap], phi: Tensor) -> tuple[Tensor, Tape]:
        return phi, ()

    def back(self, tape: Tape, dh: Tensor) -> tuple[Tensor, ...]:
        return ()

    def forward(self, maps: Sequence[LinearMap], phi: Tensor, x: Tensor) -> tuple[Tensor, Tape]:
        y = maps[0](phi)
        return (y + x if self.residual else y), (phi,)

    def backward(self, W: Sequence[Tensor], tape: Tape, e: Tensor) -> tuple[RankOne, ...]:
        return ((e, tape[0]),)


@dataclass(frozen=True)
class _Deep(Architecture):
    """M(x) = x + W1 h(phi(x)): what the two networks with a hidden layer share.

    normalize: h / sqrt(||h||^2 + 1e-4), written and read, so that a step is the delta rule's.
    """

    expansion: int = 4
    residual: bool = True
    normalize: bool = False

    def __post_init__(self) -> None:
        if self.expansion < 1:
            raise ValueError(
                f"expansion={self.expansion}: the hidden layer needs an expansion of at least 1"
            )

    @abstractmethod
    def activate(self, maps: Sequence[LinearMap], phi: Tensor) -> tuple[Tensor, Tape]:
        """The hidden layer before its normalization, and what `through` needs."""

    @abstractmethod
    def through(self, tape: Tape, ds: Tensor) -> tuple[Tensor, ...]:
        """dl/d(W x) of every hidden matrix from the gradient ds at `activate`."""

    def hidden(self, maps: Sequence[LinearMap], phi: Tensor) -> tuple[Tensor, Tape]:
        s, tape = self.activate(maps, phi)
        if not self.normalize:
            return s, tape
        h, length = _Unit.run(s)
        return h, (h, length, *tape)

    def back(self, tape: Tape, dh: Tensor) -> tuple[Tensor, ...]:
        if not self.normalize:
            return self.through(tape, dh)
        h, length, *rest = tape
        return self.through(tuple(rest), _ThroughUnit.run(dh, h, length))

    def forward(self, maps: Sequence[LinearMap], phi: Tensor, x: Tensor) -> tuple[Tensor, Tape]:
        h, tape = self.hidden(maps[1:], phi)
        y = maps[0](h)
        return (y + x if self.residual else y), (phi, h, *tape)

    def backward(self, W: Sequence[Tensor], tape: Tape, e: Tensor) -> tuple[RankOne, ...]:
        phi, h, *own = tape
        return ((e, h), *((d, phi) for d in self.back(tuple(own), matmul(e, W[0]))))


@dataclass(frozen=True)
class MLP(_Deep):
    """M(x) = x + W1 s(W2 phi(x)), s = GELU. W1 [dv, hidden], W2 [hidden, D].   [Atlas Eq. 42]"""

    inputs = (1,)

    def shapes(self, features: int, dv: int) -> tuple[tuple[int, int], ...]:
        hidden = self.expansion * dv
        return ((dv, hidden), (hidden, features))

    def hidden(self, maps: Sequence[LinearMap], phi: Tensor) -> tuple[Tensor, Tape]:
        z = maps[0](phi)
        if self.normalize and z.dim() == 3 and served((z,)):
            h, length = native.Hidden.run(z)
            return h, (h, length, z)
        return super().hidden([lambda _: z], phi)

    def bounded(self, tape: Tape, dh: Tensor) -> tuple[Tensor, ...]:
        if self.normalize and dh.dim() == 3 and served((dh, *tape)):
            return (native.Taught.run(dh, *tape),)
        return super().bounded(tape, dh)

    def activate(self, maps: Sequence[LinearMap], phi: Tensor) -> tuple[Tensor, Tape]:
        z = maps[0](phi)
        return gelu(z), (z,)

    def through(self, tape: Tape, ds: Tensor) -> tuple[Tensor, ...]:
        return (_ThroughGelu.run(ds, tape[0]),)


@dataclass(frozen=True)
class GatedMLP(_Deep):
    """M(x) = x + W1 (s(W2 phi(x)) * W3 phi(x)), the memory of Atlas++.   [Atlas Eq. 43]"""

    inputs = (1, 2)
    gated = True

    def shapes(self, features: int, dv: int) -> tuple[tuple[int, int], ...]:
        hidden = self.expansion * dv
        return ((dv, hidden), (hidden, features), (hidden, features))

    def activate(self, maps: Sequence[LinearMap], phi: Tensor) -> tuple[Tensor, Tape]:
        z2, z3 = maps[0](phi), maps[1](phi)
        s = gelu(z2)
        return s * z3, (z2, z3, s)

    def through(self, tape: Tape, ds: Tensor) -> tuple[Tensor, ...]:
        z2, z3, s = tape
        return _ThroughGelu.run(ds * z3, z2), ds * s


MemoryArchitecture = Matrix | MLP | GatedMLP

ARCHITECTURES: dict[str, Callable[..., Any]] = {
    "matrix": Matrix,
    "mlp": MLP,
    "gated_mlp": GatedMLP,
}
