"""How the hidden matrices of an online memory move inside a block, and what queries find there.

    H_t = A_t H + (1 - A_t) H_0 + B_t R + sum_i C[t, i] d_i (x) x_i     descent and momentum
    H_t = A_t H + (1 - A_t) H_0 + sum_r E[t, r] NS_k(R_r)               Muon, r the tokens that step
    R_t = T_t R + sum_i P[t, i] d_i (x) x_i

No weight enters the coefficients, nor what a query finds of H_0: both are made before the scan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

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
from atlas_memory.memory.omega import band, decays
from atlas_memory.memory.online import Learner
from atlas_memory.memory.optimizers import Optimizer
from atlas_memory.memory.pair_sum import write_pairs
from atlas_memory.memory.per_token import accumulate, orthogonal
from atlas_memory.memory.scan import Tensors
from atlas_memory.memory.spec import MemorySpec

FEW = 4
Written = tuple[tuple[Tensor, Tensor], ...]  # (d, x) of every hidden matrix
Found = Callable[[int, int, Tensor], Tensor]


@dataclass(frozen=True)
class Moved:
    """H_t phi(q_t) per hidden matrix, and H and R behind the block."""

    z: Tensors
    H: Tensors
    R: Tensors


class Hidden(Protocol):
    """The moves of one block."""

    def asked(self, phi_q: Tensor, first: Tensors) -> Tensors: ...
    def move(
        self, now: Learner, first: Tensors, asked: Tensors, pairs: Written, count: Tensor | None
    ) -> Moved: ...


class Steps(Protocol):
    """The tokens of a block of m at which Muon steps, s of them.

    rows: x [g, m, ..] there. number: how many steps a token has behind it, its own included.
    since: what is left at a token of the last step before it, or of the block's start, from what
    is left of the start, A [g, m, 1], and of every step, columns [g, m, s]. runs: every query with
    the matrix of the last step before it, through `found(begin, end, matrix)`. last: whether the
    last token steps in all rows.
    """

    def __len__(self) -> int: ...
    def last(self, m: int) -> bool: ...
    def rows(self, x: Tensor) -> Tensor: ...
    def number(self, m: int, device: torch.device) -> Tensor: ...
    def since(self, A: Tensor, columns: Tensor) -> Tensor: ...
    def runs(self, m: int, stepped: Tensors, found: Found) -> Tensor: ...


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

    def runs(self, m: int, stepped: Tensors, found: Found) -> Tensor:
        runs = zip(pairwise([0, *self.at, m]), stepped, strict=True)
        parts = [found(begin, end, w) for (begin, end), w in runs if begin < end]
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]


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

    def runs(self, m: int, stepped: Tensors, found: Found) -> Tensor:
        z, number = found(0, m, stepped[0]), self.number(m, stepped[0].device)[..., None]
        for n, w in enumerate(stepped[1:]):
            z = torch.where(number > n, found(0, m, w), z)
        return z


def hoist_hidden(
    spec: MemorySpec,
    gates: Tensors,
    block: int,
    at: Steps,
    kept: tuple[Tensor, Tensor] | None,
) -> Tensors:
    """The coefficients of all blocks, as streams, from alpha, mu, theta, gamma [g, slots, ..].

    at: the tokens of every block at which Muon steps. kept: the decays of alpha by block, where
    they are known already.
    """
    fills = zip(gates, (1.0, 0.0, 0.0, 0.0), strict=True)
    alpha, mu, theta, gamma = (by_block(x, block, fill) for x, fill in fills)
    if not spec.optimizer.orthogonal:
        made = in_streams(coefficients(spec, alpha, band(mu[..., None] * gamma), theta, kept))
    else:
        (D, A), (D_theta, T) = kept or decays(alpha), decays(theta)
        A = A[..., None]
        columns = at.rows(D.mT).mT
        E = columns * at.rows(mu)[:, None]
        made = T[..., None], D_theta @ band(gamma), A, E, at.since(A, columns)
    return tuple(by_slot(x, len(gates[0])) for x in made)


def count_of_streams(spec: MemorySpec) -> int:
    """How many streams `hoist_hidden` makes."""
    return 5 if spec.optimizer.momentum else 2


def hidden_of(spec: MemorySpec, streams: Sequence[Tensor], at: Steps) -> Hidden:
    """What `hoist_hidden` left in the streams, for a block that may be shorter than the others."""
    columns = streams[0].shape[1] + spec.window - 1
    forgets = spec.retention.forgets
    if not spec.optimizer.orthogonal:
        return Summed(from_streams(streams, columns), forgets)
    T, P, A, E, since = streams
    return MuonSteps(spec.optimizer, at, T, P[..., :columns], A, E[..., : len(at)], since, forgets)


def _asked(phi_q: Tensor, left: Tensor, first: Tensors, forgets: bool) -> Tensors:
    """Queries times what is left of H, and what they find in (1 - left) H_0 of every matrix."""
    if not forgets:
        return (phi_q,)
    left = left[:, : phi_q.shape[1]]  # streams are filled up to whole blocks
    lost = 1 - left
    return (left * phi_q, *(lost * torch.bmm(phi_q, w.mT) for w in first))


def _found(asked: Tensors, n: int, H: Tensor) -> Tensor:
    """(left H + (1 - left) H_0) phi(q) of matrix n."""
    x, *newborn = asked
    return torch.baddbmm(newborn[n], x, H.mT) if newborn else torch.bmm(x, H.mT)


def _left(first: Tensor, H: Tensor, share: Tensor, forgets: bool) -> Tensor:
    """share H + (1 - share) H_0: bit for bit H where the share is 1."""
    return torch.lerp(first, H, share) if forgets else H


# ---- gradient descent and momentum ---------------------------------------------------------------


@dataclass(frozen=True)
class Summed:
    coefficients: Coefficients
    forgets: bool

    def asked(self, phi_q: Tensor, first: Tensors) -> Tensors:
        return (phi_q, *_asked(phi_q, self.coefficients.A, first, self.forgets))

    def move(
        self, now: Learner, first: Tensors, asked: Tensors, pairs: Written, count: Tensor | None
    ) -> Moved:
        (phi_q, *kept), c = asked, self.coefficients
        weighted = c.C * torch.bmm(phi_q, pairs[0][1].mT)
        z = tuple(
            torch.baddbmm(_found(tuple(kept), n, w), weighted, d)
            for n, (w, (d, _)) in enumerate(zip(now.H, pairs, strict=True))
        )
        if c.B is not None:
            z = tuple(x + c.B * torch.bmm(phi_q, r.mT) for x, r in zip(z, now.R, strict=True))
        return Moved(z, *self._end(now, first, pairs, count))

    def _end(
        self, now: Learner, first: Tensors, pairs: Written, count: Tensor | None
    ) -> tuple[Tensors, Tensors]:
        c = self.coefficients if count is None else rows_at(self.coefficients, count)
        H = []
        for n, (w, (d, x)) in enumerate(zip(now.H, pairs, strict=True)):
            left = _left(first[n], w, c.A[:, -1:], self.forgets)
            if c.B is not None:
                left = torch.addcmul(left, c.B[:, -1:], now.R[n])
            H.append(write_pairs(left, x, d, c.C[:, -1]))
        parts = zip(now.R, pairs, strict=True) if now.R else ()
        R = tuple(PairSum(r, r, p, c).end_momentum() for r, p in parts)
        return tuple(H), R


# ---- Muon ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MuonSteps:
    """at: the tokens that step. T [g, m, 1], P [g, m, n], A [g, m, 1], E [g, m, s] as above, since
    [g, m, 1]: what is left at a token of the last step before it.
    """

    optimizer: Optimizer
    at: Steps
    T: Tensor
    P: Tensor
    A: Tensor
    E: Tensor
    since: Tensor
    forgets: bool

    def asked(self, phi_q: Tensor, first: Tensors) -> Tensors:
        return _asked(phi_q, self.since, first, self.forgets)

    def move(
        self, now: Learner, first: Tensors, asked: Tensors, pairs: Written, count: Tensor | None
    ) -> Moved:
        stepped, momenta = [w[:, None] for w in now.H], None
        if len(self.at):
            momenta = self._at_steps(now.R, pairs)
            made = orthogonal(self.optimizer, momenta)
            parts = zip(now.H, first, made, strict=True)
            stepped = [torch.cat([w[:, None], self._behind(w, f, n)], 1) for w, f, n in parts]
        z = tuple(self._runs(asked, n, w) for n, w in enumerate(stepped))
        H = tuple(self._end(w, f, count) for w, f in zip(stepped, first, strict=True))
        if momenta is not None and count is None and self._steps_last:
            return Moved(z, H, tuple(r[:, -1] for r in momenta))
        return Moved(z, H, self._momenta(now.R, pairs, count))

    @property
    def _steps_last(self) -> bool:
        return self.at.last(self.T.shape[1])

    def _at_steps(self, R: Tensors, pairs: Written) -> list[Tensor]:
        """R at every step, [g, s, out, in]."""
        T, P = self.at.rows(self.T), self.at.rows(self.P)
        if len(self.at) == 1:
            parts = zip(R, pairs, strict=True)
            return [write_pairs(T * r, x, d, P[:, 0])[:, None] for r, (d, x) in parts]
        return [T[..., None] * r[:, None] + accumulate(P, p) for r, p in zip(R, pairs, strict=True)]

    def _behind(self, H: Tensor, first: Tensor, N: Tensor) -> Tensor:
        """H behind every step, [g, s, out, in]."""
        A, E = self.at.rows(self.A)[..., None], self.at.rows(self.E)
        kept = _left(first[:, None], H[:, None], A, self.forgets)
        if N.shape[1] == 1:
            return torch.addcmul(kept, E[..., None], N)
        return kept + torch.bmm(E, N.flatten(2)).unflatten(2, N.shape[2:])

    def _runs(self, asked: Tensors, n: int, stepped: Tensor) -> Tensor:
        """Every query with the matrix of the last step before it: a few long runs, or one each."""
        x, m = asked[0], asked[0].shape[1]
        if len(self.at) <= FEW:
            return self.at.runs(
                m,
                stepped.unbind(1),
                lambda begin, end, w: _found(tuple(a[:, begin:end] for a in asked), n, w),
            )
        rows = torch.arange(len(stepped), device=x.device)[:, None]
        z = (stepped[rows, self.at.number(m, x.device)] @ x[..., None])[..., 0]
        return z + asked[1 + n] if len(asked) > 1 else z

    def _end(self, stepped: Tensor, first: Tensor, count: Tensor | None) -> Tensor:
        if count is None:
            last = stepped[:, -1]
            return (
                last if self._steps_last else _left(first, last, self.since[:, -1:], self.forgets)
            )
        rows, place = torch.arange(len(count), device=count.device), (count - 1).clamp(min=0)
        number = self.at.number(self.T.shape[1], count.device).expand(len(rows), -1)[rows, place]
        return _left(first, stepped[rows, number], self.since[rows, place, :, None], self.forgets)

    def _momenta(self, R: Tensors, pairs: Written, count: Tensor | None) -> Tensors:
        if count is None:
            T, P = self.T[:, -1:], self.P[:, -1]
        else:
            rows, place = torch.arange(len(count), device=count.device), (count - 1).clamp(min=0)
            T, P = self.T[rows, place, :, None], self.P[rows, place]
        return tuple(write_pairs(T * r, x, d, P) for r, (d, x) in zip(R, pairs, strict=True))
