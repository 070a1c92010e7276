"""Newton-Schulz: the nearest semi-orthogonal matrix, by matrix products alone.   [Atlas Eq. 40]"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from atlas_memory.memory.graphs import OwnBackward

KELLER = (3.4445, -4.7750, 2.0315)


def newton_schulz(
    S: Tensor, steps: int, coefficients: tuple[float, float, float] = KELLER
) -> Tensor:
    """NS_k(S) for S [.., out, in], all leading axes at once.

        X = S / (||S||_F + 1e-7);  k times  X <- aX + (bA + cA^2) X,  A = X X^T on the short side

    Every iterate is a polynomial of the Gram matrix times S, X = Q(SS^T) S, so where S is long the
    loop runs on m x m matrices (m the short side) and S is multiplied once: exact, and cheaper.
    """
    if S.shape[-2] > S.shape[-1]:
        return newton_schulz(S.mT, steps, coefficients).mT
    X = S / (torch.linalg.vector_norm(S, dim=(-2, -1), keepdim=True) + 1e-7)
    if steps == 0:
        return X
    X = X.reshape(-1, *S.shape[-2:])
    iterate = _direct if S.shape[-1] <= 2 * S.shape[-2] else _by_gram
    return iterate(X, steps, *coefficients).reshape(S.shape)


class _Direct(OwnBackward):
    """X <- aX + BX, B = bA + cA^2, A = XX^T, and its backward with A and B symmetric."""

    @staticmethod
    def forward(ctx: Any, X: Tensor, steps: int, *coefficients: float) -> Tensor:
        (a, b, c), kept = coefficients, []
        for _ in range(steps):
            A = torch.bmm(X, X.mT)
            B = torch.baddbmm(A, A, A, beta=b, alpha=c)
            kept += [X, A, B]
            X = torch.baddbmm(X, B, X, beta=a)
        ctx.coefficients = coefficients
        ctx.save_for_backward(*kept)
        return X

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dX: Tensor) -> tuple[Tensor | None, ...]:
        (a, b, c), kept = ctx.coefficients, ctx.saved_tensors
        for i in reversed(range(0, len(kept), 3)):
            X, A, B = kept[i : i + 3]
            dB = torch.bmm(dX, X.mT)
            dB = dB + dB.mT
            dA = torch.baddbmm(dB, A, dB, beta=b / 2, alpha=c)
            dX = torch.baddbmm(dX, B, dX, beta=a).baddbmm_(dA + dA.mT, X)
        return dX, *(None,) * 4


def _direct(X: Tensor, steps: int, *coefficients: float) -> Tensor:
    made: Tensor = _Direct.run(X, steps, *coefficients)
    return made


def _by_gram(X: Tensor, steps: int, a: float, b: float, c: float) -> Tensor:
    """Q with NS_k(X) = Q X, from A = X X^T. Q and A commute, so A <- P A P follows X <- P X."""
    A = torch.bmm(X, X.mT)
    Q = None
    for step in range(steps):
        P = torch.baddbmm(A, A, A, beta=b, alpha=c)  # without the a on its diagonal
        Q = P if Q is None else torch.baddbmm(Q, P, Q, beta=a)
        if step == 0:
            Q = P + a * torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
        if step + 1 < steps:
            half = torch.baddbmm(A, P, A, beta=a)
            A = torch.baddbmm(half, half, P, beta=a)
    assert Q is not None
    return torch.bmm(Q, X)
