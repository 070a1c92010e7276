"""The chunkwise form: the recurrent one, parallel inside a chunk.   [Atlas Eq. 16, 34-37, 41]

Every inner gradient is rank one, u_i = d_i (x) x_i, so no weight matrix per token is ever made:

    W_t x = A_t W'x + B_t S'x + sum_i C[t, i] (x_i . x) d_i

three small matrix products per matrix of the memory, shaped like attention over the chunk's pairs.
`docs/chunkwise.md` derives it.

Newton-Schulz and the maps of the mirror descents (Muon, Memora, Moneta) are not linear in the
gradients: there the sum over pairs has to be made a matrix at every token that steps. The scan
recomputes it in the backward pass: no more than one chunk of them is ever alive.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from atlas_memory.memory.architectures import MLP, RankOne, plain
from atlas_memory.memory.attentional_bias import L2
from atlas_memory.memory.graphs import (
    KEPT_BYTES,
    Body,
    Plan,
    chunk_body,
    compiles,
    kept_blocks,
    scan,
)
from atlas_memory.memory.learner import error
from atlas_memory.memory.linear import block_size, hoist_linear, linear_body
from atlas_memory.memory.native import texts as native
from atlas_memory.memory.native.library import served
from atlas_memory.memory.omega import (
    Coefficients,
    PairSum,
    accumulate,
    band,
    by_block,
    by_slot,
    coefficients,
    decays,
    from_streams,
    in_streams,
    write_pairs,
)
from atlas_memory.memory.optimizers import FEW, Muon, Optimizer, orthogonal
from atlas_memory.memory.products import baddbmm
from atlas_memory.memory.spec import MemorySpec
from atlas_memory.memory.state import MemoryState
from atlas_memory.memory.tokens import Tokens, flat, gather
from atlas_memory.memory.tree import Tensors


def memorize_chunkwise(
    tokens: Tokens, state: MemoryState, initial: Tensors, spec: MemorySpec
) -> tuple[Tensor, Tensors, Tensors]:
    """Outputs of the new tokens, and accumulators and momentum at the start of the open chunk."""
    if tokens.new == 0:
        return tokens.values[:, :, tokens.recent :], state.start, state.start_momentum
    block = block_size(spec) if spec.linear else spec.chunk
    layout = tokens.layout(block)
    if spec.linear and layout is None:  # how many tokens are solved at once is no semantics
        block = min(block, tokens.new)
    streams = tokens.streams(layout, spec.window - 1)
    heads = tokens.keys.shape[1]
    now = flat((*state.start, *state.start_momentum))
    muon = _muon_by_kernel(spec, (*streams, *now))
    if muon is None:
        streams = _hoist(spec)(spec, streams, block)
    constants = spec.features.per_row(tokens.constants, len(streams[0]))
    if layout is None and _by_kernel(spec, streams, now):
        y, after = _read_by_kernel(spec, streams, now, constants)
    else:
        plan = Plan(
            block=block,
            slots=streams[0].shape[1],
            lookbacks=(0, spec.window - 1, spec.window - 1, *(0,) * (len(streams) - 3)),
            partial=spec.linear,
            kept=_kept_blocks(spec, block, streams, initial, muon),
            fresh=None if layout is None else layout.fresh.repeat_interleave(heads, 0),
            count=None if layout is None else layout.count.repeat_interleave(heads, 0),
        )
        zeros = tuple(torch.zeros_like(w) for w in initial) if spec.optimizer.momentum else ()
        first = flat((*initial, *zeros)) if layout is not None else ()
        shared = () if constants is None else (constants,)
        body = _body(spec) if muon is None else muon_kernel_body(spec, muon)
        y, after = scan(body, plan, now, first, streams, shared)
    y = y.unflatten(0, (-1, heads))
    y = y[:, :, y.shape[2] - tokens.new :] if layout is None else gather(y, layout.slot)
    parts = tuple(x.unflatten(0, (-1, heads)) for x in after)
    return y, parts[: len(initial)], parts[len(initial) :]


def _by_kernel(spec: MemorySpec, streams: Tensors, now: Tensors) -> bool:
    """Whether a kernel of the processor's can read all chunks, one behind the other: those of an
    MLP, as long as what their gradients need fits.
    """
    deep, dk = spec.architecture, streams[0].shape[2]
    plain = isinstance(deep, MLP) and not deep.normalize and isinstance(spec.bias, L2)
    sums = not (spec.materialized or spec.retention.channel or spec.decays_first)
    if not (plain and sums and spec.features.dim(dk) <= 4 * dk) or spec.stop_gradient:
        return False
    if compiles() or not served((*streams, *now)):
        return False
    chunks, pairs = -(-streams[0].shape[1] // spec.chunk), spec.chunk + spec.window - 1
    hidden, dv = now[1].shape[1], streams[2].shape[2]
    numbers = pairs * (5 * hidden + dv + 2 * spec.chunk) + sum(w[0].numel() for w in now)
    kept = chunks if torch.is_grad_enabled() else 1
    return kept * numbers * len(now[0]) * now[0].element_size() <= KEPT_BYTES


def _muon_by_kernel(spec: MemorySpec, given: Tensors) -> Muon | None:
    """Muon, if a kernel of the processor's makes its matrices of a chunk, one token after another:
    where they are many, under one alpha per token.
    """
    optimizer, retention = spec.optimizer, spec.retention
    if not isinstance(optimizer, Muon) or retention.mapped or retention.channel:
        return None
    return optimizer if _per_token(spec) and served(given) else None


def _read_by_kernel(
    spec: MemorySpec, streams: Tensors, now: Tensors, constants: Tensor | None
) -> tuple[Tensor, Tensors]:
    q, k, v, _, *made = streams
    phi_k, phi_q = spec.features(k, constants), spec.features(q, constants)
    matrices = (*now, None, None)[:4]
    gates = (*made, None, None, None)[:5]
    y, *after = native.Deep.run(*matrices, phi_k, error(spec, k, v), phi_q, *gates, spec.chunk)
    return (y + q if spec.architecture.residual else y), tuple(after[: len(now)])


def _body(spec: MemorySpec) -> Body:
    if spec.linear:
        return linear_body(spec)
    make = mapped_body if spec.retention.mapped else pair_body
    make = muon_body if spec.optimizer.orthogonal else make
    return make(spec) if _per_token(spec) else chunk_body(make, spec)


def _hoist(spec: MemorySpec) -> Callable[[MemorySpec, Tensors, int], Tensors]:
    if spec.linear:
        return hoist_linear
    return hoist_muon if spec.optimizer.orthogonal else hoist


def _per_token(spec: MemorySpec) -> bool:
    """Whether a chunk makes more than a few matrices."""
    often = spec.optimizer.orthogonal and 4 * spec.optimizer.period < spec.chunk
    return often or spec.retention.mapped


def _kept_blocks(
    spec: MemorySpec, block: int, streams: Tensors, initial: Tensors, muon: Muon | None
) -> int:
    """How many blocks' graphs fit the budget. muon: where a kernel makes its matrices."""
    like, optimizer = streams[0], spec.optimizer
    if not _per_token(spec):
        pairs = block * spec.window if spec.linear else block + spec.window - 1
        return kept_blocks(pairs, initial, like)
    steps = block // optimizer.period if optimizer.orthogonal else block
    shapes = [w.shape[-2:] for w in initial]
    if muon is None:  # about twelve copies of a matrix, and Newton-Schulz' Gram matrices
        floats = sum(12 * out * into + 20 * min(out, into) ** 2 for out, into in shapes)
    else:  # what makes a step again, and about eight activations for every token
        made_of = sum(native.Muon.numbers(out, into, muon.steps) for out, into in shapes)
        floats = made_of + 8 * muon.period * sum(out + into for out, into in shapes)
    return KEPT_BYTES // (like.element_size() * like.shape[0] * steps * floats)


# ---- one chunk -----------------------------------------------------------------------------------


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


def hoisted(spec: MemorySpec, streams: Tensors) -> Coefficients:
    """The coefficients of one chunk, from what `hoist` left in the streams."""
    _, k, _, alpha, *rest = streams
    if spec.retention.channel:
        eta, theta, gamma = rest
        return coefficients(spec, alpha, band(-eta[..., None] * gamma), theta)
    return from_streams(rest, k.shape[1])


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


# ---- one matrix per token ------------------------------------------------------------------------


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
    """`hoist` for Muon: q, k, v, alpha and T, P, A, E, since of all chunks at once."""
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


@dataclass
class MuonSteps:
    """x -> L_t x by a kernel that makes one L_t after another. Asked once, it leaves L and S behind
    the chunk in `after`.
    """

    muon: Muon
    given: Tensors
    after: Tensors = ()

    def __call__(self, x: Tensor) -> Tensor:
        y, *after = native.Muon.run(*self.given, x, self.muon.period, self.muon.polynomial)
        self.after = tuple(after)
        return y


def muon_kernel_body(spec: MemorySpec, muon: Muon) -> Body:
    """`muon_body` by a kernel, from the gates as they are."""

    def body(
        state: Tensors, streams: Tensors, shared: Tensors, count: Tensor | None
    ) -> tuple[Tensor, Tensors]:
        L, S, phi_q, pairs = at_start(spec, state, streams, shared)
        given = zip(L, S, pairs, strict=True)
        maps = [MuonSteps(muon, (w, s, *p, *streams[3:])) for w, s, p in given]
        y, _ = spec.architecture.forward(maps, phi_q, streams[0])
        return y, (*(m.after[0] for m in maps), *(m.after[1] for m in maps))

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
                momenta.append(baddbmm(c.T[:, -1:] * S[i], p[0].mT, scaled))
            made.append(L_t)
        weights = [pad(spec.retention.weights(L_t), (0, 0, 0, 0, 1, 0)) for L_t in made]
        y, _ = spec.architecture.forward([Segments(w, None, 1) for w in weights], phi_q, q)
        return y, (*(L_t[:, -1] for L_t in made), *momenta)

    return body
