"""The Omega rule: a step looks at a window of pairs, each through its own gate.   [Atlas Eq. 8, 9]

    g_t = sum_{i = max(0, t-c+1) .. t} gamma[t, t-i] u_i

and what a whole chunk of such steps adds up to. With D_a[t, n] = a_t a_{t-1} .. a_{n+1},

    S_t = Theta_t S' + sum_i P[t, i] u_i         P = D_theta (-eta Gamma)   [Atlas Eq. 38, 39]
    W_t = A_t W' + B_t S' + sum_i C[t, i] u_i    C = D_alpha P, B = D_alpha Theta

Every u_i is rank one, d_i (x) x_i, so the sums over pairs are two matrix products. Nearly all the
time of a deep memory is spent in them. Autograd would scale, copy and add large intermediates that
the backward passes here accumulate in place, always scaling the smaller side of a matrix.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad, threshold

from atlas_memory.memory.architectures import RankOne
from atlas_memory.memory.graphs import OwnBackward, count, table
from atlas_memory.memory.native import functions as native
from atlas_memory.memory.products import baddbmm, baddbmm_, bmm
from atlas_memory.memory.spec import MemorySpec
from atlas_memory.memory.tree import State, Tensors


@dataclass(frozen=True, repr=False)
class Gates(State):
    """What the outer network tells the memory at every token. None means 1 (theta: 0).
    alpha and theta are decays, 0 or more.

    alpha [b, h, t] ([h] for FixedRetention, [b, h, t, D] for ChannelRetention), eta [b, h, t],
    theta [b, h, t], gamma [b, h, t, c]: gamma[t, j] gates token t - j in step t. hidden [b, h, t]:
    the step mu of the hidden matrices where the output matrix is written exactly; None means eta.
    Those of one token have no t.
    """

    alpha: Tensor | None = None
    eta: Tensor | None = None
    theta: Tensor | None = None
    gamma: Tensor | None = None
    hidden: Tensor | None = None

    def complete(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """All but `hidden`, after `memorize` has filled in what was None."""
        alpha, eta, theta, gamma = self.alpha, self.eta, self.theta, self.gamma
        assert alpha is not None and eta is not None and theta is not None and gamma is not None
        return alpha, eta, theta, gamma

    def named(self) -> dict[str, Tensor]:
        """Those that are there, by name."""
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: gate for name, gate in given.items() if gate is not None}


def mask_young(gamma: Tensor, age: Tensor) -> Tensor:
    """Close the gates of pairs before the first token: age [.., t] tokens precede token t."""
    window = gamma.shape[-1]
    if window == 1:
        return gamma
    return gamma * (age[..., None] >= count(window, gamma.device))


def band(gamma: Tensor) -> Tensor:
    """Gates [.., m, c] as a banded matrix [.., m, m + c - 1]: pair t - j in column t + c - 1 - j.

    Every row is padded by m and the rows are read one element shorter: each moves right by one.
    """
    m, window = gamma.shape[-2:]
    rows = pad(gamma.flip(-1), (0, m)).flatten(-2)
    return rows[..., : m * (m + window - 1)].unflatten(-1, (m, m + window - 1))


LIFTED = 1e-30  # what a gate of 0 counts as in products, so that their gradient stays exact
MARGIN = 1e6  # how far above the smallest normal number a gradient's factors stay


class _Decay(OwnBackward):
    """exp of segment sums of log gates, added up directly instead of subtracting two long sums,
    which loses digits: [.., m] -> [.., m, s], a column for every start.

    What is left of a gate of 0.5 behind 126 tokens is no normal number of float32, and a processor
    takes a hundred times as long for each product with it: what is that small is 0.
    """

    @staticmethod
    def forward(ctx: Any, gate: Tensor, after: Tensor, until: Tensor) -> Tensor:
        lifted, smallest = gate.clamp(min=LIFTED), torch.finfo(gate.dtype).tiny
        D = (lifted.log()[..., :, None] * after).cumsum(dim=-2).exp_().mul_(until)
        ctx.save_for_backward(lifted, threshold(D, smallest * MARGIN, 0.0), after)
        return threshold(D, smallest**0.5, 0.0, inplace=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, w: Tensor) -> tuple[Tensor, None, None]:
        lifted, D, after = ctx.saved_tensors
        sums = _from_here(len(after), w.dtype, w.device)
        return torch.matmul(sums, w * D).mul_(after).sum(dim=-1) / lifted, None, None


@table
def _from_here(m: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """What adds up a token and all later ones."""
    return torch.ones(m, m, dtype=dtype, device=device).triu()


def decay(gate: Tensor) -> Tensor:
    """D[.., t, n] = gate_t .. gate_{n+1} for n <= t, else 0. gate [.., m] -> [.., m, m]."""
    return decay_from(gate, range(gate.shape[-1]))


def decay_from(gate: Tensor, starts: Sequence[int]) -> Tensor:
    """Some columns of `decay`, [.., m, s]; -1 is the start of the chunk, before its first gate."""
    masks = _since(gate.shape[-1], tuple(starts), gate.dtype, gate.device)
    return _Decay.run(gate, *masks)


def decay_to(gate: Tensor, ends: Sequence[int]) -> Tensor:
    """Some rows of `decay`, as columns behind that of the chunk's start: [.., 1 + m, s].

    Read backwards, rows are columns.
    """
    last = gate.shape[-1] - 1
    backwards = pad(gate.flip(-1), (1, 0), value=1.0)
    return decay_from(backwards, [last - end for end in ends]).flip(-2)


@table
def _since(
    m: int, starts: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """1 where a token is behind a start, and where it is the start or behind it, [m, s]."""
    token, start = torch.arange(m)[:, None], torch.tensor(starts)
    return (token > start).to(device, dtype), (token >= start).to(device, dtype)


def decays(gate: Tensor) -> tuple[Tensor, Tensor]:
    """`decay`, and gate_t .. gate_0 [.., m]: what is left of the chunk's start at each token."""
    D = decay(gate)
    return D, D[..., 0] * gate[..., :1]


# ---- a chunk -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Coefficients:
    """What a chunk of m tokens and n pairs adds up to; names as in `omega.py`.

    A [g, m, 1] or [g, m, D], C [g, m, n] or [g, m, n, D] for ChannelRetention. B, T (Theta)
    [g, m, 1] and P [g, m, n] only where the rule has momentum. C and P hold the sign of descent:
    W_t = A W' + B S' + C u.
    """

    A: Tensor
    C: Tensor
    B: Tensor | None = None
    T: Tensor | None = None
    P: Tensor | None = None


def coefficients(
    spec: MemorySpec,
    alpha: Tensor,
    steps: Tensor,
    theta: Tensor,
    kept: tuple[Tensor, Tensor] | None = None,
) -> Coefficients:
    """From alpha [g, m(, D)], theta [g, m] and the steps -eta * gamma [g, m, n].

    kept: the decays of alpha, where they are known already.
    """
    T = P = B = None
    written = steps
    if spec.optimizer.heavy:
        D_theta, T = decays(theta)
        T, written = T[..., None], D_theta @ steps
        P = written
    if spec.retention.channel:
        D_alpha, A = decays(alpha.mT)
        C = torch.einsum("gdts,gsn->gtnd", D_alpha, written)
        B = None if T is None else torch.einsum("gdts,gs->gtd", D_alpha, T[..., 0])
        return Coefficients(A.mT, C, B, T, P)
    D_alpha, A = decays(alpha) if kept is None else kept
    return Coefficients(A[..., None], D_alpha @ written, None if T is None else D_alpha @ T, T, P)


def in_streams(c: Coefficients) -> Tensors:
    """Those that are there; P is only asked for where there is a momentum."""
    return tuple(x for x in (c.A, c.C, c.B, c.T, c.P) if x is not None)


def from_streams(parts: Sequence[Tensor], columns: int) -> Coefficients:
    """The inverse of `in_streams`, for a block of so many pairs."""
    A, C, *momentum = parts
    B, T, P = (*momentum, None, None, None)[:3]
    return Coefficients(A, C[..., :columns], B, T, None if P is None else P[..., :columns])


def rows_at(c: Coefficients, count: Tensor) -> Coefficients:
    """Only the row of each sequence's last token (the count-th), so that `end` ends there."""

    def row(x: Tensor | None) -> Tensor | None:
        if x is None:
            return None
        index = (count - 1).clamp(min=0).view(-1, *(1,) * (x.dim() - 1))
        return x.gather(1, index.expand(-1, 1, *x.shape[2:]))

    A, C = row(c.A), row(c.C)
    assert A is not None and C is not None
    return Coefficients(A, C, row(c.B), row(c.T), row(c.P))


def by_block(x: Tensor, block: int, fill: float) -> Tensor:
    """[g, slots, ..] -> [g * blocks, block, ..], the last block filled up."""
    missing = -x.shape[1] % block
    filled = pad(x, (0, 0) * (x.dim() - 2) + (0, missing), value=fill) if missing else x
    return filled.unflatten(1, (-1, block)).flatten(0, 1)


def by_slot(x: Tensor, rows: int) -> Tensor:
    """[g * blocks, block, ..] -> [g, slots, ..]."""
    return x.unflatten(0, (rows, -1)).flatten(1, 2)


# ---- sums over pairs -----------------------------------------------------------------------------


@dataclass(frozen=True)
class PairSum:
    """x -> W_t x at every token of the chunk, without W_t."""

    W: Tensor
    S: Tensor | None
    pairs: RankOne
    coefficients: Coefficients

    def __call__(self, x: Tensor) -> Tensor:
        d, written = self.pairs
        c = self.coefficients
        if c.C.dim() == 3:
            return read_pairs(x, written, d, (self.W, self.S), (c.A, c.B, c.C))
        z = (c.A * x) @ self.W.mT
        if self.S is not None and c.B is not None:
            z = z + (c.B * x) @ self.S.mT
        return z + torch.einsum("gtd,gtnd,gnd->gtn", x, c.C, written) @ d

    def end(self) -> Tensor:
        """W behind the chunk's last token."""
        d, written = self.pairs
        c = self.coefficients
        C, carried = c.C[:, -1], c.A[:, -1:] * self.W
        if self.S is not None and c.B is not None:
            carried = torch.addcmul(carried, c.B[:, -1:], self.S)
        channel = C.dim() == 3
        return carried + d.mT @ (C * written) if channel else write_pairs(carried, written, d, C)

    def end_momentum(self) -> Tensor:
        d, written = self.pairs
        c = self.coefficients
        assert self.S is not None and c.T is not None and c.P is not None
        return write_pairs(c.T[:, -1:] * self.S, written, d, c.P[:, -1])


def accumulate(weights: Tensor, pairs: RankOne) -> Tensor:
    """sum_i weights[t, i] d_i (x) x_i for every row t: [g, t, n] -> [g, t, out, in].

    Many rows: of the products d_i (x) x_i, made once. A few: of pairs that are scaled for each.
    """
    d, x = pairs
    out, into = d.shape[-1], x.shape[-1]
    if 2 * weights.shape[1] >= max(out, into):
        made = (d[..., None] * x[:, :, None]).flatten(2)
        return bmm(weights, made).unflatten(2, (out, into))
    if out <= into:
        return (weights[..., None] * d[:, None]).mT @ x[:, None]
    return d.mT[:, None] @ (weights[..., None] * x[:, None])


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
    return _Read.run(x, X, d, W, S, A, B, C)


def write_pairs(carried: Tensor, X: Tensor, d: Tensor, weights: Tensor) -> Tensor:
    """carried + sum_i weights_i d_i (x) X_i. carried [g, out, in], weights [g, n]."""
    return _Write.run(carried, X, d, weights[..., None])


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Row by row inner products [g, m, d] -> [g, m, 1]."""
    return (a * b).sum(dim=-1, keepdim=True)


class _Read(OwnBackward):
    native = native.Read

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        x, X, d, W, S, A, B, C = inputs
        scores = bmm(x, X.mT)
        weighted = C * scores
        if W.shape[-1] <= W.shape[-2]:
            z = bmm(A * x, W.mT)
            if S is not None:
                baddbmm_(z, B * x, S.mT)
        else:
            z = bmm(x, W.mT).mul_(A)
            if S is not None:
                z.addcmul_(B, bmm(x, S.mT))
        ctx.save_for_backward(*inputs, scores, weighted)
        return baddbmm_(z, weighted, d)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dz: Tensor) -> tuple[Tensor | None, ...]:
        x, X, d, W, S, A, B, C, scores, weighted = ctx.saved_tensors
        d_weighted = bmm(dz, d.mT)
        dC = d_weighted * scores
        d_scores = d_weighted.mul_(C)
        dx, dX = bmm(d_scores, X), bmm(d_scores.mT, x)
        dW, dA = _carried_backward(dx, dz, x, W, A)
        dS, dB = (None, None) if S is None else _carried_backward(dx, dz, x, S, B)
        return dx, dX, bmm(weighted.mT, dz), dW, dS, dA, dB, dC


def _carried_backward(
    dx: Tensor, dz: Tensor, x: Tensor, W: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of W and scale for z = scale * (W x); adds that of x to dx."""
    if W.shape[-1] <= W.shape[-2]:
        passed = bmm(dz, W)
        dx.addcmul_(scale, passed)
        return bmm(dz.mT, scale * x), _dot(passed, x)
    scaled = scale * dz
    baddbmm_(dx, scaled, W)
    return bmm(scaled.mT, x), _dot(dz, bmm(x, W.mT))


class _Write(OwnBackward):
    native = native.Write

    @staticmethod
    def forward(ctx: Any, carried: Tensor, X: Tensor, d: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(X, d, weights)
        if X.shape[-1] <= d.shape[-1]:
            return baddbmm(carried, d.mT, weights * X)
        return baddbmm(carried, (weights * d).mT, X)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dW: Tensor) -> tuple[Tensor, ...]:
        X, d, weights = ctx.saved_tensors
        if X.shape[-1] <= d.shape[-1]:
            passed = bmm(d, dW)
            return dW, weights * passed, bmm(weights * X, dW.mT), _dot(passed, X)
        passed = bmm(X, dW.mT)
        return dW, bmm(weights * d, dW), weights * passed, _dot(passed, d)
