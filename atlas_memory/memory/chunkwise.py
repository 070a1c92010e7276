"""The chunkwise form: the recurrent one, parallel inside a chunk.   [Atlas Eq. 16, 34-37, 41]

Every inner gradient is rank one, u_i = d_i (x) x_i, so no weight matrix per token is ever made:

    W_t x = A_t W'x + B_t S'x + sum_i C[t, i] (x_i . x) d_i

three small matrix products per matrix of the memory, shaped like attention over the chunk's pairs.
`docs/chunkwise.md` derives it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from atlas_memory.memory.architectures import RankOne, plain
from atlas_memory.memory.omega import band, decays
from atlas_memory.memory.pair_sum import read_pairs, write_pairs
from atlas_memory.memory.scan import Body, Tensors
from atlas_memory.memory.spec import MemorySpec


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


def hoist(spec: MemorySpec, streams: Tensors, block: int) -> Tensors:
    """Replace the gates of all chunks by their coefficients at once, outside of the scan.

    q, k, v, alpha and A, C (and B, T, P): no weight enters them. ChannelRetention keeps its gates,
    for its C has one matrix per feature.
    """
    q, k, v, alpha, eta, theta, gamma = streams
    if spec.retention.channel:
        return streams
    steps = band(by_block(-eta[..., None] * gamma, block, 0.0))
    decays = by_block(alpha, block, 1.0), steps, by_block(theta, block, 0.0)
    c = coefficients(spec, *decays)
    return (q, k, v, alpha, *(by_slot(x, len(q)) for x in in_streams(c)))


def in_streams(c: Coefficients) -> Tensors:
    """Those that are there; P is only asked for where there is a momentum."""
    return tuple(x for x in (c.A, c.C, c.B, c.T, c.P) if x is not None)


def from_streams(parts: Sequence[Tensor], columns: int) -> Coefficients:
    """The inverse of `in_streams`, for a block of so many pairs."""
    A, C, *momentum = parts
    B, T, P = (*momentum, None, None, None)[:3]
    return Coefficients(A, C[..., :columns], B, T, None if P is None else P[..., :columns])


def by_block(x: Tensor, block: int, fill: float) -> Tensor:
    """[g, slots, ..] -> [g * blocks, block, ..], the last block filled up."""
    missing = -x.shape[1] % block
    filled = pad(x, (0, 0) * (x.dim() - 2) + (0, missing), value=fill) if missing else x
    return filled.unflatten(1, (-1, block)).flatten(0, 1)


def by_slot(x: Tensor, rows: int) -> Tensor:
    """[g * blocks, block, ..] -> [g, slots, ..]."""
    return x.unflatten(0, (rows, -1)).flatten(1, 2)


def hoisted(spec: MemorySpec, streams: Tensors) -> Coefficients:
    """The coefficients of one chunk, from what `hoist` left in the streams."""
    _, k, _, alpha, *rest = streams
    if spec.retention.channel:
        eta, theta, gamma = rest
        return coefficients(spec, alpha, band(-eta[..., None] * gamma), theta)
    return from_streams(rest, k.shape[1])


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


def gradients(
    spec: MemorySpec, W: Tensors, phi_k: Tensor, k: Tensor, v: Tensor
) -> tuple[RankOne, ...]:
    """The rank-one inner gradients (d, x) of all pairs and all matrices, at the weights W."""
    y, tape = spec.architecture.forward([plain(w) for w in W], phi_k, k)
    pairs = spec.architecture.backward(W, tape, spec.bias.surprise(y, v))
    if spec.stop_gradient:
        return tuple((d.detach(), x.detach()) for d, x in pairs)
    return pairs


def gradient_point(spec: MemorySpec, L: Tensors, alpha: Tensor) -> Tensors:
    """The weights at which a chunk's gradients are taken."""
    if spec.decays_first:
        return tuple(alpha[:, :1, None] * w for w in L)
    return tuple(spec.retention.weights(w) for w in L)


def at_start(
    spec: MemorySpec, state: Tensors, streams: Tensors, shared: Tensors
) -> tuple[Tensors, Tensors, Tensor, tuple[RankOne, ...]]:
    """What a chunk begins with: weights L, momenta S, phi(q), and the gradients of its pairs."""
    q, k, v, alpha = streams[:4]
    half = len(state) // 2 if spec.optimizer.momentum else len(state)
    L, constants = state[:half], shared[0] if shared else None
    phi_k, phi_q = spec.features(k, constants), spec.features(q, constants)
    pairs = gradients(spec, gradient_point(spec, L, alpha), phi_k, k, v)
    return L, state[half:], phi_q, pairs


def pair_body(spec: MemorySpec) -> Body:
    """One chunk of a rule whose weights are a sum over pairs (no Newton-Schulz, no map)."""

    def body(
        state: Tensors, streams: Tensors, shared: Tensors, count: Tensor | None
    ) -> tuple[Tensor, Tensors]:
        L, S, phi_q, pairs = at_start(spec, state, streams, shared)
        c = hoisted(spec, streams)
        momenta = S or (None,) * len(L)
        maps = [PairSum(w, s, p, c) for w, s, p in zip(L, momenta, pairs, strict=True)]
        y, _ = spec.architecture.forward(maps, phi_q, streams[0])
        after = tuple(m.end() for m in maps)
        return y, after + tuple(m.end_momentum() for m in maps if m.S is not None)

    return body
