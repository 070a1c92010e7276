"""`online.py` in parallel: inside a chunk the features are fixed, so its exact steps are solved.

The features of all keys are made once, at the chunk's start. The output matrix is then a linear
memory on them (`linear.py`), solved in runs of some tokens; its errors give the rank-one parts of
the hidden matrices, which are summed over pairs as in `chunkwise.py`, or orthogonalized where Muon
steps; and the queries read both. What depends on the gates alone is made before the scan.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from atlas_memory.memory.architectures import LinearMap, plain
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
from atlas_memory.memory.feature_maps import Identity
from atlas_memory.memory.layout import Blocks, cut_blocks, gather
from atlas_memory.memory.linear import exact_of, hoist_exact, solve
from atlas_memory.memory.muon_steps import hoist_steps, steps_of
from atlas_memory.memory.omega import band
from atlas_memory.memory.online import (
    Learner,
    bounded_back,
    error,
    newborn,
    of_state,
    to_state,
    where,
)
from atlas_memory.memory.optimizers import Momentum, Muon
from atlas_memory.memory.pair_sum import read_pairs
from atlas_memory.memory.retention import NoRetention
from atlas_memory.memory.scan import Plan, Tensors, kept_blocks, scan
from atlas_memory.memory.spec import MemorySpec
from atlas_memory.memory.state import MemoryState
from atlas_memory.memory.tokens import Tokens

UNKNOWNS = 128
BlockResult = tuple[Tensor, Tensors]


def run_length(spec: MemorySpec) -> int:
    """Tokens of a chunk whose errors are solved at once: a divisor of the chunk."""
    window = 1 if isinstance(spec.bias, DotProduct) else spec.window
    most = max(1, UNKNOWNS // window)
    return max(n for n in range(1, min(spec.chunk, most) + 1) if spec.chunk % n == 0)


def memorize_online(
    tokens: Tokens, state: MemoryState, initial: Tensors, spec: MemorySpec
) -> tuple[Tensor, MemoryState]:
    """Answers of the new tokens, and the state behind them."""
    if tokens.new == 0:
        return tokens.values[:, :, tokens.recent :], state
    heads, carried = tokens.keys.shape[1], of_state(state)
    now = carried.like(_flat(carried.flat()))
    first = _flat(initial)
    outputs = []
    for piece in _pieces(tokens, spec):
        y, now = _read(spec, piece, now, first, tokens.constants)
        outputs.append(y)
    y = torch.cat(outputs, dim=1).unflatten(0, (-1, heads))
    y = y if piece.blocks is None else gather(y, piece.blocks.slot)
    after = now.like(tuple(x.unflatten(0, (-1, heads)) for x in now.flat()))
    return y, to_state(state, after)


def _flat(tensors: Tensors) -> Tensors:
    return tuple(x.flatten(0, 1) for x in tensors)


# ---- how a text is cut ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Piece:
    """Tokens whose blocks are alike. phase: place in its chunk of the first token, the same in all
    rows; None where rows differ, and then `streams` end with the place of every token.
    """

    streams: Tensors  # q, k, v, alpha, eta, theta, gamma, mu (, place): [g, slots, ..]
    block: int
    phase: int | None
    blocks: Blocks | None = None


def _pieces(tokens: Tokens, spec: MemorySpec) -> Iterator[Piece]:
    """What is left of the open chunk, then whole chunks; or all at once where rows differ."""
    if tokens.alike and tokens.phase is not None:
        phase = tokens.phase
        opened = min(spec.chunk - phase, tokens.new) if phase else 0
        if opened:
            yield Piece(_slice(tokens, 0, opened), opened, phase)
        if opened < tokens.new:
            yield Piece(_slice(tokens, opened, tokens.new), spec.chunk, 0)
    else:
        yield _ragged(tokens, spec)


def _gates(tokens: Tokens) -> Tensors:
    return (*tokens.gates.complete(), tokens.gates.named()["hidden"])


def _slice(tokens: Tokens, begin: int, end: int) -> Tensors:
    recent = tokens.recent
    pairs = (x[:, :, begin : end + recent] for x in (tokens.keys, tokens.values))
    gates = (x[:, :, recent + begin : recent + end] for x in _gates(tokens))
    return _flat((tokens.queries[:, :, begin:end], *pairs, *gates))


def _ragged(tokens: Tokens, spec: MemorySpec) -> Piece:
    heads, recent = tokens.keys.shape[1], tokens.recent
    blocks = cut_blocks(tokens.position, tokens.new, spec.chunk, tokens.starts, tokens.lengths)
    own, pairs = blocks.tokens(tokens.new), blocks.tokens(tokens.new, recent)
    laid = [gather(tokens.queries, own), *(gather(x, pairs) for x in (tokens.keys, tokens.values))]
    laid += [gather(x, recent + own) for x in _gates(tokens)]
    place = blocks.place.repeat_interleave(heads, 0)
    return Piece((*_flat(tuple(laid)), place), spec.chunk, None, blocks)


# ---- the scan ------------------------------------------------------------------------------------


def _read(
    spec: MemorySpec, piece: Piece, now: Learner, first: Tensors, constants: Tensor | None
) -> tuple[Tensor, Learner]:
    q, k, v, alpha, eta, theta, gamma, mu, *place = piece.streams
    run = min(run_length(spec), piece.block)
    exact = hoist_exact(spec, (alpha, eta, theta, gamma), run)
    hidden = _hoist_hidden(spec, piece, (alpha, mu, theta, gamma))
    back, blocks, rows = spec.window - 1, piece.blocks, len(q)
    per_row = None if constants is None else _per_row(spec, constants, rows)
    early = _early(spec, q.shape[-1])
    asked, seen = (spec.features(x, per_row) for x in (q, k)) if early else (q, k)
    streams = (asked, seen, error(spec, k, v), *place, *exact, *hidden)
    heads = rows if blocks is None else rows // len(blocks.count)
    plan = Plan(
        block=piece.block,
        slots=q.shape[1],
        lookbacks=(0, back, back, *(0,) * (len(streams) - 3)),
        partial=True,
        apart=blocks is not None,
        kept=kept_blocks(piece.block * spec.window, first, q),
        fresh=None if blocks is None else blocks.fresh.repeat_interleave(heads, 0),
        count=None if blocks is None else blocks.count.repeat_interleave(heads, 0),
    )
    initial = () if blocks is None else newborn(spec, first).flat()
    shared = (*first[1:], *(() if per_row is None or early else (per_row,)))
    body = online_body(replace(spec, features=Identity()) if early else spec, piece.phase, run)
    y, after = scan(partial(body, like=now), plan, now.flat(), initial, streams, shared)
    return (y + q if spec.architecture.residual else y), now.like(after)


def _early(spec: MemorySpec, dk: int) -> bool:
    """Whether the features of all tokens are made at once: where they are few enough to keep."""
    return spec.features.dim(dk) <= 4 * dk


def _per_row(spec: MemorySpec, constants: Tensor, rows: int) -> Tensor:
    """Constants [h, p + 1] per head have to follow the flattened rows; [p + 1] broadcast."""
    shared = spec.features.constants(1)
    if shared is None or constants.dim() == shared.dim():
        return constants
    return constants.repeat(rows // len(constants), *(1,) * (constants.dim() - 1))


def _hoist_hidden(spec: MemorySpec, piece: Piece, gates: Tensors) -> Tensors:
    """The coefficients of the hidden matrices of all blocks, as streams."""
    fills = zip(gates, (1.0, 0.0, 0.0, 0.0), strict=True)
    alpha, mu, theta, gamma = (by_block(x, piece.block, fill) for x, fill in fills)
    rows = len(gates[0])
    if isinstance(spec.optimizer, Muon):
        if piece.phase is None:
            due = (piece.streams[-1] + 1) % spec.optimizer.period == 0
            mu = mu * by_block(due.to(mu), piece.block, 0.0)
        at = _steps(spec, piece.phase, piece.block)
        return tuple(by_slot(x, rows) for x in hoist_steps(alpha, mu, theta, gamma, at))
    c = coefficients(spec, alpha, band(mu[..., None] * gamma), theta)
    return tuple(by_slot(x, rows) for x in in_streams(c))


def _steps(spec: MemorySpec, phase: int | None, m: int) -> range:
    """The tokens of a block at which Muon steps; all of them where rows differ."""
    assert isinstance(spec.optimizer, Muon)
    period = spec.optimizer.period
    return range(m) if phase is None else range((-phase - 1) % period, m, period)


# ---- one block -----------------------------------------------------------------------------------


def online_body(spec: MemorySpec, phase: int | None, run: int) -> Callable[..., BlockResult]:
    """A chunk, or a part of one that begins at `phase`; the output matrix is solved `run` tokens
    at a time. Streams: the queries, the keys, what is to be written, and the coefficients.
    """
    deep = spec.architecture
    exact = 8 if isinstance(spec.optimizer, Momentum) else 4  # streams of `hoist_exact`

    def body(
        state: Tensors, streams: Tensors, shared: Tensors, count: Tensor | None, like: Learner
    ) -> BlockResult:
        now, (q, k, target, *gates) = like.like(state), streams
        first, constants = shared[: len(like.H)], (*shared[len(like.H) :], None)[0]
        opens: Tensor | bool = phase == 0
        H = now.H if opens else now.H_start
        if phase is None:
            opens, gates = gates[0][:, 0] == 0, gates[1:]
            H = where(opens, now.H, now.H_start)
        phi_k, phi_q = spec.features(k, constants), spec.features(q, constants)
        h, tape = deep.hidden([plain(w) for w in H], phi_k)
        sums, dh = _write_output(spec, now, (h, target), tuple(gates[:exact]), run)
        d = _rank_one(spec, now, (h, target, tape, dh), opens)
        written = phi_k.detach() if spec.stop_gradient else phi_k
        moved = _hidden(spec, tuple(gates[exact:]), phase, q.shape[1]).move(
            now, first, tuple((x, written) for x in d), count
        )
        h_q, _ = deep.hidden(moved.maps, phi_q)
        y = _read_output(sums, h_q, run)
        W, S = _end_output(sums, run, count)
        d_end = tuple(_newest(x, spec.window - 1, count) for x in d) if spec.window > 1 else ()
        return y, Learner((W,), S, moved.H, moved.R, H, d_end).flat()

    return body


def _write_output(
    spec: MemorySpec, now: Learner, pairs: tuple[Tensor, Tensor], gates: Tensors, run: int
) -> tuple[list[PairSum], Tensor]:
    """The output matrix as a sum over pairs, run by run, and W~^T e of every token."""
    (h, target), m, back = pairs, gates[0].shape[1], spec.window - 1
    W, S = now.W[0], now.S[0] if now.S else None
    sums, passed = [], []
    for begin in range(0, m, run):
        end = min(begin + run, m)
        c = exact_of(spec, tuple(x[:, begin:end] for x in gates))
        x, v = h[:, begin : end + back], target[:, begin : end + back]
        e, x = solve(spec, W, S, x, v, c.before)
        own = e[:, back:] if isinstance(spec.bias, DotProduct) else e[:, :: spec.window]
        turned = (W.mT, None if S is None else S.mT)
        passed.append(read_pairs(own, e, x, turned, (c.before.A, c.before.B, c.before.C)))
        sums.append(PairSum(W, S, (e, x), c.now))
        if end < m:
            W, S = sums[-1].end(), None if S is None else sums[-1].end_momentum()
    return sums, passed[0] if len(passed) == 1 else torch.cat(passed, dim=1)


def _read_output(sums: list[PairSum], h: Tensor, run: int) -> Tensor:
    if len(sums) == 1:
        return sums[0](h)
    return torch.cat([part(x) for part, x in zip(sums, h.split(run, dim=1), strict=True)], dim=1)


def _end_output(sums: list[PairSum], run: int, count: Tensor | None) -> tuple[Tensor, Tensors]:
    """W and S behind the last token, or behind the count-th of each row."""
    if count is None:
        last = sums[-1]
        return last.end(), () if last.S is None else (last.end_momentum(),)
    W, S = sums[0].W, sums[0].S
    for n, part in enumerate(sums):
        rows = (count > n * run)[:, None, None]
        here = (count - n * run).clamp(max=part.coefficients.A.shape[1])
        ended = replace(part, coefficients=rows_at(part.coefficients, here))
        W = torch.where(rows, ended.end(), W)
        S = None if S is None else torch.where(rows, ended.end_momentum(), S)
    return W, () if S is None else (S,)


def _rank_one(
    spec: MemorySpec,
    now: Learner,
    made: tuple[Tensor, Tensor, Tensors, Tensor],
    opens: Tensor | bool,
) -> Tensors:
    """d of the look-back pairs, anew where a chunk opens, and of the block's own."""
    h, target, tape, dh = made
    back = spec.window - 1
    if not back:
        return bounded_back(spec, tape, dh)
    if opens is False:
        own = bounded_back(spec, tuple(x[:, back:] for x in tape), dh)
        return tuple(torch.cat(parts, dim=1) for parts in zip(now.d, own, strict=True))
    W = now.W[0]
    older = target[:, :back]
    if not isinstance(spec.bias, DotProduct):
        older = torch.baddbmm(older, h[:, :back], W.mT, alpha=-1)
    d = bounded_back(spec, tape, torch.cat([older @ W, dh], dim=1))
    if opens is True:
        return d
    kept = where(opens, tuple(x[:, :back] for x in d), now.d)
    return tuple(torch.cat([a, x[:, back:]], dim=1) for a, x in zip(kept, d, strict=True))


def _newest(x: Tensor, size: int, count: Tensor | None) -> Tensor:
    """The last `size` of the pairs [g, size + m, ..], or those before the count-th token's end."""
    if count is None:
        return x[:, x.shape[1] - size :]
    index = count[:, None] + torch.arange(size, device=x.device)
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[2]))


# ---- the hidden matrices -------------------------------------------------------------------------


@dataclass(frozen=True)
class Moved:
    """What queries read the hidden layer with, and H and R behind the block."""

    maps: list[LinearMap]
    H: Tensors
    R: Tensors


class Hidden(Protocol):
    def move(
        self,
        now: Learner,
        first: Tensors,
        pairs: tuple[tuple[Tensor, Tensor], ...],
        count: Tensor | None,
    ) -> Moved: ...


def _hidden(spec: MemorySpec, gates: Tensors, phase: int | None, m: int) -> Hidden:
    columns = m + spec.window - 1
    if isinstance(spec.optimizer, Muon):
        return steps_of(spec.optimizer, gates, _steps(spec, phase, m), columns)
    forgets = not isinstance(spec.retention, NoRetention)
    return Summed(from_streams(gates, columns), forgets)


@dataclass(frozen=True)
class Summed:
    """Gradient descent and momentum: H_t = A H + (1 - A) H_0 + B R + sum_i C[t, i] d_i (x) x_i."""

    coefficients: Coefficients
    forgets: bool

    def move(
        self,
        now: Learner,
        first: Tensors,
        pairs: tuple[tuple[Tensor, Tensor], ...],
        count: Tensor | None,
    ) -> Moved:
        c = self.coefficients
        momenta = now.R or (None,) * len(now.H)
        parts = zip(now.H, momenta, pairs, strict=True)
        sums = [PairSum(w, r, p, c) for w, r, p in parts]
        last = c if count is None else rows_at(c, count)
        ends = [replace(s, coefficients=last) for s in sums]
        R = tuple(s.end_momentum() for s in ends if s.S is not None)
        if not self.forgets:
            return Moved(list(sums), tuple(s.end() for s in ends), R)
        lost = 1 - last.A[:, -1:]
        H = tuple(torch.addcmul(s.end(), lost, w) for s, w in zip(ends, first, strict=True))
        return Moved([_returning(s, w) for s, w in zip(sums, first, strict=True)], H, R)


def _returning(kept: PairSum, first: Tensor) -> LinearMap:
    """x -> (A H + .. + (1 - A) H_0) x at every token."""
    lost = 1 - kept.coefficients.A
    return lambda x: torch.addcmul(kept(x), lost, torch.bmm(x, first.mT))
