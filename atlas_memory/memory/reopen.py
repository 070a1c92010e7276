"""The open chunk of a state that was not decoded: what its tokens, written once more, add up to."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from atlas_memory.memory.chunkwise import Coefficients, coefficients, rows_at
from atlas_memory.memory.layout import gather
from atlas_memory.memory.omega import Gates, band
from atlas_memory.memory.open_chunk import begin, flat, gradient_pairs, where, write
from atlas_memory.memory.optimizers import Momentum, Muon
from atlas_memory.memory.pair_sum import write_pairs
from atlas_memory.memory.spec import MemorySpec
from atlas_memory.memory.state import MemoryState, OpenChunk, Tensors


def reopen(state: MemoryState) -> OpenChunk:
    """As if the open chunk's tokens had been decoded one by one."""
    spec, offset, recent = state.spec, state.offset, state.keys.shape[2]
    first = (recent - offset)[:, None]
    looked = first - (spec.window - 1) + torch.arange(spec.window - 1, device=offset.device)
    opened = begin(state, gather(state.keys, looked), gather(state.values, looked))
    tokens = int(offset.max()) if state.phase is None else state.phase
    if tokens == 0:
        return opened
    at = (first + torch.arange(tokens, device=offset.device)).clamp(max=recent - 1)
    pair = gather(state.keys, at), gather(state.values, at)
    at_gate = (at - (recent - spec.open_tokens)).clamp(min=0)
    gates = state.gates.map(lambda x: gather(x, at_gate))
    if _steps_inside(spec):
        return _one_by_one(state, opened, pair, gates)
    return where(offset > 0, _at_once(state, opened, pair, gates), opened)


def _steps_inside(spec: MemorySpec) -> bool:
    """Whether matrices are changed by more than decay before the chunk is full."""
    often = isinstance(spec.optimizer, Muon) and spec.optimizer.period < spec.chunk
    return often or spec.retention.mapped


def _one_by_one(
    state: MemoryState, opened: OpenChunk, pair: tuple[Tensor, Tensor], gates: Gates
) -> OpenChunk:
    k, v = pair
    for i in range(k.shape[2]):
        now = gates.map(lambda x, i=i: x[:, :, i])  # type: ignore[misc]
        here = torch.full_like(state.offset, i)
        written = write(state, opened, k[:, :, i : i + 1], v[:, :, i : i + 1], now, here)
        opened = where(i < state.offset, written, opened)
    return opened


def _at_once(
    state: MemoryState, o: OpenChunk, pair: tuple[Tensor, Tensor], gates: Gates
) -> OpenChunk:
    """Tokens k, v [b, h, m, d], of which row r has offset[r], behind the look-back pairs."""
    spec, (k, v) = state.spec, pair
    heads, muon = k.shape[1], isinstance(spec.optimizer, Muon)
    alpha, eta, theta, gamma = map(flat, gates.complete())
    # The momentum of Muon is that of Momentum with steps of length -1.
    rule = replace(spec, optimizer=Momentum()) if muon else spec
    steps = band(gamma if muon else -eta[..., None] * gamma)
    count = state.offset.repeat_interleave(heads)
    c = rows_at(coefficients(rule, alpha, steps, theta), count)
    found = gradient_pairs(state, k.new_ones(k.shape[:2]), k, v)
    first = 1 if muon else 0
    last = first + spec.window - 1
    d = tuple(
        torch.cat([old[:, :, first:last], new], 2) for old, (new, _) in zip(o.d, found, strict=True)
    )
    x = tuple(
        torch.cat([old[:, :, first:last], new], 2) for old, (_, new) in zip(o.x, found, strict=True)
    )
    return _stepped(state, o, (d, x), c) if muon else _summed(o, (d, x), c)


def _summed(o: OpenChunk, pairs: tuple[Tensors, Tensors], c: Coefficients) -> OpenChunk:
    """The sum over pairs, its buffers filled up to the chunk's size."""
    heads, slots = o.P.shape[1], o.P.shape[2]

    def row(x: Tensor) -> Tensor:
        return x[:, 0].unflatten(0, (-1, heads))

    def filled(x: Tensor) -> Tensor:
        return pad(x, (0, 0) * (x.dim() - 3) + (0, slots - x.shape[2]))

    d, x = (tuple(map(filled, part)) for part in pairs)
    o = replace(o, d=d, x=x, A=row(c.A), C=filled(row(c.C)))
    if c.B is None or c.T is None or c.P is None:
        return o
    return replace(o, B=row(c.B), T=row(c.T), P=filled(row(c.P)))


def _stepped(
    state: MemoryState, o: OpenChunk, pairs: tuple[Tensors, Tensors], c: Coefficients
) -> OpenChunk:
    """Matrices that have only decayed, the momentum, and the pairs of the window."""
    heads, window = o.P.shape[1], state.spec.window
    assert c.T is not None and c.P is not None
    T, P = c.T, c.P[:, 0]
    L = tuple((c.A * flat(w)).unflatten(0, (-1, heads)) for w in o.L)
    S = tuple(
        write_pairs(T * flat(s), flat(x), flat(d), P).unflatten(0, (-1, heads))
        for s, d, x in zip(o.S, *pairs, strict=True)
    )
    newest = (state.offset - 1).clamp(min=0)[:, None] + torch.arange(window, device=P.device)
    d, x = (tuple(gather(y, newest) for y in part) for part in pairs)
    return replace(o, d=d, x=x, L=L, S=S)
