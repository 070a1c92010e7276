"""Linear memory, exact at every token and still parallel.   [Atlas Eq. 2, 11, 51, 55]

The rows of Table 1 with a matrix memory take the gradient at W_{t-1} itself, or at alpha_t W_{t-1}.
In a block of m tokens with c pairs each, (t, j) naming pair t - j in step t, the unknown errors

    e_(t,j) = v - (A~_t W' + B~_t S') x - sum_{(s,l) before} C~[t, (s,l)] (x_(s,l) . x) e_(s,l)

form a unit lower triangular system: solved once, the block is a sum over pairs as in
`chunkwise.py`. With c = 1 and no momentum it is the delta rule's WY form. [Atlas Eq. Delta Rule]
The dot-product bias has e = v and nothing to solve.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from atlas_memory.memory.attentional_bias import DotProduct
from atlas_memory.memory.chunkwise import (
    Coefficients,
    PairSum,
    by_block,
    by_slot,
    coefficients,
    from_streams,
    in_streams,
    rows_at,
)
from atlas_memory.memory.omega import band
from atlas_memory.memory.optimizers import Momentum
from atlas_memory.memory.retention import ChannelRetention
from atlas_memory.memory.scan import Body, Tensors
from atlas_memory.memory.spec import MemorySpec

UNKNOWNS = 64


def block_size(spec: MemorySpec) -> int:
    """Tokens solved at once: the system has one unknown per token and pair of the window."""
    return UNKNOWNS if isinstance(spec.bias, DotProduct) else max(1, UNKNOWNS // spec.window)


class Exact(NamedTuple):
    """What a block of exact steps adds up to: W_t now, and the point of step t's gradient."""

    now: Coefficients
    before: Coefficients


def exact(spec: MemorySpec, alpha: Tensor, eta: Tensor, theta: Tensor, gamma: Tensor) -> Exact:
    """From the gates of a block, [g, m(, ..)]."""
    steps = eta[..., None] * gamma
    spread = band(steps) if isinstance(spec.bias, DotProduct) else _spread(steps)
    now = coefficients(spec, alpha, spread, theta)
    if not spec.decays_first:
        return Exact(now, _one_token_earlier(now))
    # alpha_t W_{t-1} = W_t without what step t itself adds, which is S_t or the step.
    written = spread if now.P is None else now.P
    B = None if now.B is None or now.T is None else now.B - now.T
    return Exact(now, Coefficients(now.A, now.C - written, B))


def _spread(steps: Tensor) -> Tensor:
    """Steps [g, m, c] as the matrix [g, m, m c] that gives each (t, j) to its own token t."""
    m = steps.shape[1]
    eye = torch.eye(m, dtype=steps.dtype, device=steps.device)
    return (eye[:, :, None] * steps[:, None]).flatten(2)


def _one_token_earlier(c: Coefficients) -> Coefficients:
    def shift(x: Tensor | None, first: float) -> Tensor | None:
        if x is None:
            return None
        return torch.cat([torch.full_like(x[:, :1], first), x[:, :-1]], dim=1)

    A, B, C = shift(c.A, 1.0), shift(c.B, 0.0), shift(c.C, 0.0)
    assert A is not None and C is not None
    return Coefficients(A, C, B)


def hoist_exact(spec: MemorySpec, gates: Tensors, block: int) -> Tensors:
    """The coefficients of all blocks at once, as streams; `exact_of` reads a block's."""
    fills = zip(gates, (1.0, 0.0, 0.0, 0.0), strict=True)
    made = exact(spec, *(by_block(x, block, fill) for x, fill in fills))
    rows = len(gates[0])
    return tuple(by_slot(x, rows) for c in made for x in in_streams(c))


def exact_of(spec: MemorySpec, streams: Tensors) -> Exact:
    """What `hoist_exact` left in the streams, for a block that may be shorter than the others."""
    m = streams[0].shape[1]
    wide = m + spec.window - 1 if isinstance(spec.bias, DotProduct) else m * spec.window
    own = 5 if isinstance(spec.optimizer, Momentum) else 2
    return Exact(from_streams(streams[:own], wide), from_streams(streams[own:], wide))


def solve(
    spec: MemorySpec, W: Tensor, S: Tensor | None, x: Tensor, v: Tensor, before: Coefficients
) -> tuple[Tensor, Tensor]:
    """The errors e and the features x that they are written with, pair by pair of `before.C`.

    x [g, m + c - 1, D], v [g, m + c - 1, dv]: the block's pairs behind its look-back.
    """
    if isinstance(spec.bias, DotProduct):
        e = v
    else:
        pair = _pair_of_unknown(before.A.shape[1], spec.window, x.device)
        e = _errors(W, S, x, v, before, pair)
        x = x if pair is None else x.index_select(1, pair)
    return (e.detach(), x.detach()) if spec.stop_gradient else (e, x)


def _pair_of_unknown(m: int, window: int, device: torch.device) -> Tensor | None:
    """(t, j) -> its pair's place among the m + c - 1 of a block; None where that is t itself."""
    if window == 1:
        return None
    t = torch.arange(m, device=device)[:, None]
    return (t + window - 1 - torch.arange(window, device=device)).flatten()


def _errors(
    W: Tensor, S: Tensor | None, x: Tensor, v: Tensor, c: Coefficients, pair: Tensor | None
) -> Tensor:
    channel = c.C.dim() == 4
    A, B, C = c.A, c.B, c.C
    if pair is not None:
        window = len(pair) // A.shape[1]
        A, C = A.repeat_interleave(window, 1), C.repeat_interleave(window, 1)
        B = None if B is None else B.repeat_interleave(window, 1)
        gram = None if channel else torch.bmm(x, x.mT).index_select(1, pair).index_select(2, pair)
        x, v = x.index_select(1, pair), v.index_select(1, pair)
    else:
        gram = None if channel else torch.bmm(x, x.mT)
    known = torch.baddbmm(v, A * x, W.mT, alpha=-1)
    if B is not None and S is not None:
        known = torch.baddbmm(known, B * x, S.mT, alpha=-1)
    system = torch.einsum("gtd,gtnd,gnd->gtn", x, C, x) if gram is None else C * gram
    return torch.linalg.solve_triangular(system, known, upper=False, unitriangular=True)


def linear_body(spec: MemorySpec) -> Body:
    """One block of a linear memory; `count` ends rows early."""

    def body(
        state: Tensors, streams: Tensors, shared: Tensors, count: Tensor | None
    ) -> tuple[Tensor, Tensors]:
        q, k, v, *rest = streams
        constants = shared[0] if shared else None
        c = exact(spec, *rest) if _per_channel(spec) else exact_of(spec, tuple(rest))
        S = state[1] if spec.optimizer.momentum else None
        e, x = solve(spec, state[0], S, spec.features(k, constants), v, c.before)
        y = PairSum(state[0], S, (e, x), c.now)(spec.features(q, constants))
        end = PairSum(state[0], S, (e, x), c.now if count is None else rows_at(c.now, count))
        return y, (end.end(), *((end.end_momentum(),) if S is not None else ()))

    return body


def hoist_linear(spec: MemorySpec, streams: Tensors, block: int) -> Tensors:
    """q, k, v and the coefficients; ChannelRetention keeps its gates, as in `chunkwise.hoist`."""
    if _per_channel(spec):
        return streams
    return (*streams[:3], *hoist_exact(spec, streams[3:], block))


def _per_channel(spec: MemorySpec) -> bool:
    return isinstance(spec.retention, ChannelRetention)
