"""One token at a time: the open chunk stays a sum over pairs.

While a chunk is open its weights are never made: a token adds its pair (d, x) to the chunk's list
and moves the coefficients of `omega.py` on by one row (`open_chunk.py`), which costs O(b + c)
instead of a rank-c change of every matrix. When the chunk is full it is folded into the weights.
"""

from dataclasses import replace

from torch import Tensor

from atlas_memory.memory.architectures import plain
from atlas_memory.memory.open_chunk import begin, constants_of, flat, reopen, sums, write
from atlas_memory.memory.spec import MemorySpec
from atlas_memory.memory.state import MemoryState, OpenChunk
from atlas_memory.memory.tokens import Tokens
from atlas_memory.memory.tree import rebuild


def decode(tokens: Tokens, state: MemoryState, spec: MemorySpec) -> tuple[Tensor, MemoryState]:
    """Read one new token per row: its answer, and the state with the open chunk moved on."""
    opened = state.open or reopen(state)
    k, v = tokens.keys[:, :, -1:], tokens.values[:, :, -1:]
    gates = tokens.gates.map(lambda x: x[:, :, -1])
    opened = write(state, opened, k, v, gates, state.offset)
    y = _read(state, opened, tokens.queries)
    moved = replace(state, open=opened)
    if state.phase is not None:
        whole = state.phase + 1 == spec.chunk
        return y, _folded(moved, tokens.keys, tokens.values) if whole else moved
    full = state.offset + 1 == spec.chunk
    rows = full.nonzero()[:, 0]
    return y, _close(moved, tokens, rows) if len(rows) else moved


def _read(state: MemoryState, o: OpenChunk, q: Tensor) -> Tensor:
    spec, heads, asked = state.spec, q.shape[1], flat(q)
    phi = spec.features(asked, constants_of(state))
    if o.L:
        maps = [plain(flat(spec.retention.weights(w))) for w in o.L]
        y, _ = spec.architecture.forward(maps, phi, asked)
    else:
        y, _ = spec.architecture.forward(sums(state, o), phi, asked)
    return y.unflatten(0, (-1, heads))


def _close(state: MemoryState, tokens: Tokens, rows: Tensor) -> MemoryState:
    """Fold the chunks of `rows`, which are full, into the weights and open new ones behind them."""
    if len(rows) == len(state.position):
        return _folded(state, tokens.keys, tokens.values)
    keys, values = (x.index_select(0, rows) for x in (tokens.keys, tokens.values))
    return _put_rows(state, _folded(state.select(rows), keys, values), rows)


def _folded(state: MemoryState, keys: Tensor, values: Tensor) -> MemoryState:
    o, heads = state.open, state.keys.shape[1]
    assert o is not None
    if o.L:
        start, momentum = o.L, o.S
    else:
        maps = sums(state, o)
        start = tuple(m.end().unflatten(0, (-1, heads)) for m in maps)
        ends = (m.end_momentum() for m in maps if m.S is not None)
        momentum = tuple(x.unflatten(0, (-1, heads)) for x in ends)
    closed = replace(state, start=start, start_momentum=momentum, open=None)
    back = state.spec.window - 1
    return replace(closed, open=begin(closed, _last(keys, back), _last(values, back)))


def _last(x: Tensor, count: int) -> Tensor:
    return x[:, :, x.shape[2] - count :]


def _put_rows(state: MemoryState, part: MemoryState, rows: Tensor) -> MemoryState:
    """The state with the start and the open chunk of `part` in its rows `rows`."""

    def put(new: Tensor, old: Tensor) -> Tensor:
        return old.index_copy(0, rows, new)

    assert part.open is not None and state.open is not None
    return replace(
        state,
        start=tuple(map(put, part.start, state.start)),
        start_momentum=tuple(map(put, part.start_momentum, state.start_momentum)),
        open=rebuild(put, part.open, state.open),
    )
