"""Chunks that need one matrix per token: Muon, Memora, Moneta.

Newton-Schulz and the maps of the mirror descents are not linear in the gradients, so the sum over
pairs of `chunkwise.py` has to be made a matrix at every token that steps. The scan recomputes it
in the backward pass: no more than one chunk of them is ever alive.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from atlas_memory.memory.architectures import RankOne
from atlas_memory.memory.chunkwise import at_start, by_block, by_slot, hoisted
from atlas_memory.memory.omega import band, decays
from atlas_memory.memory.optimizers import Optimizer
from atlas_memory.memory.pair_sum import write_pairs
from atlas_memory.memory.scan import Body, Tensors
from atlas_memory.memory.spec import MemorySpec

FEW = 4


def accumulate(weights: Tensor, pairs: RankOne) -> Tensor:
    """sum_i weights[t, i] d_i (x) x_i for every row t: [g, t, n] -> [g, t, out, in]."""
    d, x = pairs
    if d.shape[-1] <= x.shape[-1]:
        return (weights[..., None] * d[:, None]).mT @ x[:, None]
    return d.mT[:, None] @ (weights[..., None] * x[:, None])


@dataclass(frozen=True)
class Segments:
    """x -> W_seg(t) (a_t x): runs of `period` tokens share a matrix. W [g, segments, out, in].

    Segment s holds tokens s r - 1 .. (s + 1) r - 2 (counted from 0): one slot of padding in front
    makes the runs equal. A few long runs are multiplied one by one instead.
    """

    W: Tensor
    scale: Tensor | None
    period: int

    def __call__(self, x: Tensor) -> Tensor:
        m, segments = x.shape[1], self.W.shape[1]
        x = x if self.scale is None else self.scale * x
        if segments <= FEW:
            cuts = [min(max(s * self.period - 1, 0), m) for s in range(segments)]
            runs = [x[:, begin:end] for begin, end in zip(cuts, [*cuts[1:], m], strict=True)]
            return torch.cat([run @ w.mT for run, w in zip(runs, self.W.unbind(1), strict=True)], 1)
        runs = pad(x, (0, 0, 1, segments * self.period - m - 1)).unflatten(
            1, (segments, self.period)
        )
        return (runs @ self.W.mT).flatten(1, 2)[:, 1 : m + 1]


@dataclass(frozen=True)
class MuonChunk:
    """The quantities of a chunk of m tokens and s steps that all matrices share.

    T [g, m, 1], P [g, m, n]: S_t = T_t S' + sum_i P[t, i] u_i, as in `omega.py`. A [g, m, 1 or D],
    E [g, 1 or D, m, s]: at a token that steps, L = A L' - sum_r E[., r] NS(S_r). since
    [g, m, 1 or D]: decay since the last step.
    """

    T: Tensor
    P: Tensor
    A: Tensor
    E: Tensor
    since: Tensor


def muon_chunk(
    optimizer: Optimizer, alpha: Tensor, eta: Tensor, theta: Tensor, gamma: Tensor
) -> MuonChunk:
    m, stepping = alpha.shape[1], optimizer.stepping
    alpha = alpha if alpha.dim() == 3 else alpha[..., None]
    D_alpha, A = decays(alpha.mT)
    D_theta, T = decays(theta)
    A = A.mT
    E = D_alpha[..., stepping] * eta[:, None, None, stepping]
    last = (torch.arange(m, device=alpha.device) + 1) // optimizer.period
    columns = torch.cat([A.mT[..., None], D_alpha[..., stepping]], dim=-1)
    since = columns.gather(3, last.view(1, 1, m, 1).expand(*columns.shape[:3], 1))[..., 0].mT
    return MuonChunk(T[..., None], D_theta @ band(gamma), A, E, since)


def hoist_muon(spec: MemorySpec, streams: Tensors, block: int) -> Tensors:
    """`chunkwise.hoist` for Muon: q, k, v, alpha and T, P, A, E, since of all chunks at once."""
    q, k, v, alpha, eta, theta, gamma = streams
    if spec.retention.channel:
        return streams
    fills = (alpha, 1.0), (eta, 0.0), (theta, 0.0), (gamma, 0.0)
    c = muon_chunk(spec.optimizer, *(by_block(x, block, fill) for x, fill in fills))
    made = (by_slot(x, len(q)) for x in (c.T, c.P, c.A, c.E[:, 0], c.since))
    return (q, k, v, alpha, *made)


def _hoisted_muon(spec: MemorySpec, streams: Tensors) -> MuonChunk:
    """What `hoist_muon` left in the streams, for a chunk that may be shorter than the others."""
    q, k, _, alpha, *rest = streams
    if spec.retention.channel:
        eta, theta, gamma = rest
        return muon_chunk(spec.optimizer, alpha, eta, theta, gamma)
    T, P, A, E, since = rest
    steps = q.shape[1] // spec.optimizer.period
    return MuonChunk(T, P[..., : k.shape[1]], A, E[:, None, :, :steps], since)


def orthogonal(optimizer: Optimizer, S: list[Tensor]) -> list[Tensor]:
    """NS of every matrix; those of one shape, up to transposition, in a single batch."""
    flat = [s if s.shape[-2] <= s.shape[-1] else s.mT for s in S]
    if len(S) == 1 or len({s.shape for s in flat}) > 1:
        return [optimizer.orthogonalize(s) for s in S]
    made = optimizer.orthogonalize(torch.stack(flat)).unbind(0)
    return [n if n.shape == s.shape else n.mT for n, s in zip(made, S, strict=True)]


def _behind_steps(E: Tensor, A: Tensor, L: Tensor, N: Tensor) -> Tensor:
    """L' and L behind every step, from the orthogonalized momenta N: [g, segments, out, in]."""
    if E.shape[1] == 1:
        moved = (E[:, 0] @ N.flatten(2)).unflatten(2, N.shape[2:])
    else:
        moved = torch.einsum("gdsr,grod->gsod", E, N)
    return torch.cat([L[:, None], A[:, :, None] * L[:, None] - moved], dim=1)


def _momenta(
    optimizer: Optimizer, c: MuonChunk, S: Tensor, pairs: RankOne
) -> tuple[Tensor, Tensor]:
    """S at every token that steps, and S behind the chunk."""
    (d, x), m, period = pairs, c.T.shape[1], optimizer.period
    if m == period:
        last = write_pairs(c.T[:, -1:] * S, x, d, c.P[:, -1])
        return last[:, None], last
    stepping = optimizer.stepping
    S_t = c.T[:, stepping, None] * S[:, None] + accumulate(c.P[:, stepping], pairs)
    if m % period == 0:
        return S_t, S_t[:, -1]
    return S_t, write_pairs(c.T[:, -1:] * S, x, d, c.P[:, -1])


def _muon_accumulators(
    optimizer: Optimizer, c: MuonChunk, L: Tensors, S: Tensors, pairs: tuple[RankOne, ...]
) -> tuple[list[Tensor], list[Tensor]]:
    """For every matrix, L' and L behind every step; and S behind the chunk."""
    momenta = [_momenta(optimizer, c, s, p) for s, p in zip(S, pairs, strict=True)]
    N = orthogonal(optimizer, [at_steps for at_steps, _ in momenta])
    E, A = c.E[:, :, optimizer.stepping], c.A[:, optimizer.stepping]
    made = [_behind_steps(E, A, w, n) for w, n in zip(L, N, strict=True)]
    return made, [last for _, last in momenta]


def _muon_maps(spec: MemorySpec, c: MuonChunk, L_s: Tensor, m: int) -> Segments:
    optimizer = spec.optimizer
    if not spec.retention.mapped:
        return Segments(L_s, c.since, optimizer.period)
    last = (torch.arange(m, device=L_s.device) + 1) // optimizer.period
    per_token = spec.retention.weights(c.since[..., None] * L_s[:, last])
    return Segments(pad(per_token, (0, 0, 0, 0, 1, 0)), None, 1)


def muon_body(spec: MemorySpec) -> Body:
    """One chunk of Muon, under any retention with one alpha per token."""
    optimizer = spec.optimizer

    def body(
        state: Tensors, streams: Tensors, shared: Tensors, count: Tensor | None
    ) -> tuple[Tensor, Tensors]:
        L, S, phi_q, pairs = at_start(spec, state, streams, shared)
        q, c = streams[0], _hoisted_muon(spec, streams)
        made, ends = _muon_accumulators(optimizer, c, L, S, pairs)
        maps = [_muon_maps(spec, c, L_s, q.shape[1]) for L_s in made]
        y, _ = spec.architecture.forward(maps, phi_q, q)
        return y, (*(c.since[:, -1:] * L_s[:, -1] for L_s in made), *ends)

    return body


def mapped_body(spec: MemorySpec) -> Body:
    """One chunk of Memora or Moneta: accumulate linearly, map at every token."""

    def body(
        state: Tensors, streams: Tensors, shared: Tensors, count: Tensor | None
    ) -> tuple[Tensor, Tensors]:
        L, S, phi_q, pairs = at_start(spec, state, streams, shared)
        q, c = streams[0], hoisted(spec, streams)
        made, momenta = [], []
        for i, (w, p) in enumerate(zip(L, pairs, strict=True)):
            L_t = c.A[..., None] * w[:, None] + accumulate(c.C, p)
            if c.B is not None and c.T is not None and c.P is not None:
                L_t = L_t + c.B[..., None] * S[i][:, None]
                scaled = c.P[:, -1, :, None] * p[1]
                momenta.append(torch.baddbmm(c.T[:, -1:] * S[i], p[0].mT, scaled))
            made.append(L_t)
        weights = [pad(spec.retention.weights(L_t), (0, 0, 0, 0, 1, 0)) for L_t in made]
        y, _ = spec.architecture.forward([Segments(w, None, 1) for w in weights], phi_q, q)
        return y, (*(L_t[:, -1] for L_t in made), *momenta)

    return body
