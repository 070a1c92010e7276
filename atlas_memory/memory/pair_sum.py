"""The two products of a chunk, with their backward passes written out.

Nearly all the time of a deep memory is spent here. Autograd would scale, copy and add large
intermediates that these passes accumulate in place, always scaling the smaller side of a matrix.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from atlas_memory.memory.graphs import OwnBackward


def read_pairs(
    x: Tensor,
    X: Tensor,
    d: Tensor,
    carried: tuple[Tensor, Tensor | None],
    coefficients: tuple[Tensor, Tensor | None, Tensor],
) -> Tensor:
    """z_t = A_t W x_t + B_t S x_t + sum_i C[t, i] (X_i . x_t) d_i.

    x [g, m, in], X [g, n, in], d [g, n, out]; carried: W, S [g, out, in];
    coefficients: A, B [g, m, 1], C [g, m, n].
    """
    (W, S), (A, B, C) = carried, coefficients
    z: Tensor = _Read.run(x, X, d, W, S, A, B, C)
    return z


def write_pairs(carried: Tensor, X: Tensor, d: Tensor, weights: Tensor) -> Tensor:
    """carried + sum_i weights_i d_i (x) X_i. carried [g, out, in], weights [g, n]."""
    W: Tensor = _Write.run(carried, X, d, weights[..., None])
    return W


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Row by row inner products [g, m, d] -> [g, m, 1]."""
    return (a * b).sum(dim=-1, keepdim=True)


class _Read(OwnBackward):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        x, X, d, W, S, A, B, C = inputs
        scores = torch.bmm(x, X.mT)
        weighted = C * scores
        if W.shape[-1] <= W.shape[-2]:
            z = torch.bmm(A * x, W.mT)
            if S is not None:
                z.baddbmm_(B * x, S.mT)
        else:
            z = torch.bmm(x, W.mT).mul_(A)
            if S is not None:
                z.addcmul_(B, torch.bmm(x, S.mT))
        ctx.save_for_backward(*inputs, scores, weighted)
        return z.baddbmm_(weighted, d)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        x, X, d, W, S, A, B, C, scores, weighted = ctx.saved_tensors
        d_weighted = torch.bmm(dz, d.mT)
        dC = d_weighted * scores
        d_scores = d_weighted.mul_(C)
        dx, dX = torch.bmm(d_scores, X), torch.bmm(d_scores.mT, x)
        dW, dA = _carried_backward(dx, dz, x, W, A)
        dS, dB = (None, None) if S is None else _carried_backward(dx, dz, x, S, B)
        return dx, dX, torch.bmm(weighted.mT, dz), dW, dS, dA, dB, dC


def _carried_backward(
    dx: Tensor, dz: Tensor, x: Tensor, W: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of W and scale for z = scale * (W x); adds that of x to dx."""
    if W.shape[-1] <= W.shape[-2]:
        passed = torch.bmm(dz, W)
        dx.addcmul_(scale, passed)
        return torch.bmm(dz.mT, scale * x), _dot(passed, x)
    scaled = scale * dz
    dx.baddbmm_(scaled, W)
    return torch.bmm(scaled.mT, x), _dot(dz, torch.bmm(x, W.mT))


class _Write(OwnBackward):
    @staticmethod
    def forward(ctx: Any, carried: Tensor, X: Tensor, d: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(X, d, weights)
        if X.shape[-1] <= d.shape[-1]:
            return torch.baddbmm(carried, d.mT, weights * X)
        return torch.baddbmm(carried, (weights * d).mT, X)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dW: Tensor) -> tuple[Tensor, ...]:
        X, d, weights = ctx.saved_tensors
        if X.shape[-1] <= d.shape[-1]:
            passed = torch.bmm(d, dW)
            return dW, weights * passed, torch.bmm(weights * X, dW.mT), _dot(passed, X)
        passed = torch.bmm(X, dW.mT)
        return dW, torch.bmm(weights * d, dW), weights * passed, _dot(passed, d)
