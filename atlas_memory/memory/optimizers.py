"""Inner optimizers: how the gradient of the window changes the memory.

`step` is one token of the recurrent form. The chunkwise forms read off the same recurrences what a
whole chunk adds up to (`omega.py`, `chunkwise.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from atlas_memory.memory.graphs import OwnBackward
from atlas_memory.memory.native import functions as native
from atlas_memory.memory.products import baddbmm, baddbmm_, bmm
from atlas_memory.memory.tree import Tensors

SMALLEST = 1e-7  # length below which a matrix has no direction
KELLER = (3.4445, -4.7750, 2.0315)


class InnerOptimizer:
    """What the engine and the layers ask of an optimizer, besides `step`.

    momentum: it carries S. heavy: S holds the steps already taken, and W moves by S itself.
    orthogonal: a step is no sum of pairs, so the matrices are made at every token that steps.
    implicit: the step has a closed form of its own, for which `memorize` shortens eta.
    period: tokens r, 2r, .. of a chunk step.
    """

    momentum = False
    heavy = False
    orthogonal = False
    implicit = False
    period = 1

    @property
    def stepping(self) -> slice:
        """The tokens of a chunk that take the step."""
        return slice(self.period - 1, None, self.period)

    def orthogonalize(self, S: Tensor) -> Tensor:
        """The direction of a step whose gradients add up to S."""
        return S

    def products(self, out: int, into: int) -> int:
        """Multiply-adds of `orthogonalize` for one matrix."""
        return 0


@dataclass(frozen=True)
class TokenGates:
    """The gates of one token, shaped to multiply matrices; `steps` is Muon's period mask."""

    alpha: Tensor
    eta: Tensor
    theta: Tensor
    steps: Tensor


@dataclass(frozen=True)
class GradientDescent(InnerOptimizer):
    """W_t = alpha_t W_{t-1} - eta_t g_t.   [Atlas Eq. 19, 50]"""

    def step(self, L: Tensor, S: Tensor, g: Tensor, gates: TokenGates) -> tuple[Tensor, Tensor]:
        return gates.alpha * L - gates.eta * g, S


@dataclass(frozen=True)
class Implicit(InnerOptimizer):
    """The proximal step on one pair of a linear memory.   [Longhorn]

        W_t = alpha_t W_{t-1} - delta_t (W_{t-1} k - v) k^T,  delta_t = eta_t / (1 + eta_t k . k)

    `memorize` turns eta into delta; what is left is gradient descent.
    """

    implicit = True

    def step(self, L: Tensor, S: Tensor, g: Tensor, gates: TokenGates) -> tuple[Tensor, Tensor]:
        return GradientDescent().step(L, S, g, gates)


@dataclass(frozen=True)
class Momentum(InnerOptimizer):
    """S_t = theta_t S_{t-1} - eta_t g_t,  W_t = alpha_t W_{t-1} + S_t.   [Atlas Eq. 12, 13]"""

    momentum = True
    heavy = True

    def step(self, L: Tensor, S: Tensor, g: Tensor, gates: TokenGates) -> tuple[Tensor, Tensor]:
        S = gates.theta * S - gates.eta * g
        return gates.alpha * L + S, S


@dataclass(frozen=True)
class Muon(InnerOptimizer):
    """S_t = theta_t S_{t-1} + g_t,  W_t = alpha_t W_{t-1} - eta_t NS_k(S_t).   [Atlas Eq. 32, 33]

    Tokens r, 2r, .. of a chunk (r = period) take the step, the others only decay; S advances at
    every token. Differs from the paper's appendix: eta stays outside Newton-Schulz, which would
    swallow it.   [Atlas Eq. 57, 58]
    """

    steps: int = 5
    period: int = 1
    coefficients: tuple[float, float, float] = KELLER
    momentum = True
    orthogonal = True

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError(f"steps={self.steps}: Muon needs 0 or more Newton-Schulz steps")
        if self.period < 1:
            raise ValueError(f"period={self.period}: Muon steps every period >= 1 tokens")
        if len(self.coefficients) != 3:
            raise ValueError(
                f"coefficients={self.coefficients}: Newton-Schulz needs three, (a, b, c)"
            )
        object.__setattr__(self, "coefficients", tuple(self.coefficients))

    @property
    def polynomial(self) -> tuple[int, float, float, float]:
        """How a kernel is told of it."""
        return (self.steps, *self.coefficients)

    def orthogonalize(self, S: Tensor) -> Tensor:
        return newton_schulz(S, self.steps, self.coefficients)

    def products(self, out: int, into: int) -> int:
        """Gram matrix, (4k - 3) products of it, and one with the matrix itself."""
        m, n = sorted((out, into))
        return 2 * m * m * n + max(0, 4 * self.steps - 3) * m**3

    def step(self, L: Tensor, S: Tensor, g: Tensor, gates: TokenGates) -> tuple[Tensor, Tensor]:
        S = gates.theta * S + g
        return gates.alpha * L - gates.steps * gates.eta * self.orthogonalize(S), S


# ---- Newton-Schulz -------------------------------------------------------------------------------


def newton_schulz(
    S: Tensor, steps: int, coefficients: tuple[float, float, float] = KELLER
) -> Tensor:
    """NS_k(S) for S [.., out, in], all leading axes at once.   [Atlas Eq. 40]

    The nearest semi-orthogonal matrix, by matrix products alone:

        X = S / (||S||_F + 1e-7);  k times  X <- aX + (bA + cA^2) X,  A = X X^T on the short side

    Every iterate is a polynomial of the Gram matrix times S, X = Q(SS^T) S, so where S is long the
    loop runs on m x m matrices (m the short side) and S is multiplied once: exact, and cheaper.
    """
    if S.shape[-2] > S.shape[-1]:
        return newton_schulz(S.mT, steps, coefficients).mT
    flat = S.reshape(-1, *S.shape[-2:])
    if steps > 0 and S.shape[-1] > 2 * S.shape[-2]:
        return _ByGram.run(flat, steps, *coefficients).reshape(S.shape)
    X = flat / (torch.linalg.vector_norm(flat, dim=(-2, -1), keepdim=True) + SMALLEST)
    X = _Direct.run(X, steps, *coefficients) if steps > 0 else X
    return X.reshape(S.shape)


class _Direct(OwnBackward):
    """X <- aX + BX, B = bA + cA^2, A = XX^T, and its backward with A and B symmetric."""

    native = native.Direct

    @staticmethod
    def forward(ctx: Any, X: Tensor, steps: int, *coefficients: float) -> Tensor:
        (a, b, c), kept = coefficients, []
        for _ in range(steps):
            A = bmm(X, X.mT)
            B = baddbmm(A, A, A, beta=b, alpha=c)
            kept += [X, A, B]
            X = baddbmm(X, B, X, beta=a)
        ctx.coefficients = coefficients
        ctx.save_for_backward(*kept)
        return X

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dX: Tensor) -> tuple[Tensor | None, ...]:
        (a, b, c), kept = ctx.coefficients, ctx.saved_tensors
        for i in reversed(range(0, len(kept), 3)):
            X, A, B = kept[i : i + 3]
            dB = bmm(dX, X.mT)
            dB = dB + dB.mT
            dA = baddbmm(dB, A, dB, beta=b / 2, alpha=c)
            dX = baddbmm_(baddbmm(dX, B, dX, beta=a), dA + dA.mT, X)
        return dX, *(None,) * 4


class _ByGram(OwnBackward):
    """NS_k(S) = K S, K = Q / n with n = ||S||_F + 1e-7, from A = SS^T / n^2, whose trace knows n.

        P = bA + cA^2,  R = a + P,  Q <- RQ,  A <- RAR

    A, P, R and Q are symmetric and commute. So are the changes they can make, hence of a gradient
    only the symmetric part counts, and nothing as large as S is made but the answer.
    """

    native = native.Orthogonal

    @staticmethod
    def forward(ctx: Any, S: Tensor, steps: int, *coefficients: float) -> Tensor:
        a, b, c = coefficients
        gram = bmm(S, S.mT)
        length = gram.diagonal(dim1=1, dim2=2).sum(dim=1)[:, None, None].sqrt()
        n = length + SMALLEST
        A, Q, kept = gram / n.square(), _eye(gram), []
        for step in range(steps):
            P = baddbmm(A, A, A, beta=b, alpha=c)
            AR = baddbmm(A, P, A, beta=a) if step + 1 < steps else A
            kept += [A, P, Q, AR]
            Q = baddbmm(Q, P, Q, beta=a) if step else P + a * Q
            A = baddbmm(AR, AR, P, beta=a) if step + 1 < steps else A
        K = Q / n
        ctx.coefficients = coefficients
        ctx.save_for_backward(S, length, K, *kept)
        return bmm(K, S)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dY: Tensor) -> tuple[Tensor | None, ...]:
        S, length, K, *kept = ctx.saved_tensors
        n = length + SMALLEST
        dK = _symmetric(bmm(dY, S.mT)) / n
        dn = -_inner(dK, K)
        dA = _change(dK, kept, *ctx.coefficients)
        dn = dn - 2 / n * _inner(dA, kept[0])
        along = torch.where(length > 0, dn / length, 0.0)
        onto_S = (2 / n.square()) * dA + along * _eye(dA)
        return baddbmm_(bmm(K, dY), onto_S, S), *(None,) * 4


def _change(dA: Tensor, kept: list[Tensor], a: float, b: float, c: float) -> Tensor:
    """What a change of the first A makes of the last Q; names as in `_ByGram`.

    Q is a polynomial of A, and the derivative of one in a symmetric matrix is its own adjoint: so
    this is the gradient of the first A as well, from that of the last Q.
    """
    dQ = None
    for i in range(0, len(kept), 4):
        A, P, Q, AR = kept[i : i + 4]
        M = bmm(A, dA)
        dP = torch.add(b * dA, M + M.mT, alpha=c)
        dQ = dP if dQ is None else baddbmm(baddbmm(dQ, P, dQ, beta=a), dP, Q)
        if i + 4 < len(kept):
            M, N = bmm(dP, AR), baddbmm(dA, P, dA, beta=a)
            dA = M + M.mT + baddbmm(N, N, P, beta=a)
    assert dQ is not None
    return dQ


def _symmetric(x: Tensor) -> Tensor:
    return (x + x.mT).mul_(0.5)


def _inner(x: Tensor, y: Tensor) -> Tensor:
    """Of matrices [g, m, m] -> [g, 1, 1]."""
    return (x * y).sum(dim=(1, 2), keepdim=True)


def _eye(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)


def orthogonal(optimizer: Optimizer, S: list[Tensor]) -> list[Tensor]:
    """NS of every matrix; those of one shape, up to transposition, in a single batch."""
    flat = [s if s.shape[-2] <= s.shape[-1] else s.mT for s in S]
    if len(S) == 1 or len({s.shape for s in flat}) > 1:
        return [optimizer.orthogonalize(s) for s in S]
    made = optimizer.orthogonalize(torch.stack(flat)).unbind(0)
    return [n if n.shape == s.shape else n.mT for n, s in zip(made, S, strict=True)]


# ---- the tokens of a block that step -------------------------------------------------------------


FEW = 4  # steps of a block that are worth a product of their own


class Steps(Protocol):
    """The tokens of a block of m at which Muon steps, s of them.

    rows: x [g, m, ..] there. number: how many steps a token has behind it, its own included.
    since: what is left at a token of the last step before it, or of the block's start, from what
    is left of the start, A [g, m, 1], and of every step, columns [g, m, s]. runs: W x of queries
    x [g, m, in], each with the matrix of the last step before it, onto `z` if there is one. last:
    whether the last token steps in all rows.
    """

    def __len__(self) -> int: ...
    def last(self, m: int) -> bool: ...
    def rows(self, x: Tensor) -> Tensor: ...
    def number(self, m: int, device: torch.device) -> Tensor: ...
    def since(self, A: Tensor, columns: Tensor) -> Tensor: ...
    def runs(self, x: Tensor, z: Tensor | None, stepped: Tensors) -> Tensor: ...


@dataclass(frozen=True)
class Alike:
    """The same tokens in all rows."""

    at: range

    def __len__(self) -> int:
        return len(self.at)

    def last(self, m: int) -> bool:
        return m - 1 in self.at

    def rows(self, x: Tensor) -> Tensor:
        return x[:, self.at.start :: self.at.step]

    def number(self, m: int, device: torch.device) -> Tensor:
        place = torch.arange(m, device=device) - self.at.start
        return ((place + self.at.step).clamp(min=0) // self.at.step)[None]

    def since(self, A: Tensor, columns: Tensor) -> Tensor:
        cuts = [0, *self.at, A.shape[1]]
        kept = [A, *columns.split(1, dim=2)] if self.at else [A]
        parts = [x[:, begin:end] for x, (begin, end) in zip(kept, pairwise(cuts), strict=True)]
        return torch.cat(parts, dim=1)

    def runs(self, x: Tensor, z: Tensor | None, stepped: Tensors) -> Tensor:
        return _ReadStretches.run((0, *self.at, x.shape[1]), x, z, *stepped)


@dataclass(frozen=True)
class Apart:
    """Rows differ: at [g, s], behind the block where a row has fewer steps than others."""

    at: Tensor

    @staticmethod
    def behind(place: Tensor, m: int, period: int) -> Apart:
        """Of blocks whose first token stands at `place` [g] of its chunk."""
        later = torch.arange(0, m, period, device=place.device)
        return Apart((-place - 1).remainder(period)[:, None] + later)

    def __len__(self) -> int:
        return self.at.shape[1]

    def last(self, m: int) -> bool:
        return False

    def rows(self, x: Tensor) -> Tensor:
        index = self.at.clamp(max=x.shape[1] - 1).view(*self.at.shape, *(1,) * (x.dim() - 2))
        return x.gather(1, index.expand(-1, -1, *x.shape[2:]))

    def number(self, m: int, device: torch.device) -> Tensor:
        return (torch.arange(m, device=device) >= self.at[..., None]).sum(1)

    def since(self, A: Tensor, columns: Tensor) -> Tensor:
        number = self.number(A.shape[1], A.device)
        return torch.cat([A, columns], dim=2).gather(2, number[..., None])

    def runs(self, x: Tensor, z: Tensor | None, stepped: Tensors) -> Tensor:
        number = self.number(x.shape[1], x.device)[..., None]
        found = [bmm(x, w.mT) if z is None else baddbmm(z, x, w.mT) for w in stepped]
        last = found[0]
        for n, later in enumerate(found[1:]):
            last = torch.where(number > n, later, last)
        return last


class _ReadStretches(OwnBackward):
    """z + W x of a few stretches of tokens, each with a matrix of its own; z may be None."""

    @staticmethod
    def forward(
        ctx: Any, cuts: tuple[int, ...], x: Tensor, z: Tensor | None, *matrices: Tensor
    ) -> Tensor:
        ctx.cuts, ctx.onto = cuts, z is not None
        ctx.save_for_backward(x, *matrices)
        parts = []
        for (begin, end), w in zip(pairwise(cuts), matrices, strict=True):
            here = x[:, begin:end]
            parts.append(bmm(here, w.mT) if z is None else baddbmm(z[:, begin:end], here, w.mT))
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz: Tensor) -> tuple[Any, ...]:
        x, *matrices = ctx.saved_tensors
        parts, made = [], []
        for (begin, end), w in zip(pairwise(ctx.cuts), matrices, strict=True):
            here = dz[:, begin:end]
            parts.append(bmm(here, w))
            made.append(bmm(here.mT, x[:, begin:end]))
        dx = torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]
        return None, dx, dz if ctx.onto else None, *made


Optimizer = GradientDescent | Momentum | Muon | Implicit
OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "gradient_descent": GradientDescent,
    "momentum": Momentum,
    "muon": Muon,
    "implicit": Implicit,
}
