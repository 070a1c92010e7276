"""Muon on the hidden matrices of an online memory: one matrix per step, shared by a run of tokens.

R_t = theta_t R_{t-1} + sum_j gamma[t, j] d_{t-j} (x) x_{t-j}
H_t = alpha_t H_{t-1} + (1 - alpha_t) H_0, and + mu_t NS_k(R_t) at tokens that step
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from atlas_memory.memory.architectures import LinearMap
from atlas_memory.memory.omega import band, carried, decay
from atlas_memory.memory.optimizers import Muon
from atlas_memory.memory.pair_sum import write_pairs
from atlas_memory.memory.per_token import accumulate, orthogonal
from atlas_memory.memory.scan import Tensors

if TYPE_CHECKING:
    from atlas_memory.memory.online import Learner
    from atlas_memory.memory.online_chunk import Moved

FEW = 4


def hoist_steps(alpha: Tensor, mu: Tensor, theta: Tensor, gamma: Tensor, at: range) -> Tensors:
    """T, P, A, E, since of a block, [g, m, ..]: see `MuonSteps`; no weight enters them."""
    D, A = decay(alpha), carried(alpha)[..., None]
    columns = D[:, :, at.start :: at.step]
    E = columns * mu[:, None, at.start :: at.step]
    number = _number(alpha.shape[1], at, alpha.device)
    since = torch.cat([A, columns], dim=2).gather(2, number.expand(len(alpha), -1)[..., None])
    return carried(theta)[..., None], decay(theta) @ band(gamma), A, E, since


def _number(m: int, at: range, device: torch.device) -> Tensor:
    """How many steps each of m tokens has behind it, its own included."""
    return (torch.arange(m, device=device) - at.start + at.step).clamp(min=0) // at.step


def steps_of(optimizer: Muon, streams: Tensors, at: range, columns: int) -> MuonSteps:
    """What `hoist_steps` left in the streams, for a block that may be shorter than the others."""
    T, P, A, E, since = streams
    return MuonSteps(optimizer, at, T, P[..., :columns], A, E[..., : len(at)], since)


@dataclass(frozen=True)
class MuonSteps:
    """at: the tokens that step. T [g, m, 1], P [g, m, n]: R_t = T R + sum_i P[t, i] d_i (x) x_i.
    A [g, m, 1], E [g, m, s]: H_t = A H + (1 - A) H_0 + sum_r E[t, r] NS(R_r). since [g, m, 1]:
    what is left at a token of the last step before it.
    """

    optimizer: Muon
    at: range
    T: Tensor
    P: Tensor
    A: Tensor
    E: Tensor
    since: Tensor

    def move(
        self,
        now: Learner,
        first: Tensors,
        pairs: tuple[tuple[Tensor, Tensor], ...],
        count: Tensor | None,
    ) -> Moved:
        from atlas_memory.memory.online_chunk import Moved

        stepped, momenta = [w[:, None] for w in now.H], None
        if self.at:
            momenta = self._at_steps(now.R, pairs)
            made = orthogonal(self.optimizer, momenta)
            parts = zip(now.H, first, made, strict=True)
            stepped = [torch.cat([w[:, None], self._behind(w, f, n)], 1) for w, f, n in parts]
        maps = [self._map(w, f) for w, f in zip(stepped, first, strict=True)]
        H = tuple(self._end(w, f, count) for w, f in zip(stepped, first, strict=True))
        if momenta is not None and count is None and self._steps_last:
            return Moved(maps, H, tuple(r[:, -1] for r in momenta))
        return Moved(maps, H, self._momenta(now.R, pairs, count))

    @property
    def _steps_last(self) -> bool:
        return len(self.at) > 0 and self.at[-1] == self.T.shape[1] - 1

    def _steps(self, x: Tensor) -> Tensor:
        """The rows of x [g, m, ..] at tokens that step."""
        return x[:, self.at.start :: self.at.step]

    def _at_steps(self, R: Tensors, pairs: tuple[tuple[Tensor, Tensor], ...]) -> list[Tensor]:
        """R at every step, [g, s, out, in]."""
        T, P = self._steps(self.T), self._steps(self.P)
        if len(self.at) == 1:
            parts = zip(R, pairs, strict=True)
            return [write_pairs(T * r, x, d, P[:, 0])[:, None] for r, (d, x) in parts]
        return [T[..., None] * r[:, None] + accumulate(P, p) for r, p in zip(R, pairs, strict=True)]

    def _behind(self, H: Tensor, first: Tensor, N: Tensor) -> Tensor:
        """H behind every step, [g, s, out, in]."""
        A, E = self._steps(self.A)[..., None], self._steps(self.E)
        kept = torch.addcmul(A * H[:, None], 1 - A, first[:, None])
        if N.shape[1] == 1:
            return torch.addcmul(kept, E[..., None], N)
        return kept + torch.bmm(E, N.flatten(2)).unflatten(2, N.shape[2:])

    def _map(self, stepped: Tensor, first: Tensor) -> LinearMap:
        lost = 1 - self.since

        def read(x: Tensor) -> Tensor:
            z = self.since * self._runs(stepped, x)
            return torch.addcmul(z, lost, torch.bmm(x, first.mT))

        return read

    def _runs(self, stepped: Tensor, x: Tensor) -> Tensor:
        """Every token with the matrix of the last step before it: a few long runs, or one each."""
        m = x.shape[1]
        if len(self.at) > FEW:
            number = _number(m, self.at, x.device)
            return (stepped.index_select(1, number) @ x[..., None])[..., 0]
        cuts = [0, *self.at, m]
        runs = [x[:, begin:end] for begin, end in pairwise(cuts)]
        parts = [run @ w.mT for run, w in zip(runs, stepped.unbind(1), strict=True)]
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]

    def _end(self, stepped: Tensor, first: Tensor, count: Tensor | None) -> Tensor:
        if count is None:
            since, last = self.since[:, -1:], stepped[:, -1]
            return last if self._steps_last else torch.addcmul(since * last, 1 - since, first)
        rows, place = torch.arange(len(count), device=count.device), (count - 1).clamp(min=0)
        number = _number(self.T.shape[1], self.at, count.device)[place]
        since, last = self.since[rows, place, :, None], stepped[rows, number]
        return torch.addcmul(since * last, 1 - since, first)

    def _momenta(
        self, R: Tensors, pairs: tuple[tuple[Tensor, Tensor], ...], count: Tensor | None
    ) -> Tensors:
        if count is None:
            T, P = self.T[:, -1:], self.P[:, -1]
        else:
            rows, place = torch.arange(len(count), device=count.device), (count - 1).clamp(min=0)
            T, P = self.T[rows, place, :, None], self.P[rows, place]
        return tuple(write_pairs(T * r, x, d, P) for r, (d, x) in zip(R, pairs, strict=True))
