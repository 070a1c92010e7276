"""Kernels as functions with a backward pass, by the names of those whose work they do."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from atlas_memory.memory.native.library import call, side_by_side as beside


class Function(torch.autograd.Function):
    """As `graphs.OwnBackward`, which has chosen the kernel already."""

    if TYPE_CHECKING:

        @classmethod
        def apply(cls, *given: Any) -> Any: ...

    @classmethod
    def run(cls, *given: Any) -> Any:
        return cls.apply(*given) if torch.is_grad_enabled() else cls.forward(None, *given)


# ---- products.py ---------------------------------------------------------------------------------


def product(a: Tensor, b: Tensor) -> Tensor:
    out = a.new_empty(a.shape[0], a.shape[1], b.shape[2])
    call("bmm", (a.shape[1], b.shape[2], a.shape[2], 0), a, b, out)
    return out


def onto(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """x + a b in the place of x."""
    call("bmm", (a.shape[1], b.shape[2], a.shape[2], 1), a, b, x)
    return x


class Product(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        if ctx is not None:
            ctx.save_for_backward(a, b)
        return product(a, b)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        a, b = ctx.saved_tensors
        first, second = ctx.needs_input_grad
        return product(g, b.mT) if first else None, product(a.mT, g) if second else None


# ---- omega.py ------------------------------------------------------------------------------------


class Read(Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        inputs: list[Any] = [None if x is None else beside(x) for x in given]
        x, X, d, W, S, A, B, C = inputs
        (g, m, into), n, out = x.shape, X.shape[1], d.shape[2]
        z, scores = x.new_empty(g, m, out), x.new_empty(g, m, n)
        call("read_forward", (m, n, into, out), x, X, d, W, S, A, B, C, z, scores)
        if ctx is not None:
            ctx.save_for_backward(x, X, d, W, S, A, B, C, scores)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, scores = ctx.saved_tensors
        x, X, d = inputs[:3]
        sizes = x.shape[1], X.shape[1], x.shape[2], d.shape[2]
        made = [None if x is None else torch.empty_like(x) for x in inputs]
        call("read_backward", sizes, beside(dz), scores, *inputs, *made)
        return tuple(made)


class Write(Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        carried, X, d, weights = (beside(x) for x in inputs)
        W = torch.empty_like(carried, memory_format=torch.contiguous_format)
        call("write_forward", (X.shape[1], X.shape[2], d.shape[2]), carried, X, d, weights, W)
        if ctx is not None:
            ctx.save_for_backward(X, d, weights)
        return W

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dW: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        X, d, _ = inputs
        sizes = X.shape[1], X.shape[2], d.shape[2]
        made = [torch.empty_like(x) for x in inputs]
        call("write_backward", sizes, beside(dW), *inputs, *made)
        return dW, *made
