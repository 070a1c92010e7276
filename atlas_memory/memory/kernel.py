"""phi*: memories whose first matrix has infinitely many columns.   [Atlas Eq. 21, 23-31]

A matrix that acts on phi*(x) is never made; it is the kernel expansion

    W_t phi*(x) = W_0 x + sum_i exp(x . k_i / sqrt(dk)) p_i(t)

whose coefficients p_i accumulate what the rule writes: p(t) = alpha_t p(t-1) + .., a step adding
-eta_t gamma[t, j] d_{t-j} to the coefficient of pair t - j. With `normalize` the sum is divided by
sum_i exp(.) over the pairs it runs over. Matrix memory, the dot-product bias and eta = alpha = 1
give softmax attention. The later matrices of the memory are ordinary ones.

W_0 x is the map's fixed part and does not decay. The state grows by one coefficient per token.
"""

from dataclasses import dataclass, replace
from math import sqrt

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from atlas_memory.memory.architectures import LinearMap, RankOne, plain
from atlas_memory.memory.omega import PairSum, band, coefficients, rows_at
from atlas_memory.memory.optimizers import TokenGates
from atlas_memory.memory.spec import MemorySpec
from atlas_memory.memory.state import KernelPast, MemoryState
from atlas_memory.memory.tokens import Tokens, arrange, flat, gather
from atlas_memory.memory.tree import Tensors, where


@dataclass(frozen=True)
class Expansion:
    """The memory in kernel form. W, S: all matrices, those in `inputs` only as W_0.

    keys [g, N, dk] are the written pairs, exists [g, N] those that count, p and s per input matrix.
    """

    W: Tensors
    S: Tensors
    keys: Tensor
    exists: Tensor
    p: Tensors
    s: Tensors


@dataclass(frozen=True)
class Similarity:
    """exp(x . k / sqrt(dk)) over pairs that exist, and what divides the sum."""

    normalize: bool

    def __call__(self, x: Tensor, keys: Tensor, exists: Tensor) -> Tensor:
        """[g, t, N], already divided when normalized; exists [g, N] or [g, t, N]."""
        exists = exists if exists.dim() == 3 else exists[:, None]
        scores = torch.bmm(x, keys.mT) / sqrt(x.shape[-1])
        if not self.normalize:
            return scores.exp() * exists.to(scores)
        scores = scores.masked_fill(~exists, -torch.inf)
        nothing = ~exists.any(-1, keepdim=True)
        return torch.softmax(scores.masked_fill(nothing, 0.0), dim=-1).masked_fill(nothing, 0.0)


def _network(spec: MemorySpec, e: Expansion, similarity: Similarity) -> list[LinearMap]:
    """The memory's linear maps as they stand."""
    maps = [plain(w) for w in e.W]
    for p, i in zip(e.p, spec.architecture.inputs, strict=True):
        maps[i] = _kernel_map(e, i, p, similarity)
    return maps


def _kernel_map(e: Expansion, i: int, p: Tensor, similarity: Similarity) -> LinearMap:
    return lambda x: x @ e.W[i].mT + similarity(x, e.keys, e.exists) @ p


def _gradients(
    spec: MemorySpec, e: Expansion, similarity: Similarity, k: Tensor, v: Tensor
) -> tuple[RankOne, ...]:
    y, tape = spec.architecture.forward(_network(spec, e, similarity), k, k)
    pairs = spec.architecture.backward(e.W, tape, spec.bias.surprise(y, v))
    if spec.stop_gradient:
        return tuple((d.detach(), x.detach()) for d, x in pairs)
    return pairs


# --- the recurrent form: one token at a time, literally ------------------------------------------


def _write_token(
    spec: MemorySpec, now: Expansion, pairs: tuple[RankOne, ...], gamma: Tensor, gates: TokenGates
) -> Expansion:
    """One step with the window's gradients; gamma [g, c], oldest pair first, as the last c keys."""
    W, S, p, s = list(now.W), list(now.S), list(now.p), list(now.s)
    momentum = spec.optimizer.momentum
    inputs = spec.architecture.inputs
    for i, (d, x) in enumerate(pairs):
        if i in inputs:
            n = inputs.index(i)
            g = torch.zeros_like(p[n])
            g[:, -d.shape[1] :] += gamma[..., None] * d
            p[n], new = spec.optimizer.step(p[n], s[n] if momentum else g, g, gates)
            s = [new if m == n else old for m, old in enumerate(s)]
        else:
            g = torch.einsum("gc,gco,gci->goi", gamma, d, x)
            W[i], new = spec.optimizer.step(W[i], S[i] if momentum else g, g, gates)
            S = [new if m == i else old for m, old in enumerate(S)]
    return replace(now, W=tuple(W), S=tuple(S), p=tuple(p), s=tuple(s))


def _append(now: Expansion, k: Tensor, exists: Tensor) -> Expansion:
    def grow(x: Tensor) -> Tensor:
        return torch.cat([x, x.new_zeros(x.shape[0], k.shape[1], x.shape[2])], dim=1)

    return replace(
        now,
        keys=torch.cat([now.keys, k], dim=1),
        exists=torch.cat([now.exists, exists], dim=1),
        p=tuple(grow(x) for x in now.p),
        s=tuple(grow(x) for x in now.s),
    )


def _chunk_one_by_one(
    spec: MemorySpec, start: Expansion, streams: Tensors, similarity: Similarity
) -> tuple[Tensor, Expansion]:
    q, k, v, alpha, eta, theta, gamma = streams
    now, outputs, c = start, [], spec.window
    for t in range(q.shape[1]):
        now = _append(now, k[:, t + c - 1 : t + c], torch.ones_like(alpha[:, :1], dtype=torch.bool))
        pairs = _gradients(spec, start, similarity, k[:, t : t + c], v[:, t : t + c])
        at = [x[:, t, None, None] for x in (alpha, eta, theta)]
        gates = TokenGates(at[0], at[1], at[2], steps=torch.ones_like(at[0]))
        now = _write_token(spec, now, pairs, gamma[:, t].flip(-1), gates)
        here = q[:, t : t + 1]
        outputs.append(spec.architecture.forward(_network(spec, now, similarity), here, here)[0])
    return torch.cat(outputs, dim=1), now


# --- the chunkwise form --------------------------------------------------------------------------


def _chunk_at_once(
    spec: MemorySpec, start: Expansion, streams: Tensors, similarity: Similarity
) -> tuple[Tensor, Expansion]:
    q, k, v, alpha, eta, theta, gamma = streams
    m, own = q.shape[1], k[:, spec.window - 1 :]
    pairs = _gradients(spec, start, similarity, k, v)
    c = coefficients(spec, alpha, band(-eta[..., None] * gamma), theta)
    after = _append(start, own, torch.ones_like(alpha, dtype=torch.bool))
    causal = torch.ones(m, m, dtype=torch.bool, device=q.device).tril()
    seen = torch.cat(
        [start.exists[:, None].expand(-1, m, -1), causal.expand(len(q), -1, -1)], dim=-1
    )
    momenta = start.S or (None,) * len(start.W)
    sums = [PairSum(w, s, p, c) for w, s, p in zip(start.W, momenta, pairs, strict=True)]
    maps: list[LinearMap] = list(sums)
    A, B = c.A, c.B

    def kernel_sum(i: int, n: int) -> LinearMap:
        d = pairs[i][0]

        def apply(x: Tensor) -> Tensor:
            e = similarity(x, after.keys, seen)
            old = e[..., : start.keys.shape[1]]
            z = x @ start.W[i].mT + A * (old @ start.p[n])
            if B is not None:
                z = z + B * (old @ start.s[n])
            return z + (e[..., -d.shape[1] :] * c.C) @ d

        return apply

    for n, i in enumerate(spec.architecture.inputs):
        maps[i] = kernel_sum(i, n)
    y, _ = spec.architecture.forward(maps, q, q)
    return y, _close(spec, after, sums)


def _close(spec: MemorySpec, after: Expansion, sums: list[PairSum]) -> Expansion:
    """The expansion behind the chunk: coefficients and later matrices with all that was written."""
    c, inputs = sums[0].coefficients, spec.architecture.inputs
    p, s = [], []
    for n, i in enumerate(inputs):
        d = sums[i].pairs[0]
        older = (0, 0, after.keys.shape[1] - d.shape[1], 0)
        written = torch.nn.functional.pad(c.C[:, -1, :, None] * d, older)
        new_p = c.A[:, -1:] * after.p[n] + written
        if c.B is not None and c.T is not None and c.P is not None:
            new_p = new_p + c.B[:, -1:] * after.s[n]
            surprise = torch.nn.functional.pad(c.P[:, -1, :, None] * d, older)
            s.append(c.T[:, -1:] * after.s[n] + surprise)
        p.append(new_p)
    W = tuple(w.W if i in inputs else w.end() for i, w in enumerate(sums))
    S = tuple(
        w.S if i in inputs else w.end_momentum() for i, w in enumerate(sums) if w.S is not None
    )
    return replace(after, W=W, S=tuple(x for x in S if x is not None), p=tuple(p), s=tuple(s))


# --- the loop over chunks ------------------------------------------------------------------------


def _reset(rows: Tensor, e: Expansion, initial: Tensors) -> Expansion:
    nothing = (initial, *(tuple(map(torch.zeros_like, part)) for part in (e.S, e.p, e.s)))
    W, S, p, s = where(rows, nothing, (e.W, e.S, e.p, e.s))
    return replace(e, W=W, S=S, exists=e.exists & ~rows[:, None], p=p, s=s)


def _keep(rows: Tensor, after: Expansion, before: Expansion, chunk: int) -> Expansion:
    """`after` for rows whose chunk is full; for the others its pairs do not exist yet."""
    old = _append(before, after.keys[:, -chunk:], torch.zeros_like(after.exists[:, -chunk:]))
    W, S, exists, p, s = where(
        rows,
        (after.W, after.S, after.exists, after.p, after.s),
        (old.W, old.S, old.exists, old.p, old.s),
    )
    return Expansion(W, S, after.keys, exists, p, s)


def memorize_kernel(
    tokens: Tokens, state: MemoryState, initial: Tensors, spec: MemorySpec, one_by_one: bool
) -> tuple[Tensor, Tensors, Tensors, KernelPast]:
    """Outputs, W, S and the kernel expansion at the start of the open chunk."""
    assert state.past is not None
    heads = tokens.keys.shape[1]
    layout = arrange(
        tokens.offset, tokens.recent, tokens.new, spec.chunk, tokens.starts, tokens.lengths
    )
    streams = tokens.streams(layout, spec.window - 1)
    e = _open(state, heads)
    fresh = flat(initial)
    outputs = []
    for j in range(layout.fresh.shape[1]):
        e = _reset(layout.fresh[:, j].repeat_interleave(heads), e, fresh)
        y, e = _chunk(spec, e, streams, layout.count[:, j].repeat_interleave(heads), j, one_by_one)
        outputs.append(y)
    y = gather(torch.cat(outputs, dim=1).unflatten(0, (-1, heads)), layout.slot)
    W, S = (tuple(x.unflatten(0, (-1, heads)) for x in part) for part in (e.W, e.S))
    return y, W, S, _past(spec, e, heads)


def replay_kernel(state: MemoryState) -> tuple[Tensors, Tensors]:
    """W and S as of the last token; the matrices of phi* keep their fixed part W_0."""
    tokens, spec, heads = Tokens.of_state(state), state.spec, state.keys.shape[1]
    if spec.open_tokens == 0:
        return state.start, state.start_momentum
    layout = arrange(tokens.offset, tokens.recent, 0, spec.chunk, None, None)
    _, k, v, alpha, eta, theta, gamma = tokens.streams(layout, spec.window - 1)
    e = _open(state, heads)
    pairs = _gradients(spec, e, Similarity(spec.features.normalize), k, v)
    count = tokens.offset.repeat_interleave(heads)
    c = rows_at(coefficients(spec, alpha, band(-eta[..., None] * gamma), theta), count)
    momenta = e.S or (None,) * len(e.W)
    opened, W, S = (count > 0)[:, None, None], list(e.W), list(e.S)
    for i, (w, s, p) in enumerate(zip(e.W, momenta, pairs, strict=True)):
        if i in spec.architecture.inputs:
            continue
        now = PairSum(w, s, p, c)
        W[i] = torch.where(opened, now.end(), w)
        if s is not None:
            S[i] = torch.where(opened, now.end_momentum(), s)
    per_head = [tuple(x.unflatten(0, (-1, heads)) for x in part) for part in (W, S)]
    return per_head[0], per_head[1]


def _chunk(
    spec: MemorySpec, e: Expansion, streams: Tensors, count: Tensor, j: int, one_by_one: bool
) -> tuple[Tensor, Expansion]:
    b, back = spec.chunk, spec.window - 1
    widths = (0, back, back, 0, 0, 0, 0)
    cut = tuple(x[:, j * b : (j + 1) * b + w] for x, w in zip(streams, widths, strict=True))
    run = _chunk_one_by_one if one_by_one else _chunk_at_once
    arguments = spec, e, cut, Similarity(spec.features.normalize)
    if torch.is_grad_enabled() and not one_by_one:
        y, after = checkpoint(run, *arguments, use_reentrant=False, preserve_rng_state=False)
    else:
        y, after = run(*arguments)
    return y, _keep(count == b, after, e, b)


def _open(state: MemoryState, heads: int) -> Expansion:
    past = state.past
    assert past is not None

    exists = past.exists.repeat_interleave(heads, 0)
    (keys,) = flat((past.keys,))
    return Expansion(
        flat(state.start), flat(state.start_momentum), keys, exists, flat(past.p), flat(past.s)
    )


def _past(spec: MemorySpec, e: Expansion, heads: int) -> KernelPast:
    """Pairs that exist, newest last in every row; at least window - 1 columns for the look-back."""
    exists = e.exists.unflatten(0, (-1, heads))[:, 0]
    kept = max(int(exists.sum(1).max()), spec.window - 1)
    order = exists.long().argsort(dim=1, stable=True)[:, exists.shape[1] - kept :]

    def newest(x: Tensor) -> Tensor:
        return gather(x.unflatten(0, (-1, heads)), order)

    found = exists.gather(1, order)
    return KernelPast(newest(e.keys), tuple(map(newest, e.p)), tuple(map(newest, e.s)), found)
