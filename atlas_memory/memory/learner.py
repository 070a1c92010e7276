"""What an online memory knows, and how its hidden matrices move inside a block.

    H_t = A_t H + (1 - A_t) H_0 + B_t R + sum_i C[t, i] d_i (x) x_i     descent and momentum
    H_t = A_t H + (1 - A_t) H_0 + sum_r E[t, r] NS_k(R_r)               Muon, r the tokens that step
    R_t = T_t R + sum_i P[t, i] d_i (x) x_i

No weight enters the coefficients, nor what a query finds of H_0: both are made before the scan.
`online.py` has the rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from atlas_memory.memory.architectures import Tape
from atlas_memory.memory.feature_maps import Identity
from atlas_memory.memory.omega import (
    Coefficients,
    PairSum,
    accumulate,
    band,
    by_block,
    by_slot,
    coefficients,
    decay_from,
    decay_to,
    decays,
    from_streams,
    in_streams,
    rows_at,
    write_pairs,
)
from atlas_memory.memory.optimizers import FEW, Optimizer, Steps, orthogonal
from atlas_memory.memory.products import baddbmm, bmm
from atlas_memory.memory.spec import MemorySpec
from atlas_memory.memory.state import MemoryState
from atlas_memory.memory.tree import Tensors


@dataclass(frozen=True)
class Learner:
    """What an online memory knows behind a token, every part a tuple of [.., rows, columns].

    W, S: the output matrix and its momentum (of Momentum alone). H, R: the hidden matrices and
    their momentum. H_start: at the chunk's start. d: of the last c - 1 pairs, per hidden matrix.
    """

    W: Tensors
    S: Tensors
    H: Tensors
    R: Tensors
    H_start: Tensors
    d: Tensors

    def flat(self) -> Tensors:
        return tuple(x for field in fields(self) for x in getattr(self, field.name))

    def like(self, tensors: Tensors) -> Learner:
        """The same parts with other tensors, in the order of `flat`."""
        rest = iter(tensors)
        return Learner(*(tuple(next(rest) for _ in getattr(self, f.name)) for f in fields(self)))


def of_state(state: MemoryState) -> Learner:
    W, *H_start = state.start
    own = 1 if state.spec.optimizer.heavy else 0
    S, R = state.start_momentum[:own], state.start_momentum[own:]
    return Learner((W,), S, state.hidden, R, tuple(H_start), state.recent)


def to_state(state: MemoryState, now: Learner) -> MemoryState:
    start, momentum = (*now.W, *now.H_start), (*now.S, *now.R)
    return replace(state, start=start, start_momentum=momentum, hidden=now.H, recent=now.d)


def newborn(spec: MemorySpec, initial: Tensors) -> Learner:
    """A memory that has read nothing, from its first matrices."""
    W, *H = initial
    matrices, lead = tuple(H), W.shape[:-2]
    zeros = tuple(torch.zeros_like(w) for w in initial)
    back = spec.window - 1
    return Learner(
        W=(W,),
        S=zeros[:1] if spec.optimizer.heavy else (),
        H=matrices,
        R=zeros[1:] if spec.optimizer.momentum else (),
        H_start=matrices,
        d=tuple(w.new_zeros(*lead, back, w.shape[-2]) for w in H) if back else (),
    )


def error(spec: MemorySpec, keys: Tensor, values: Tensor) -> Tensor:
    """What is left to say of a pair where the output matrix says nothing: v - r(k), or v."""
    residual = spec.architecture.residual and not spec.bias.hebbian
    return values - keys if residual else values


def features(
    spec: MemorySpec, keys: Tensor, queries: Tensor, constants: Tensor | None
) -> tuple[Tensor, Tensor]:
    """phi of keys [.., n, d] and queries [.., m, d], in one go."""
    if isinstance(spec.features, Identity):
        return keys, queries
    both = spec.features(torch.cat([keys, queries], dim=-2), constants)
    phi_k, phi_q = both.tensor_split([keys.shape[-2]], dim=-2)
    return phi_k, phi_q


def bounded_back(spec: MemorySpec, tape: Tape, dh: Tensor) -> Tensors:
    """d of every hidden matrix from W~^T e: never longer than 1, whatever W has become."""
    bounded = spec.architecture.bounded(tape, dh)
    return tuple(d.detach() for d in bounded) if spec.stop_gradient else bounded


# ---- hidden matrices -----------------------------------------------------------------------------


Written = tuple[tuple[Tensor, Tensor], ...]  # (d, x) of every hidden matrix


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


def hoist_hidden(
    spec: MemorySpec,
    gates: Tensors,
    block: int,
    at: Steps,
    kept: tuple[Tensor, Tensor] | None,
    few: range | None = None,
) -> Tensors:
    """The coefficients of all blocks, as streams, from alpha, mu, theta, gamma [g, slots, ..].

    at: the tokens of every block at which Muon steps. kept: the decays of alpha by block, where
    they are known already. few: those tokens, where they are few and the same in all rows.
    """
    # With theta = 1 a block that is filled up ends with the momentum of its last token.
    fills = zip(gates, (1.0, 0.0, 0.0 if few is None else 1.0, 0.0), strict=True)
    alpha, mu, theta, gamma = (by_block(x, block, fill) for x, fill in fills)
    if not spec.optimizer.orthogonal:
        made = in_streams(coefficients(spec, alpha, band(mu[..., None] * gamma), theta, kept))
    elif few is None:
        (D, A), (D_theta, T) = kept or decays(alpha), decays(theta)
        A = A[..., None]
        columns = at.rows(D.mT).mT
        E = columns * at.rows(mu)[:, None]
        made = T[..., None], D_theta @ band(gamma), A, E, at.since(A, columns)
    else:
        return _few_steps(at, few, (alpha, mu, theta, gamma), len(gates[0]))
    return tuple(by_slot(x, len(gates[0])) for x in made)


def _few_steps(at: Steps, few: Sequence[int], gates: Tensors, rows: int) -> Tensors:
    """T, P, A, E of every block, [g, blocks, ..], for its steps and its last token alone, and
    `since` of every token, [g, slots, 1].
    """
    alpha, mu, theta, gamma = gates
    A, columns = decay_from(alpha, (-1, *few)).tensor_split([1], dim=-1)
    ends = [*few, *([] if gamma.shape[1] - 1 in few else [gamma.shape[1] - 1])]
    T, D = decay_to(theta, ends).tensor_split([1], dim=1)
    E = at.rows(columns) * at.rows(mu)[:, None]
    P = _folded(D[..., None] * gamma[:, :, None])
    by_block = tuple(x.unflatten(0, (rows, -1)) for x in (T.mT, P, at.rows(A), E))
    return (*by_block, by_slot(at.since(A, columns), rows))


def _folded(written: Tensor) -> Tensor:
    """What all tokens give to their windows, [g, m, s, c], added up by pair: [g, s, m + c - 1]."""
    c = written.shape[3]
    parts = [pad(written[..., j].mT, (c - 1 - j, j)) for j in range(c)]
    return sum(parts[1:], parts[0])


def count_of_streams(spec: MemorySpec) -> int:
    """How many streams `hoist_hidden` makes."""
    return 5 if spec.optimizer.momentum else 2


def hidden_of(spec: MemorySpec, streams: Sequence[Tensor], at: Steps) -> Hidden:
    """What `hoist_hidden` left in the streams, for a block that may be shorter than the others."""
    back, forgets = spec.window - 1, spec.retention.forgets
    if not spec.optimizer.orthogonal:
        return Summed(from_streams(streams, streams[0].shape[1] + back), forgets)
    T, P, A, E, since = streams
    if few := P.dim() == 4:
        T, P, A, E = (x.squeeze(1) for x in (T, P, A, E))
    P, E = P[..., : since.shape[1] + back], E[..., : len(at)]
    return MuonSteps(spec.optimizer, at, T, P, A, E, since, forgets, few)


def _asked(phi_q: Tensor, left: Tensor, first: Tensors, forgets: bool) -> Tensors:
    """Queries times what is left of H - H_0, and what they find in H_0 of every matrix; without
    forgetting they read H itself.
    """
    if not forgets:
        return (phi_q,)
    left = left[:, : phi_q.shape[1]]  # streams are filled up to whole blocks
    return (left * phi_q, *(bmm(phi_q, w.mT) for w in first))


def _moved(H: Tensor, first: Tensor, forgets: bool) -> Tensor:
    """What queries of `_asked` read."""
    return H - first if forgets else H


def _left(first: Tensor, H: Tensor, share: Tensor, forgets: bool) -> Tensor:
    """share H + (1 - share) H_0: bit for bit H where the share is 1."""
    return torch.lerp(first, H, share) if forgets else H


@dataclass(frozen=True)
class Summed:
    coefficients: Coefficients
    forgets: bool

    def asked(self, phi_q: Tensor, first: Tensors) -> Tensors:
        return (phi_q, *_asked(phi_q, self.coefficients.A, first, self.forgets))

    def move(
        self, now: Learner, first: Tensors, asked: Tensors, pairs: Written, count: Tensor | None
    ) -> Moved:
        (phi_q, x, *newborn), c = asked, self.coefficients
        weighted = c.C * bmm(phi_q, pairs[0][1].mT)
        read = [_moved(w, f, self.forgets).mT for w, f in zip(now.H, first, strict=True)]
        kept = [baddbmm(z, x, w) for z, w in zip(newborn, read, strict=True)] if newborn else None
        kept = [bmm(x, w) for w in read] if kept is None else kept
        z = tuple(baddbmm(y, weighted, d) for y, (d, _) in zip(kept, pairs, strict=True))
        if c.B is not None:
            z = tuple(x + c.B * bmm(phi_q, r.mT) for x, r in zip(z, now.R, strict=True))
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


@dataclass(frozen=True)
class MuonSteps:
    """at: the tokens that step. T [g, r, 1], P [g, r, n], A [g, a, 1], E [g, a, s] as above, a row
    for every token; few: for those that step and, of T and P, the last one. since [g, m, 1]: what
    is left at a token of the last step before it.
    """

    optimizer: Optimizer
    at: Steps
    T: Tensor
    P: Tensor
    A: Tensor
    E: Tensor
    since: Tensor
    forgets: bool
    few: bool

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
        read = (_moved(w, f[:, None], self.forgets) for w, f in zip(stepped, first, strict=True))
        z = tuple(self._runs(asked, n, w) for n, w in enumerate(read))
        H = tuple(self._end(w, f, count) for w, f in zip(stepped, first, strict=True))
        if momenta is not None and count is None and self._steps_last:
            return Moved(z, H, tuple(r[:, -1] for r in momenta))
        return Moved(z, H, self._momenta(now.R, pairs, count))

    @property
    def _steps_last(self) -> bool:
        return self.at.last(self.since.shape[1])

    def _rows(self, x: Tensor) -> Tensor:
        return x[:, : len(self.at)] if self.few else self.at.rows(x)

    def _at_steps(self, R: Tensors, pairs: Written) -> list[Tensor]:
        """R at every step, [g, s, out, in]."""
        T, P = self._rows(self.T), self._rows(self.P)
        if len(self.at) == 1:
            parts = zip(R, pairs, strict=True)
            return [write_pairs(T * r, x, d, P[:, 0])[:, None] for r, (d, x) in parts]
        return [T[..., None] * r[:, None] + accumulate(P, p) for r, p in zip(R, pairs, strict=True)]

    def _behind(self, H: Tensor, first: Tensor, N: Tensor) -> Tensor:
        """H behind every step, [g, s, out, in]."""
        A, E = self._rows(self.A)[..., None], self._rows(self.E)
        kept = _left(first[:, None], H[:, None], A, self.forgets)
        if N.shape[1] == 1:
            return torch.addcmul(kept, E[..., None], N)
        return kept + bmm(E, N.flatten(2)).unflatten(2, N.shape[2:])

    def _runs(self, asked: Tensors, n: int, stepped: Tensor) -> Tensor:
        """Every query with the matrix of the last step before it: a few long runs, or one each."""
        x, newborn = asked[0], asked[1 + n] if len(asked) > 1 else None
        if len(self.at) <= FEW:
            return self.at.runs(x, newborn, stepped.unbind(1))
        rows = torch.arange(len(stepped), device=x.device)[:, None]
        z = (stepped[rows, self.at.number(x.shape[1], x.device)] @ x[..., None])[..., 0]
        return z if newborn is None else z + newborn

    def _end(self, stepped: Tensor, first: Tensor, count: Tensor | None) -> Tensor:
        if count is None:
            last = stepped[:, -1]
            return (
                last if self._steps_last else _left(first, last, self.since[:, -1:], self.forgets)
            )
        rows, place = torch.arange(len(count), device=count.device), (count - 1).clamp(min=0)
        numbers = self.at.number(self.since.shape[1], count.device)
        number = numbers.expand(len(rows), -1)[rows, place]
        return _left(first, stepped[rows, number], self.since[rows, place, :, None], self.forgets)

    def _momenta(self, R: Tensors, pairs: Written, count: Tensor | None) -> Tensors:
        if count is None:
            T, P = self.T[:, -1:], self.P[:, -1]
        else:
            rows, place = torch.arange(len(count), device=count.device), (count - 1).clamp(min=0)
            T, P = self.T[rows, place, :, None], self.P[rows, place]
        return tuple(write_pairs(T * r, x, d, P) for r, (d, x) in zip(R, pairs, strict=True))
