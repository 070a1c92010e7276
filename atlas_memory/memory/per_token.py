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
from atlas_memory.memory.chunkwise import gradient_point, gradients, hoisted
from atlas_memory.memory.omega import band, carried, decay
from atlas_memory.memory.optimizers import Muon
from atlas_memory.memory.scan import Body, Tensors
from atlas_memory.memory.spec import MemorySpec


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
    makes the runs equal.
    """

    W: Tensor
    scale: Tensor | None
    period: int

    def __call__(self, x: Tensor) -> Tensor:
        m, segments = x.shape[1], self.W.shape[1]
        x = x if self.scale is None else self.scale * x
        runs = pad(x, (0, 0, 1, segments * self.period - m - 1)).unflatten(
            1, (segments, self.period)
        )
        return (runs @ self.W.mT).flatten(1, 2)[:, 1 : m + 1]


@dataclass(frozen=True)
class MuonChunk:
    """The quantities of one chunk that all matrices share.

    index: tokens that step. T, P as in `omega.py` for S_t = T_t S' + sum P u. A [g, s, 1 or D],
    E [g, 1 or D, s, s]: accumulators behind the steps, L_s = A_s L' - sum_r E[s, r] NS(S_r).
    since [g, m, 1 or D]: decay since the last step.
    """

    index: Tensor
    T: Tensor
    P: Tensor
    A: Tensor
    E: Tensor
    since: Tensor


def muon_chunk(
    optimizer: Muon, alpha: Tensor, eta: Tensor, theta: Tensor, gamma: Tensor
) -> MuonChunk:
    m = alpha.shape[1]
    index = torch.arange(m, device=alpha.device)[optimizer.period - 1 :: optimizer.period]
    alpha = alpha if alpha.dim() == 3 else alpha[..., None]
    D_alpha, A = decay(alpha.mT), carried(alpha)
    E = D_alpha[:, :, index][..., index] * eta[:, None, None, index]
    last = (torch.arange(m, device=alpha.device) + 1) // optimizer.period
    columns = torch.cat([A.mT[..., None], D_alpha[..., index]], dim=-1)
    since = columns.gather(3, last.view(1, 1, m, 1).expand(*columns.shape[:3], 1))[..., 0].mT
    return MuonChunk(index, carried(theta), decay(theta) @ band(gamma), A[:, index], E, since)


def _muon_accumulators(
    optimizer: Muon, c: MuonChunk, L: Tensor, S: Tensor, pairs: RankOne
) -> tuple[Tensor, Tensor]:
    """L behind every step, after L' itself: [g, segments, out, in]; and S behind the chunk."""
    S_t = c.T[:, c.index, None, None] * S[:, None] + accumulate(c.P[:, c.index], pairs)
    N = optimizer.orthogonalize(S_t)
    if c.E.shape[1] == 1:
        moved = (c.E[:, 0] @ N.flatten(2)).unflatten(2, N.shape[2:])
    else:
        moved = torch.einsum("gdsr,grod->gsod", c.E, N)
    L_t = c.A[:, :, None] * L[:, None] - moved
    d, x = pairs
    S_end = torch.baddbmm(c.T[:, -1, None, None] * S, d.mT, c.P[:, -1, :, None] * x)
    return torch.cat([L[:, None], L_t], dim=1), S_end


def _muon_maps(spec: MemorySpec, c: MuonChunk, L_s: Tensor, m: int) -> Segments:
    optimizer = spec.optimizer
    assert isinstance(optimizer, Muon)
    if not spec.retention.mapped:
        return Segments(L_s, c.since, optimizer.period)
    last = (torch.arange(m, device=L_s.device) + 1) // optimizer.period
    per_token = spec.retention.weights(c.since[..., None] * L_s[:, last])
    return Segments(pad(per_token, (0, 0, 0, 0, 1, 0)), None, 1)


def muon_body(spec: MemorySpec) -> Body:
    """One chunk of Muon, under any retention with one alpha per token."""
    optimizer = spec.optimizer
    assert isinstance(optimizer, Muon)

    def body(
        state: Tensors, streams: Tensors, shared: Tensors, count: Tensor | None
    ) -> tuple[Tensor, Tensors]:
        q, k, v, alpha, eta, theta, gamma = streams
        half, constants = len(state) // 2, shared[0] if shared else None
        L, S = state[:half], state[half:]
        phi_k, phi_q = spec.features(k, constants), spec.features(q, constants)
        pairs = gradients(spec, gradient_point(spec, L, alpha), phi_k, k, v)
        c = muon_chunk(optimizer, alpha, eta, theta, gamma)
        made = [
            _muon_accumulators(optimizer, c, w, s, p) for w, s, p in zip(L, S, pairs, strict=True)
        ]
        maps = [_muon_maps(spec, c, L_s, q.shape[1]) for L_s, _ in made]
        y, _ = spec.architecture.forward(maps, phi_q, q)
        return y, (*(c.since[:, -1:] * L_s[:, -1] for L_s, _ in made), *(s for _, s in made))

    return body


def mapped_body(spec: MemorySpec) -> Body:
    """One chunk of Memora or Moneta: accumulate linearly, map at every token."""

    def body(
        state: Tensors, streams: Tensors, shared: Tensors, count: Tensor | None
    ) -> tuple[Tensor, Tensors]:
        q, k, v, alpha = streams[:4]
        half = len(state) // 2 if spec.optimizer.momentum else len(state)
        L, S = state[:half], state[half:]
        constants = shared[0] if shared else None
        phi_k, phi_q = spec.features(k, constants), spec.features(q, constants)
        pairs = gradients(spec, gradient_point(spec, L, alpha), phi_k, k, v)
        c = hoisted(spec, streams)
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
