"""Linear memory, exact at every token and still parallel.   [Atlas Eq. 2, 11, 51, 55]

The rows of Table 1 with a matrix memory take the gradient at W_{t-1} itself. In a block of m
tokens with c pairs each, e = (t, j) naming pair t - j in step t, the unknown surprises

    delta_e = (A W' + B S') x_e - v_e + sum_{e' before} C[t-1, e'] (x_e' . x_e) delta_e'

form a unit lower triangular system: solved once, the block is a sum over pairs as in
`chunkwise.py`. With c = 1 and no momentum it is the delta rule's WY form. [Atlas Eq. Delta Rule]
The dot-product bias has delta = -v and nothing to solve.
"""

import torch
from torch import Tensor

from atlas_memory.memory.attentional_bias import DotProduct
from atlas_memory.memory.chunkwise import Coefficients, PairSum, coefficients, rows_at
from atlas_memory.memory.omega import band
from atlas_memory.memory.retention import ScalarRetention
from atlas_memory.memory.scan import Body, Tensors
from atlas_memory.memory.spec import MemorySpec

UNKNOWNS = 64


def block_size(spec: MemorySpec) -> int:
    """Tokens solved at once: the system has one unknown per token and pair of the window."""
    return UNKNOWNS if isinstance(spec.bias, DotProduct) else max(1, UNKNOWNS // spec.window)


def _each_window(x: Tensor, m: int, window: int) -> Tensor:
    """Pairs [g, m + c - 1, d] as (t, j) -> pair t - j: [g, m c, d]."""
    t = torch.arange(m, device=x.device)[:, None]
    j = torch.arange(window, device=x.device)
    return x[:, (t + window - 1 - j).flatten()]


def _before(c: Coefficients, alpha: Tensor, spec: MemorySpec) -> Coefficients:
    """The coefficients of the point of step t's gradient: W_{t-1}, or alpha_t W_{t-1}."""

    def shift(x: Tensor | None, first: float) -> Tensor | None:
        if x is None:
            return None
        return torch.cat([torch.full_like(x[:, :1], first), x[:, :-1]], dim=1)

    A, B, C = shift(c.A, 1.0), shift(c.B, 0.0), shift(c.C, 0.0)
    assert A is not None and C is not None
    if isinstance(spec.retention, ScalarRetention) and spec.retention.before_gradient:
        scale = alpha[..., None]
        A, B, C = scale * A, None if B is None else scale * B, scale * C
    return Coefficients(A, C, B)


def _repeat(x: Tensor, window: int) -> Tensor:
    return x if window == 1 else x.repeat_interleave(window, dim=1)


def _surprises(spec: MemorySpec, state: Tensors, x: Tensor, v: Tensor, c: Coefficients) -> Tensor:
    """delta for every (t, j), by the triangular solve. c is already shifted to t - 1."""
    window, W = spec.window, state[0]
    A, C = _repeat(c.A, window), _repeat(c.C, window)
    known = torch.bmm(A * x, W.mT) - v
    if c.B is not None:
        known = torch.baddbmm(known, _repeat(c.B, window) * x, state[1].mT)
    channel = C.dim() == 4
    system = torch.einsum("gtd,gtnd,gnd->gtn", x, C, x) if channel else C * torch.bmm(x, x.mT)
    return torch.linalg.solve_triangular(
        torch.eye(x.shape[1], dtype=x.dtype, device=x.device) - system,
        known,
        upper=False,
        unitriangular=True,
    )


def _spread(steps: Tensor) -> Tensor:
    """Steps [g, m, c] as the matrix [g, m, m c] that gives each (t, j) to its own token t."""
    m = steps.shape[1]
    eye = torch.eye(m, dtype=steps.dtype, device=steps.device)
    return (eye[:, :, None] * steps[:, None]).flatten(2)


def linear_body(spec: MemorySpec) -> Body:
    """One block of a linear memory; `count` ends rows early."""

    def body(
        state: Tensors, streams: Tensors, shared: Tensors, count: Tensor | None
    ) -> tuple[Tensor, Tensors]:
        q, k, v, alpha, eta, theta, gamma = streams
        constants = shared[0] if shared else None
        m, window, steps = q.shape[1], spec.window, -eta[..., None] * gamma
        x = spec.features(k, constants)
        if isinstance(spec.bias, DotProduct):
            c = coefficients(spec, alpha, band(steps), theta)
            delta = -v
        else:
            c = coefficients(spec, alpha, _spread(steps), theta)
            x, target = _each_window(x, m, window), _each_window(v, m, window)
            delta = _surprises(spec, state, x, target, _before(c, alpha, spec))
        if spec.stop_gradient:
            delta, x = delta.detach(), x.detach()
        S = state[1] if spec.optimizer.momentum else None
        read = PairSum(state[0], S, (delta, x), c)
        y = read(spec.features(q, constants))
        ends = read if count is None else PairSum(state[0], S, (delta, x), rows_at(c, count))
        return y, (ends.end(), *((ends.end_momentum(),) if S is not None else ()))

    return body
