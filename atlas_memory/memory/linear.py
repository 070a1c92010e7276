"""Linear memory, exact at every token and still parallel.   [Atlas Eq. 2, 11, 51, 55]

The rows of Table 1 with a matrix memory take the gradient at W_{t-1} itself, or at alpha_t W_{t-1}.
In a block of m tokens with c pairs each, (t, j) naming pair t - j in step t, the unknown errors

    e_(t,j) = v - (A~_t W' + B~_t S') x - sum_{(s,l) before} C~[t, (s,l)] (x_(s,l) . x) e_(s,l)

form a unit lower triangular system: solved once, the block is a sum over pairs as in
`chunkwise.py`. With c = 1 and no momentum it is the delta rule's WY form. [Atlas Eq. Delta Rule]
The dot-product bias has e = v and nothing to solve.

A matrix is a list of pairs too, its rows as keys and unit vectors as values. So what a block finds
and what it writes are one list (`Pairs`), and its coefficients are one matrix [A | B | C].
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from atlas_memory.memory.graphs import Body, OwnBackward, table
from atlas_memory.memory.learner import error
from atlas_memory.memory.native import functions as native
from atlas_memory.memory.native.library import served
from atlas_memory.memory.omega import (
    Coefficients,
    PairSum,
    band,
    by_block,
    by_slot,
    coefficients,
    rows_at,
)
from atlas_memory.memory.precision import rounds
from atlas_memory.memory.products import bmm
from atlas_memory.memory.spec import MemorySpec
from atlas_memory.memory.tree import Tensors

UNKNOWNS = 64


def block_size(spec: MemorySpec) -> int:
    """Tokens solved at once: the system has one unknown per token and pair of the window."""
    return UNKNOWNS if spec.bias.hebbian else max(1, UNKNOWNS // spec.window)


# ---- coefficients --------------------------------------------------------------------------------


def exact(
    spec: MemorySpec, gates: Sequence[Tensor], kept: tuple[Tensor, Tensor] | None = None
) -> tuple[Coefficients, Coefficients]:
    """W_t, and the point of step t's gradient, from alpha, eta, theta, gamma [g, m(, ..)]."""
    alpha, eta, theta, gamma = gates
    steps = eta[..., None] * gamma
    spread = band(steps) if spec.bias.hebbian else _spread(steps)
    now = coefficients(spec, alpha, spread, theta, kept)
    if not spec.decays_first:
        return now, _one_token_earlier(now)
    # alpha_t W_{t-1} = W_t without what step t itself adds, which is S_t or the step.
    written = spread if now.P is None else now.P
    B = None if now.B is None or now.T is None else now.B - now.T
    return now, Coefficients(now.A, now.C - written, B)


def _spread(steps: Tensor) -> Tensor:
    """Steps [g, m, c] as the matrix [g, m, m c] that gives each (t, j) to its own token t."""
    eye = _eye(steps.shape[1], steps.dtype, steps.device)
    return (eye[:, :, None] * steps[:, None]).flatten(2)


@table
def _eye(m: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.eye(m, dtype=dtype, device=device)


def _one_token_earlier(c: Coefficients) -> Coefficients:
    def shift(x: Tensor | None, first: float) -> Tensor | None:
        if x is None:
            return None
        return torch.cat([torch.full_like(x[:, :1], first), x[:, :-1]], dim=1)

    A, B, C = shift(c.A, 1.0), shift(c.B, 0.0), shift(c.C, 0.0)
    assert A is not None and C is not None
    return Coefficients(A, C, B)


class Exact(NamedTuple):
    """What a block of exact steps adds up to, a row per token and a column per entry of `Pairs`:
    W_t, the point of step t's gradient and, where there is a momentum, S_t (without W's columns).
    """

    now: Tensor
    before: Tensor
    momentum: Tensor | None = None

    def at(self, count: Tensor) -> "Exact":
        """Only the row of each sequence's last token, the count-th: there the block ends."""
        index = (count - 1).clamp(min=0)[:, None, None]
        now, before = (x.take_along_dim(index, dim=1) for x in self[:2])
        S = self.momentum
        return Exact(now, before, None if S is None else S.take_along_dim(index, dim=1))


def hoist_exact(
    spec: MemorySpec,
    gates: Tensors,
    block: int,
    dv: int,
    kept: tuple[Tensor, Tensor] | None = None,
) -> Tensors:
    """`Exact` of all blocks at once, as streams."""
    alpha, eta, _, gamma = gates
    hand_made = spec.bias.hebbian or spec.optimizer.heavy
    if not hand_made and kept is None and served((alpha, eta, gamma)):
        return native.Coefficients.run(alpha, eta, gamma, block, dv, not spec.decays_first)
    fills = zip(gates, (1.0, 0.0, 0.0, 0.0), strict=True)
    now, before = exact(spec, [by_block(x, block, fill) for x, fill in fills], kept)
    made = [_joined(now.A, now.B, now.C, dv), _joined(before.A, before.B, before.C, dv)]
    if now.T is not None and now.P is not None:
        made.append(_joined(now.T, None, now.P, dv))
    return tuple(by_slot(x, len(gates[0])) for x in made)


def _joined(A: Tensor, B: Tensor | None, C: Tensor, dv: int) -> Tensor:
    """[A | B | C] with A and B [g, m, 1] once for every row of their matrix."""
    wide = [x.expand(-1, -1, dv) for x in (A, B) if x is not None]
    return torch.cat([*wide, C], dim=2)


def exact_of(spec: MemorySpec, streams: Sequence[Tensor], dv: int) -> Exact:
    """What `hoist_exact` left for some tokens, with as many columns as these have pairs."""
    m = streams[0].shape[1]
    pairs = m + spec.window - 1 if spec.bias.hebbian else m * spec.window
    S = dv if spec.optimizer.heavy else 0
    widths = dv + S + pairs, dv + S + pairs, dv + pairs
    parts = zip(streams, widths, strict=False)
    return Exact(*(x if x.shape[2] == n else x[..., :n] for x, n in parts))


# ---- a block -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pairs:
    """What a block has found and written: keys K [g, n, D] and values V [g, n, dv].

    First the rows of W (and of S), whose values are unit vectors, then the pairs of the block,
    whose values are e.
    """

    K: Tensor
    V: Tensor
    e: Tensor

    def read(self, x: Tensor, weights: Tensor) -> Tensor:
        """sum_i weights[t, i] (K_i . x_t) V_i: W_t x_t with the weights of a token."""
        return _Weighted.run(x, self.K, weights, self.V)

    def read_back(self, e: Tensor, weights: Tensor) -> Tensor:
        """W_t^T e_t."""
        return _Weighted.run(e, self.V, weights, self.K)

    def end(self, c: Exact) -> Tensors:
        """W (and S) with the weights of the last token."""
        carried = 1 if c.momentum is None else 2
        W = _added(c.now[:, -1, :, None], self.V, self.K, carried)
        if c.momentum is None:
            return (W,)
        old = self.V.shape[2]  # S has no part in W
        return W, _added(c.momentum[:, -1, :, None], self.V[:, old:], self.K[:, old:], 1)


def _added(weights: Tensor, V: Tensor, K: Tensor, carried: int) -> Tensor:
    """sum_i weights_i V_i (x) K_i; the matrices in front, with unit vectors as V, are not rounded,
    or a state would be at every block."""
    if not rounds():
        return _Added.run(weights, V, K)
    dv, old = V.shape[2], carried * V.shape[2]
    kept = (weights * K)[:, :old].unflatten(1, (carried, dv)).sum(dim=1)
    return kept + _Added.run(weights[:, old:], V[:, old:], K[:, old:])


class _Added(OwnBackward):
    """sum_i weights_i V_i (x) K_i, weights [g, n, 1]."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, V: Tensor, K: Tensor) -> Tensor:
        weighted = weights * V
        ctx.save_for_backward(weights, V, K, weighted)
        return bmm(weighted.mT, K)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dW: Tensor) -> Tensors:
        weights, V, K, weighted = ctx.saved_tensors
        passed = bmm(K, dW.mT)
        d_weights = (passed * V).sum(dim=-1, keepdim=True)
        return d_weights, passed.mul_(weights), bmm(weighted, dW)


class _Weighted(OwnBackward):
    """y_t = sum_i weights[t, i] (A_i . x_t) B_i: attention without a softmax."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, A: Tensor, weights: Tensor, B: Tensor) -> Tensor:
        scores = bmm(x, A.mT)
        weighted = scores * weights
        ctx.save_for_backward(x, A, weights, B, scores, weighted)
        return bmm(weighted, B)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Tensors:
        x, A, weights, B, scores, weighted = ctx.saved_tensors
        d_weighted = bmm(dy, B.mT)
        d_weights = d_weighted * scores
        d_scores = d_weighted.mul_(weights)
        return (
            bmm(d_scores, A),
            bmm(d_scores.mT, x),
            d_weights,
            bmm(weighted.mT, dy),
        )


def solve(spec: MemorySpec, carried: Tensors, x: Tensor, v: Tensor, before: Tensor) -> Pairs:
    """The list of a block whose pairs are x [g, n, D] and v, as `by_unknown` orders them.

    carried: W, or W and S.
    """
    K = torch.cat([*carried, x], dim=1)
    e = v if spec.bias.hebbian else _Errors.run(K, v, before)
    if spec.stop_gradient:
        e, K = e.detach(), torch.cat([*carried, x.detach()], dim=1)
    unit = _eye(v.shape[2], v.dtype, v.device).expand(len(v), -1, -1)
    return Pairs(K, torch.cat([*(unit for _ in carried), e], dim=1), e)


def by_unknown(spec: MemorySpec, x: Tensor) -> Tensor:
    """Pairs [g, m + c - 1, ..] of m tokens and their look-back in the order of the unknowns (t, j),
    where there are any: a pair stands once for every step that it is in.
    """
    if spec.window == 1 or spec.bias.hebbian:
        return x
    return x.index_select(1, _pair_of_unknown(x.shape[1] + 1 - spec.window, spec.window, x.device))


@table
def _pair_of_unknown(m: int, window: int, device: torch.device) -> Tensor:
    t = torch.arange(window - 1, window - 1 + m, device=device)[:, None]
    return (t - torch.arange(window, device=device)).flatten()


class _Errors(OwnBackward):
    """The errors e [g, n, dv] of the n unknowns, the last n entries of K, with values v:

        e = v - P_W 1 - L e,   [P_W (| P_S) | L] = before * (x K^T), L strictly lower triangular

    before [g, m, ..] has a row for every token, whose c unknowns share it. With g = (I + L)^-T de
    the gradient of the products is -[g (| g) | g e^T].
    """

    @staticmethod
    def forward(ctx: Any, K: Tensor, v: Tensor, before: Tensor) -> Tensor:
        dv, old = v.shape[2], K.shape[1] - v.shape[1]
        found = bmm(K[:, old:], K.mT)
        products = _by_token(found, before).flatten(1, 2)
        for begin in range(0, old, dv):
            v = v - products[..., begin : begin + dv]
        system = products[..., old:]
        e = torch.linalg.solve_triangular(system, v, upper=False, unitriangular=True)
        ctx.save_for_backward(K, before, found, system, e)
        return e

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, de: Tensor) -> Tensors:
        K, before, found, system, e = ctx.saved_tensors
        n, old, m = e.shape[1], K.shape[1] - e.shape[1], before.shape[1]
        g = torch.linalg.solve_triangular(system.mT, de, upper=True, unitriangular=True)
        lower = bmm(g, e.mT).tril_(-1)
        wide = torch.cat([*(g for _ in range(old // g.shape[2])), lower], dim=2).neg_()
        d_before = (wide * found).unflatten(1, (m, -1)).sum(dim=2) if n > m else wide * found
        d_found = _by_token(wide, before).flatten(1, 2)
        dK = bmm(d_found.mT, K[:, old:])
        dK[:, old:].add_(bmm(d_found, K))
        return dK, g, d_before


def _by_token(x: Tensor, before: Tensor) -> Tensor:
    """Every unknown's row of x [g, m c, n] times that of its token, [g, m, c, n]."""
    return x.unflatten(1, (before.shape[1], -1)) * before[:, :, None]


def linear_body(spec: MemorySpec) -> Body:
    """One block of a linear memory; `count` ends rows early."""
    block = _channel_block if spec.retention.channel else _block

    def body(
        state: Tensors, streams: Tensors, shared: Tensors, count: Tensor | None
    ) -> tuple[Tensor, Tensors]:
        q, k, v, *rest = streams
        constants = shared[0] if shared else None
        phi = spec.features(q, constants), spec.features(k, constants)
        y, after = block(spec, state, (*phi, error(spec, k, v)), rest, count)
        return (y + q if spec.architecture.residual else y), after

    return body


def _block(
    spec: MemorySpec, state: Tensors, qkv: Tensors, rest: Sequence[Tensor], count: Tensor | None
) -> tuple[Tensor, Tensors]:
    q, k, v = qkv
    c = exact_of(spec, rest, v.shape[2])
    pairs = solve(spec, state, by_unknown(spec, k), by_unknown(spec, v), c.before)
    return pairs.read(q, c.now), pairs.end(c if count is None else c.at(count))


def _channel_block(
    spec: MemorySpec, state: Tensors, qkv: Tensors, gates: Sequence[Tensor], count: Tensor | None
) -> tuple[Tensor, Tensors]:
    """The same where every feature forgets at its own rate: coefficients have a third axis."""
    q, k, v = qkv
    now, before = exact(spec, gates)
    S = state[1] if spec.optimizer.momentum else None
    e, x = _channel_errors(spec, state[0], S, k, v, before)
    end = PairSum(state[0], S, (e, x), now if count is None else rows_at(now, count))
    ended = (end.end(), *((end.end_momentum(),) if S is not None else ()))
    return PairSum(state[0], S, (e, x), now)(q), ended


def _channel_errors(
    spec: MemorySpec, W: Tensor, S: Tensor | None, x: Tensor, v: Tensor, c: Coefficients
) -> tuple[Tensor, Tensor]:
    if spec.bias.hebbian:
        return (v.detach(), x.detach()) if spec.stop_gradient else (v, x)
    window = spec.window
    x, v = by_unknown(spec, x), by_unknown(spec, v)
    A, C = c.A.repeat_interleave(window, 1), c.C.repeat_interleave(window, 1)
    known = v - (A * x) @ W.mT
    if c.B is not None and S is not None:
        known = known - (c.B.repeat_interleave(window, 1) * x) @ S.mT
    system = torch.einsum("gtd,gtnd,gnd->gtn", x, C, x)
    e = torch.linalg.solve_triangular(system, known, upper=False, unitriangular=True)
    return (e.detach(), x.detach()) if spec.stop_gradient else (e, x)


def hoist_linear(spec: MemorySpec, streams: Tensors, block: int) -> Tensors:
    """q, k, v and the coefficients; ChannelRetention keeps its gates, as in `chunkwise.hoist`."""
    if spec.retention.channel:
        return streams
    return (*streams[:3], *hoist_exact(spec, streams[3:], block, streams[2].shape[2]))
