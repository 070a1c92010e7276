"""Chunks and whole texts as functions with a backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from atlas_memory.memory.native.functions import (
    CONTIGUOUS,
    Function,
    own_copy,
    room_for_borders,
    taken_over,
)
from atlas_memory.memory.native.library import call, side_by_side as beside

# ---- chunkwise.py --------------------------------------------------------------------------------


class Deep(Function):
    """Answers to a text of an MLP memory that is written from each chunk's start, and W1, W2, S1,
    S2 at the start of the chunk that is open behind it. Names as in `deep.h`.
    """

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor | None, ...]:
        *inputs, chunk = given
        matrices = inputs[:4]
        streams: list[Any] = [None if x is None else beside(x) for x in inputs[4:]]
        phi_k, _, phi_q = streams[:3]
        (g, tokens, D), (dv, hidden) = phi_q.shape, matrices[0].shape[1:]
        back, chunks = phi_k.shape[1] - tokens, -(-tokens // chunk)
        sizes = tokens, chunk, back, D, hidden, dv, int(ctx is not None)
        kept = chunks if ctx is not None else 1
        borders = [room_for_borders(x, kept) for x in matrices]
        pairs = chunk + back
        made = [phi_q.new_empty(g, kept * pairs, n) for n in (hidden, dv, hidden)]
        made += [phi_q.new_empty(g, kept * chunk, n) for n in (hidden, pairs, pairs)]
        y = phi_q.new_empty(g, tokens, dv)
        call("deep_forward", sizes, *borders, *streams, *made, y)
        if ctx is not None:
            ctx.sizes = sizes
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(*borders, *streams, *made)
        last = tokens // chunk if ctx is not None else tokens // chunk % 2
        return y, *(_border(x, w, last) for x, w in zip(borders, matrices, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor | None, *given: Any) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        streams, (tokens, *_, hidden, dv, _) = saved[4:12], ctx.sizes
        ends = zip(given, saved[:4], (dv, hidden, dv, hidden), strict=True)
        d = [taken_over(x, None if w is None else w[:, :rows]) for x, w, rows in ends]
        made = [None if x is None else torch.zeros_like(x) for x in streams]
        dy = streams[0].new_zeros(len(streams[0]), tokens, dv) if dy is None else beside(dy)
        call("deep_backward", ctx.sizes, dy, *saved, *d, *made)
        return *d, *made, None


class Muon(Function):
    """Answers to a chunk's queries by one matrix that Muon moves at every token, and L, S behind
    the chunk. Names as in `muon.h`.
    """

    @staticmethod
    def numbers(out: int, into: int, steps: int) -> int:
        """Of which a step is made again, see `again` in `orthogonal.h`."""
        m, n = sorted((out, into))
        return m * m if steps and n > 2 * m else m * n

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, ...]:
        *inputs, period, polynomial = given
        L, S, d, x, alpha, eta, theta, gamma, q = inputs
        gates = alpha[..., None], eta[..., None], theta[..., None], gamma
        taken = [beside(x) for x in (L, S, d, x, *gates, q)]
        (g, m, into), out = q.shape, d.shape[2]
        sizes = m, gamma.shape[2], out, into, period, *polynomial
        made = q.new_empty(g, m, out), q.new_empty(L.shape), q.new_empty(S.shape)
        left = None
        if ctx is not None:
            left = q.new_empty(g, m // period, Muon.numbers(out, into, polynomial[0]))
            ctx.sizes = sizes
            ctx.save_for_backward(*taken, left)
        call("muon_forward", sizes, *taken, *made, left)
        return made

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, left = ctx.saved_tensors
        made = [x.new_zeros(x.shape) for x in inputs]
        call("muon_backward", ctx.sizes, *(beside(x) for x in given), *inputs, left, *made)
        L, S, d, x, alpha, eta, theta, gamma, q = made
        return L, S, d, x, alpha[..., 0], eta[..., 0], theta[..., 0], gamma, q, None, None


def _border(borders: Tensor | None, like: Tensor | None, n: int) -> Tensor | None:
    """The matrix at the n-th border, as a tensor of its own."""
    if borders is None or like is None:
        return None
    rows = like.shape[1]
    return borders[:, n * rows : (n + 1) * rows].clone()


# ---- online_chunk.py -----------------------------------------------------------------------------

KNOWN = 4  # W, S, H, R


class Online(Function):
    """Answers to a text of an MLP memory that is written exactly, and W, S, H, R, H_start, d behind
    it. Names as in `online.h`; sizes: those of `TextSizes` that no tensor tells.
    """

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor | None, ...]:
        first, *inputs, sizes, newton_schulz = given
        streams: list[Any] = [None if x is None else _rows(x) for x in inputs[KNOWN:]]
        (g, _, D), (hidden, dv) = streams[0].shape, (first.shape[1], streams[1].shape[2])
        tokens, chunk, run, window, *rest = sizes
        keeps, chunks = ctx is not None, -(-tokens // chunk)
        numbers = (tokens, chunk, run, window, D, hidden, dv, *rest, int(keeps), *newton_schulz)
        known: list[Any] = [None if x is None else own_copy(x) for x in inputs[:KNOWN]]
        starts = [None if x is None or not keeps else _below(x, chunks) for x in known]
        y, H_start = first.new_empty(g, tokens, dv), torch.empty_like(known[2])
        d = first.new_empty(g, window - 1, hidden)
        call("online_forward", numbers, *known, H_start, d, y, *starts, beside(first), *streams)
        if ctx is not None:
            ctx.numbers, ctx.shapes = numbers, [None if x is None else x.shape for x in inputs]
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(first, *starts, *known, *streams)
        return y, *known, H_start, d if window > 1 else None

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor | None, *given: Any) -> tuple[Tensor | None, ...]:
        first, *rest = ctx.saved_tensors
        starts, known, streams = rest[:KNOWN], rest[KNOWN : 2 * KNOWN], rest[2 * KNOWN :]
        if dy is None:
            dy = first.new_zeros(len(first), ctx.numbers[0], streams[1].shape[2])
        d_known = [taken_over(d, x) for d, x in zip(given[:KNOWN], known, strict=True)]
        ends = [None if d is None else beside(d) for d in given[KNOWN:]]
        d_first = torch.zeros_like(first, memory_format=CONTIGUOUS)
        d_streams = [None if x is None else torch.zeros_like(x) for x in streams]
        given = *d_known, *ends, *starts, d_first, beside(first), *streams, *d_streams
        call("online_backward", ctx.numbers, beside(dy), *given)
        inputs = zip((*d_known, *d_streams), ctx.shapes, strict=True)
        return d_first, *(None if x is None else x.view(n) for x, n in inputs), None, None


def _below(x: Tensor, times: int) -> Tensor:
    """Room for matrices like x, one below the other."""
    return x.new_empty(len(x), times * x.shape[1], x.shape[2])


def _rows(x: Tensor) -> Tensor:
    """Streams by chunk [g, chunks, rows, ..] with their rows one below the other."""
    return beside(x.flatten(1, 2) if x.dim() == 4 else x)
