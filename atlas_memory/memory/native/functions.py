"""Kernels as functions with a backward pass, by the names of those whose work they do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from atlas_memory.memory.graphs import OwnBackward
from atlas_memory.memory.native.library import call, side_by_side as beside
from atlas_memory.memory.precision import rounds

CONTIGUOUS = torch.contiguous_format


class Function(OwnBackward):
    """As `OwnBackward`, which has chosen the kernel already."""

    @classmethod
    def run(cls, *given: Any) -> Any:
        if not torch.is_grad_enabled():
            return cls.forward(None, *given)
        return (cls.twin if rounds() else cls).apply(*given)


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


# ---- architectures.py, learner.py ----------------------------------------------------------------


class Hidden(Function):
    """h and its length from z, for an MLP whose hidden layer is normalized."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> tuple[Tensor, Tensor]:
        z = beside(z)
        h, length = torch.empty_like(z), z.new_empty(*z.shape[:2], 1)
        call("hidden_forward", z.shape[1:], z, h, length)
        if ctx is not None:
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(z, h, length)
        return h, length

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dh: Tensor | None, d_length: Tensor | None) -> Tensor:
        z, h, length = ctx.saved_tensors
        dh, dz = torch.zeros_like(h) if dh is None else beside(dh), torch.empty_like(z)
        call("hidden_backward", z.shape[1:], dh, d_length, z, h, length, dz)
        return dz


class Taught(Function):
    """The bounded d of the hidden matrix from dl/dh, and the layer's h, length and z."""

    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> Tensor:
        inputs = [beside(x) for x in given]
        d, norm = torch.empty_like(inputs[0]), torch.empty_like(inputs[2])
        call("taught_forward", d.shape[1:], *inputs, d, norm)
        if ctx is not None:
            ctx.save_for_backward(*inputs, d, norm)
        return d

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dd: Tensor) -> tuple[Tensor, ...]:
        *inputs, d, norm = ctx.saved_tensors
        made = [torch.empty_like(x) for x in inputs]
        call("taught_backward", d.shape[1:], beside(dd), d, norm, *inputs, *made)
        return tuple(made)


# ---- optimizers.py -------------------------------------------------------------------------------


class Orthogonal(Function):
    """Newton-Schulz of S [g, m, n], m <= n, in a few steps of the given coefficients."""

    @staticmethod
    def forward(ctx: Any, S: Tensor, steps: int, *coefficients: float) -> Tensor:
        S = S if 1 in S.stride()[1:] else S.contiguous()
        Y, sizes = torch.empty_like(S), (*S.shape[1:], steps, *coefficients)
        call("orthogonal_forward", sizes, S, Y)
        if ctx is not None:
            ctx.sizes = sizes
            ctx.save_for_backward(S)
        return Y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dY: Tensor) -> tuple[Tensor | None, ...]:
        (S,) = ctx.saved_tensors
        dS = torch.empty_like(S)
        call("orthogonal_backward", ctx.sizes, dY, S, dS)
        return dS, *(None,) * 4


class Direct(Function):
    """Newton-Schulz of X [g, m, n], m <= n and no longer than 1, by products of X itself."""

    @staticmethod
    def forward(ctx: Any, X: Tensor, steps: int, *coefficients: float) -> Tensor:
        g, m, n = X.shape
        X = X if 1 in X.stride()[1:] else X.contiguous()
        Y, later = torch.empty_like(X), X.new_empty(g, (steps - 1) * m, n)
        kept = X.new_empty(g, 2 * steps * m, m)
        sizes = m, n, steps, *coefficients
        call("direct_forward", sizes, X, Y, later, kept)
        if ctx is not None:
            ctx.sizes = sizes
            ctx.save_for_backward(X, later, kept)
        return Y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dY: Tensor) -> tuple[Tensor | None, ...]:
        X, later, kept = ctx.saved_tensors
        dX = torch.empty_like(X)
        call("direct_backward", ctx.sizes, dY, X, later, kept, dX)
        return dX, *(None,) * 4


# ---- linear.py -----------------------------------------------------------------------------------


class Coefficients(Function):
    """`linear.exact` of all blocks, as streams: W_t, and the point of step t's gradient."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor]:
        *inputs, block, dv, earlier = given
        alpha, eta, gamma = inputs[0][..., None], inputs[1][..., None], beside(inputs[2])
        (g, m, window), slots = gamma.shape, -(-gamma.shape[1] // block) * block
        now, before = (gamma.new_empty(g, slots, dv + block * window) for _ in range(2))
        sizes = m, slots, block, window, dv, int(earlier)
        call("coefficients_forward", sizes, alpha, eta, gamma, now, before)
        if ctx is not None:
            ctx.sizes = sizes
            ctx.save_for_backward(alpha, eta, gamma)
        return now, before

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_now: Tensor, d_before: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors
        made = [x.new_empty(x.shape) for x in inputs]
        call("coefficients_backward", ctx.sizes, beside(d_now), beside(d_before), *inputs, *made)
        return made[0][..., 0], made[1][..., 0], made[2], None, None, None


# ---- runs.py -------------------------------------------------------------------------------------


class WriteRuns(Function):
    """Errors e, W~^T e of the tokens and of `older` pairs before them, and W (and S) at the start
    of every run and behind the last.
    """

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor | None, ...]:
        *inputs, run, window, older = given
        inputs = [None if x is None else beside(x) for x in inputs]
        W, S, X, v, before, now, momentum = inputs
        (g, m, D), dv = X.shape, v.shape[2]
        m -= window - 1
        runs, pairs = -(-m // run), run + window - 1
        sizes = m, run, window, D, dv, int(S is not None), older
        e, passed = W.new_empty(g, m * window, dv), W.new_empty(g, older + m, D)
        borders = [room_for_borders(x, runs) for x in (W, S)]
        found = [None if x is None else x.new_empty(g, runs * pairs, dv) for x in (W, S)]
        inner, e_old = W.new_empty(g, runs * pairs, pairs), W.new_empty(g, older, dv)
        taken = *borders, X, v, before, now, momentum, e, passed, *found, inner, e_old
        call("exact_forward", sizes, *taken)
        if ctx is not None:
            ctx.sizes = sizes
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(*borders, X, v, before, now, momentum, e, *found, inner, e_old)
        ends = (None if x is None else x[:, -dv:].clone() for x in borders)
        return e, passed, *borders, *ends

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *given: Any) -> tuple[Tensor | None, ...]:
        W, S, X, v, before, now, momentum, e, *found = ctx.saved_tensors
        de, d_passed, dW_borders, dS_borders, dW, dS = given
        dv, inputs = v.shape[2], (X, v, before, now, momentum)
        # `ReadRuns` has made it for this one place, which takes it over
        de = torch.zeros_like(e) if de is None else beside(de)
        ends = (taken_over(d, None if x is None else x[:, :dv]) for d, x in ((dW, W), (dS, S)))
        made = [*ends, *(None if x is None else torch.zeros_like(x) for x in inputs)]
        asked = [None if x is None else beside(x) for x in (d_passed, dW_borders, dS_borders)]
        kept = W, S, X, before, now, momentum, e, *found
        call("exact_backward", ctx.sizes, de, *asked, *kept, *made)
        return *made, None, None, None


class ReadRuns(Function):
    """Answers to queries whose features are h."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        *inputs, run, window = given
        inputs = [None if x is None else beside(x) for x in inputs]
        h, W, S, _, e, _ = inputs
        (g, m, D), dv = h.shape, e.shape[2]
        sizes = m, run, window, D, dv, int(S is not None), 0
        y = h.new_empty(g, m, dv)
        found = [None if x is None else h.new_empty(g, m, dv) for x in (W, S)]
        inner = h.new_empty(g, m, run + window - 1)
        call("answer_forward", sizes, *inputs, y, *found, inner)
        if ctx is not None:
            ctx.sizes = sizes
            ctx.save_for_backward(*inputs, *found, inner)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, Q, Q_S, inner = ctx.saved_tensors
        h, W, S, X, e, now = inputs
        summed = [None if x is None else torch.zeros_like(x) for x in (W, S, X)]
        dh, de = torch.empty_like(h), torch.empty_like(e)
        # a last run that is shorter has fewer pairs than columns
        d_now = torch.zeros_like(now) if h.shape[1] % ctx.sizes[1] else torch.empty_like(now)
        made = dh, *summed, de, d_now
        call("answer_backward", ctx.sizes, beside(dy), *inputs, Q, Q_S, inner, *made)
        return *made, None, None


def room_for_borders(W: Tensor | None, runs: int) -> Tensor | None:
    """Room for W at the start of every run and behind the last, laid one below the other."""
    if W is None:
        return None
    g, dv, D = W.shape
    room = W.new_empty(g, (runs + 1) * dv, D)
    room[:, :dv] = W
    return room


def taken_over(d: Tensor | None, like: Tensor | None) -> Tensor | None:
    """A gradient that a kernel goes on with in its place."""
    if like is None:
        return None
    return torch.zeros_like(like, memory_format=CONTIGUOUS) if d is None else own_copy(d)


def own_copy(x: Tensor) -> Tensor:
    return x.clone(memory_format=CONTIGUOUS)


@dataclass(frozen=True)
class Runs:
    """What a chunk has written, as `runs.Written`."""

    written: tuple[Any, ...]
    features: Tensor
    now: Tensor
    lengths: tuple[int, int]

    @staticmethod
    def of(carried: Any, pairs: Any, gates: Any, run: int, window: int, older: int) -> Runs:
        W, S = (*carried, None)[:2]
        before, now = gates[1], gates[0]
        momentum = gates[2] if len(gates) > 2 else None
        made = WriteRuns.run(W, S, *pairs, before, now, momentum, run, window, older)
        return Runs(made, pairs[0], now, (run, window))

    @property
    def passed(self) -> Tensor:
        passed: Tensor = self.written[1]
        return passed

    def read(self, h: Tensor) -> Tensor:
        e, _, W, S = self.written[:4]
        answers: Tensor = ReadRuns.run(h, W, S, self.features, e, self.now, *self.lengths)
        return answers

    def end(self) -> tuple[Tensor, ...]:
        return tuple(x for x in self.written[4:] if x is not None)
