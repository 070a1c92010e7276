"""One token at a time: the open chunk stays a sum over pairs.

While a chunk is open its weights are never made: a token adds its pair (d, x) to the chunk's list
and moves the coefficients of `omega.py` on by one row,

    P <- theta P - eta gamma      T <- theta T
    C <- alpha C + P              B <- alpha B + T      A <- alpha A

which costs O(b + c) instead of a rank-c change of every matrix. When the chunk is full it is folded
into the weights. Muon, Memora and Moneta need their matrices at every token and step them.
Rows may stand at different offsets: each has its own slot.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from atlas_memory.memory.architectures import plain
from atlas_memory.memory.chunkwise import Coefficients, PairSum, gradient_point, gradients
from atlas_memory.memory.layout import gather
from atlas_memory.memory.omega import Gates
from atlas_memory.memory.optimizers import Momentum, Muon, TokenGates
from atlas_memory.memory.spec import MemorySpec
from atlas_memory.memory.state import MemoryState, OpenChunk, Tensors
from atlas_memory.memory.tokens import Tokens


def decode(tokens: Tokens, state: MemoryState, spec: MemorySpec) -> tuple[Tensor, MemoryState]:
    """Read one new token per row: its answer, and the state with the open chunk moved on."""
    opened = state.open or reopen(state)
    k, v = tokens.keys[:, :, -1:], tokens.values[:, :, -1:]
    gates = tokens.gates.map(lambda x: x[:, :, -1])
    opened = _write(state, opened, k, v, gates, state.offset)
    y = _read(state, opened, tokens.queries)
    moved = replace(state, open=opened)
    full = state.offset + 1 == spec.chunk
    rows = full.nonzero()[:, 0]
    return y, _close(moved, tokens, rows) if len(rows) else moved


def _flat(x: Tensor) -> Tensor:
    return x.flatten(0, 1)


def _points(state: MemoryState, alpha: Tensor) -> Tensors:
    return gradient_point(state.spec, tuple(map(_flat, state.start)), _flat(alpha)[:, None])


def _pairs(
    state: MemoryState, alpha: Tensor, k: Tensor, v: Tensor
) -> tuple[tuple[Tensor, Tensor], ...]:
    """Gradients (d, x) of the given pairs at the chunk's start, [b, h, n, ..]."""
    heads = k.shape[1]
    constants = _constants(state)
    phi = state.spec.features(_flat(k), constants)
    found = gradients(state.spec, _points(state, alpha), phi, _flat(k), _flat(v))
    return tuple((d.unflatten(0, (-1, heads)), x.unflatten(0, (-1, heads))) for d, x in found)


def _constants(state: MemoryState) -> Tensor | None:
    constants = state.constants
    shared = state.spec.features.constants(state.keys.shape[-1])
    if constants is None or shared is None or constants.dim() == shared.dim():
        return constants
    return constants.repeat(state.keys.shape[0], *(1,) * (constants.dim() - 1))


def _begin(state: MemoryState, keys: Tensor, values: Tensor) -> OpenChunk:
    """An empty chunk behind the look-back pairs keys, values [b, h, c - 1, d]."""
    b, h = keys.shape[:2]
    spec, slots = state.spec, state.spec.window - 1 + state.spec.chunk
    one = keys.new_ones(b, h, 1)
    pairs = _pairs(state, one[..., 0], keys, values)

    def room(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (0, 0, 0, slots - x.shape[2]))

    materialized = isinstance(spec.optimizer, Muon) or spec.retention.mapped
    width = state.gates.complete()[0].shape[-1] if _channel(state) else 1
    rows = keys.new_zeros(b, h, slots, *((width,) if _channel(state) else ()))
    return OpenChunk(
        d=tuple(room(d) for d, _ in pairs),
        x=tuple(room(x) for _, x in pairs),
        C=rows,
        P=keys.new_zeros(b, h, slots),
        A=keys.new_ones(b, h, width),
        B=keys.new_zeros(b, h, width),
        T=one,
        L=state.start if materialized else (),
        S=state.start_momentum if materialized else (),
    )


def _channel(state: MemoryState) -> bool:
    return state.gates.complete()[0].dim() == 4


def _put(buffer: Tensor, new: Tensor, slot: Tensor) -> Tensor:
    """buffer [b, h, n, d] with new [b, h, 1, d] at each row's slot [b]."""
    index = slot.view(-1, 1, 1, 1).expand_as(new)
    return buffer.scatter(2, index, new)


def _write(
    state: MemoryState, o: OpenChunk, k: Tensor, v: Tensor, gates: Gates, offset: Tensor
) -> OpenChunk:
    """The chunk with one more pair; gates of one token, [b, h(, ..)]."""
    spec = state.spec
    alpha, eta, theta, gamma = gates.complete()
    slot = spec.window - 1 + offset
    pairs = _pairs(state, alpha, k, v)
    d = tuple(_put(old, new, slot) for old, (new, _) in zip(o.d, pairs, strict=True))
    x = tuple(_put(old, new, slot) for old, (_, new) in zip(o.x, pairs, strict=True))
    o = replace(o, d=d, x=x)
    if o.L:
        return _step_matrices(spec, o, (alpha, eta, theta, gamma), offset)
    window = (slot[:, None] - torch.arange(spec.window, device=slot.device))[:, None]
    steps = torch.zeros_like(o.P).scatter(2, window.expand_as(gamma), -eta[..., None] * gamma)
    momentum = isinstance(spec.optimizer, Momentum)
    P = theta[..., None] * o.P + steps if momentum else steps
    keep = alpha if alpha.dim() == 3 else alpha[..., None]
    T = theta[..., None] * o.T
    C = keep[..., None, :] * o.C + P[..., None] if o.C.dim() == 4 else keep * o.C + P
    return replace(o, C=C, P=P, A=keep * o.A, B=keep * o.B + T if momentum else o.B, T=T)


def _step_matrices(
    spec: MemorySpec, o: OpenChunk, gates: tuple[Tensor, ...], offset: Tensor
) -> OpenChunk:
    """Rules that need W_t itself: the window's gradient as a matrix, one step."""
    alpha, eta, theta, gamma = gates
    period = spec.optimizer.period if isinstance(spec.optimizer, Muon) else 1
    steps = ((offset + 1) % period == 0)[:, None, None, None].to(eta)
    shaped = TokenGates(
        alpha=alpha[:, :, None] if alpha.dim() == 3 else alpha[..., None, None],
        eta=eta[..., None, None],
        theta=theta[..., None, None],
        steps=steps,
    )
    window = spec.window - 1 + offset[:, None] - torch.arange(spec.window, device=offset.device)
    rows = steps.flatten().nonzero()[:, 0]
    L, S = [], []
    for i, (d, x) in enumerate(zip(o.d, o.x, strict=True)):
        g = (gamma[..., None] * gather(d, window)).mT @ gather(x, window)
        if isinstance(spec.optimizer, Muon):
            moved, momentum = _muon(spec.optimizer, o.L[i], o.S[i], g, shaped, rows)
        else:
            moved, momentum = spec.optimizer.step(o.L[i], o.S[i] if o.S else g, g, shaped)
        L.append(moved)
        S.append(momentum)
    return replace(o, L=tuple(L), S=tuple(S) if o.S else ())


def _muon(
    optimizer: Muon, L: Tensor, S: Tensor, g: Tensor, gates: TokenGates, rows: Tensor
) -> tuple[Tensor, Tensor]:
    """`Muon.step` that orthogonalizes only where a step is due: for the rows `rows`."""
    L, S = gates.alpha * L, gates.theta * S + g
    if len(rows):
        due = optimizer.orthogonalize(S.index_select(0, rows))
        L = L.index_add(0, rows, gates.eta.index_select(0, rows) * due, alpha=-1)
    return L, S


def _sums(state: MemoryState, o: OpenChunk) -> list[PairSum]:
    """The open chunk's linear maps, with coefficients of one row."""

    def row(x: Tensor) -> Tensor:
        return _flat(x)[:, None]

    momenta = tuple(map(_flat, state.start_momentum)) or (None,) * len(state.start)
    momentum = bool(state.start_momentum)
    c = Coefficients(
        A=row(o.A),
        C=row(o.C),
        B=row(o.B) if momentum else None,
        T=row(o.T) if momentum else None,
        P=row(o.P) if momentum else None,
    )
    parts = zip(map(_flat, state.start), momenta, map(_flat, o.d), map(_flat, o.x), strict=True)
    return [PairSum(w, s, (d, x), c) for w, s, d, x in parts]


def _read(state: MemoryState, o: OpenChunk, q: Tensor) -> Tensor:
    spec, heads, flat = state.spec, q.shape[1], _flat(q)
    phi = spec.features(flat, _constants(state))
    if o.L:
        maps = [plain(_flat(spec.retention.weights(w))) for w in o.L]
        y, _ = spec.architecture.forward(maps, phi, flat)
    else:
        y, _ = spec.architecture.forward(_sums(state, o), phi, flat)
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
        sums = _sums(state, o)
        start = tuple(s.end().unflatten(0, (-1, heads)) for s in sums)
        ends = (s.end_momentum() for s in sums if s.S is not None)
        momentum = tuple(x.unflatten(0, (-1, heads)) for x in ends)
    closed = replace(state, start=start, start_momentum=momentum, open=None)
    back = state.spec.window - 1
    return replace(closed, open=_begin(closed, _last(keys, back), _last(values, back)))


def _last(x: Tensor, count: int) -> Tensor:
    return x[:, :, x.shape[2] - count :]


def _where(rows: Tensor, yes: OpenChunk, no: OpenChunk) -> OpenChunk:
    """Row by row one of two open chunks."""
    return _merge(yes, no, lambda a, b: torch.where(rows.view(-1, *(1,) * (a.dim() - 1)), a, b))


def _put_rows(state: MemoryState, part: MemoryState, rows: Tensor) -> MemoryState:
    """The state with the start and the open chunk of `part` in its rows `rows`."""

    def put(new: Tensor, old: Tensor) -> Tensor:
        return old.index_copy(0, rows, new)

    assert part.open is not None and state.open is not None
    return replace(
        state,
        start=tuple(map(put, part.start, state.start)),
        start_momentum=tuple(map(put, part.start_momentum, state.start_momentum)),
        open=_merge(part.open, state.open, put),
    )


def _merge(a: OpenChunk, b: OpenChunk, pick: Callable[[Tensor, Tensor], Tensor]) -> OpenChunk:
    def picks(x: Tensors, y: Tensors) -> Tensors:
        return tuple(map(pick, x, y))

    return OpenChunk(
        d=picks(a.d, b.d),
        x=picks(a.x, b.x),
        C=pick(a.C, b.C),
        P=pick(a.P, b.P),
        A=pick(a.A, b.A),
        B=pick(a.B, b.B),
        T=pick(a.T, b.T),
        L=picks(a.L, b.L),
        S=picks(a.S, b.S),
    )


def reopen(state: MemoryState) -> OpenChunk:
    """The open chunk of a state that was made by another form: write its tokens once more."""
    spec, offset, recent = state.spec, state.offset, state.keys.shape[2]
    back = torch.arange(spec.window - 1, device=offset.device)
    first = (recent - offset)[:, None]
    looked = first - (spec.window - 1) + back
    opened = _begin(state, gather(state.keys, looked), gather(state.values, looked))
    for i in range(int(offset.max())):
        at = (first + i).clamp(max=recent - 1)
        pair = gather(state.keys, at), gather(state.values, at)
        at_gate = (at - (recent - spec.open_tokens)).clamp(min=0)
        gates = state.gates.map(lambda x, at=at_gate: gather(x, at)[:, :, 0])  # type: ignore[misc]
        here = torch.full_like(offset, i)
        opened = _where(i < offset, _write(state, opened, *pair, gates, here), opened)
    return opened
