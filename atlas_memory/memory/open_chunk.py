"""The open chunk while it is decoded: begun empty, written pair by pair, read as a sum of pairs.

    P <- theta P - eta gamma      T <- theta T
    C <- alpha C + P              B <- alpha B + T      A <- alpha A

Rules that need their matrices at every token (Muon, Memora, Moneta) step them instead, and keep
the pairs of the window alone. Rows may stand at different offsets: each has its own slot. Of a
state that was not decoded the chunk is what its tokens, written once more, add up to: `reopen`.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from atlas_memory.memory.chunkwise import gradient_point, gradients
from atlas_memory.memory.omega import (
    Coefficients,
    Gates,
    PairSum,
    band,
    coefficients,
    rows_at,
    write_pairs,
)
from atlas_memory.memory.optimizers import Momentum, Optimizer, TokenGates
from atlas_memory.memory.spec import MemorySpec
from atlas_memory.memory.state import MemoryState, OpenChunk
from atlas_memory.memory.tokens import gather
from atlas_memory.memory.tree import Tensors, where


def flat(x: Tensor) -> Tensor:
    return x.flatten(0, 1)


def _points(state: MemoryState, alpha: Tensor) -> Tensors:
    return gradient_point(state.spec, tuple(map(flat, state.start)), flat(alpha)[:, None])


def gradient_pairs(
    state: MemoryState, alpha: Tensor, k: Tensor, v: Tensor
) -> tuple[tuple[Tensor, Tensor], ...]:
    """Gradients (d, x) of the given pairs at the chunk's start, [b, h, n, ..]."""
    heads = k.shape[1]
    constants = constants_of(state)
    phi = state.spec.features(flat(k), constants)
    found = gradients(state.spec, _points(state, alpha), phi, flat(k), flat(v))
    return tuple((d.unflatten(0, (-1, heads)), x.unflatten(0, (-1, heads))) for d, x in found)


def constants_of(state: MemoryState) -> Tensor | None:
    rows, heads = state.keys.shape[:2]
    return state.spec.features.per_row(state.constants, rows * heads)


def begin(state: MemoryState, keys: Tensor, values: Tensor) -> OpenChunk:
    """An empty chunk behind the look-back pairs keys, values [b, h, c - 1, d]."""
    b, h = keys.shape[:2]
    spec, slots = state.spec, state.spec.window - 1 + state.spec.chunk
    one = keys.new_ones(b, h, 1)
    pairs = gradient_pairs(state, one[..., 0], keys, values)

    room_of = (1, 0) if spec.materialized else (0, spec.chunk)

    def room(x: Tensor) -> Tensor:
        return pad(x, (0, 0, *room_of))

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
        L=state.start if spec.materialized else (),
        S=state.start_momentum if spec.materialized else (),
    )


def _channel(state: MemoryState) -> bool:
    return state.gates.complete()[0].dim() == 4


def _put(buffer: Tensor, new: Tensor, slot: Tensor) -> Tensor:
    """buffer [b, h, n, d] with new [b, h, 1, d] at each row's slot [b]."""
    index = slot.view(-1, 1, 1, 1).expand_as(new)
    return buffer.scatter(2, index, new)


def _roll(buffer: Tensor, new: Tensor) -> Tensor:
    """buffer [b, h, n, d] without its oldest slot and with new [b, h, 1, d] behind the newest."""
    return torch.cat([buffer[:, :, 1:], new], dim=2)


def write(
    state: MemoryState, o: OpenChunk, k: Tensor, v: Tensor, gates: Gates, offset: Tensor
) -> OpenChunk:
    """The chunk with one more pair; gates of one token, [b, h(, ..)]."""
    spec = state.spec
    alpha, eta, theta, gamma = gates.complete()
    slot = spec.window - 1 + offset
    pairs = gradient_pairs(state, alpha, k, v)
    if o.L:
        d = tuple(_roll(old, new) for old, (new, _) in zip(o.d, pairs, strict=True))
        x = tuple(_roll(old, new) for old, (_, new) in zip(o.x, pairs, strict=True))
        o = replace(o, d=d, x=x)
        return _step_matrices(spec, o, (alpha, eta, theta, gamma), offset)
    d = tuple(_put(old, new, slot) for old, (new, _) in zip(o.d, pairs, strict=True))
    x = tuple(_put(old, new, slot) for old, (_, new) in zip(o.x, pairs, strict=True))
    o = replace(o, d=d, x=x)
    window = (slot[:, None] - torch.arange(spec.window, device=slot.device))[:, None]
    steps = torch.zeros_like(o.P).scatter(2, window.expand_as(gamma), -eta[..., None] * gamma)
    momentum = spec.optimizer.heavy
    P = theta[..., None] * o.P + steps if momentum else steps
    keep = alpha if alpha.dim() == 3 else alpha[..., None]
    T = theta[..., None] * o.T
    C = keep[..., None, :] * o.C + P[..., None] if o.C.dim() == 4 else keep * o.C + P
    return replace(o, C=C, P=P, A=keep * o.A, B=keep * o.B + T if momentum else o.B, T=T)


def _step_matrices(
    spec: MemorySpec, o: OpenChunk, gates: tuple[Tensor, ...], offset: Tensor
) -> OpenChunk:
    """Rules that need W_t itself: the window's gradient as a matrix, one step.

    Their open chunk keeps the pairs of the window alone, newest last.
    """
    alpha, eta, theta, gamma = gates
    steps = ((offset + 1) % spec.optimizer.period == 0)[:, None, None, None].to(eta)
    shaped = TokenGates(
        alpha=alpha[:, :, None] if alpha.dim() == 3 else alpha[..., None, None],
        eta=eta[..., None, None],
        theta=theta[..., None, None],
        steps=steps,
    )
    oldest_first = gamma.flip(-1)[..., None]
    rows = steps.flatten().nonzero()[:, 0] if spec.optimizer.orthogonal else offset
    L, S = [], []
    for i, (d, x) in enumerate(zip(o.d, o.x, strict=True)):
        g = (oldest_first * d).mT @ x
        if spec.optimizer.orthogonal:
            moved, momentum = _muon(spec.optimizer, o.L[i], o.S[i], g, shaped, rows)
        else:
            moved, momentum = spec.optimizer.step(o.L[i], o.S[i] if o.S else g, g, shaped)
        L.append(moved)
        S.append(momentum)
    return replace(o, L=tuple(L), S=tuple(S) if o.S else ())


def _muon(
    optimizer: Optimizer, L: Tensor, S: Tensor, g: Tensor, gates: TokenGates, rows: Tensor
) -> tuple[Tensor, Tensor]:
    """`Muon.step` that orthogonalizes only where a step is due: for the rows `rows`."""
    L, S = gates.alpha * L, gates.theta * S + g
    if len(rows):
        due = optimizer.orthogonalize(S.index_select(0, rows))
        L = L.index_add(0, rows, gates.eta.index_select(0, rows) * due, alpha=-1)
    return L, S


def sums(state: MemoryState, o: OpenChunk) -> list[PairSum]:
    """The open chunk's linear maps, with coefficients of one row."""

    def row(x: Tensor) -> Tensor:
        return flat(x)[:, None]

    momenta = tuple(map(flat, state.start_momentum)) or (None,) * len(state.start)
    momentum = bool(state.start_momentum)
    c = Coefficients(
        A=row(o.A),
        C=row(o.C),
        B=row(o.B) if momentum else None,
        T=row(o.T) if momentum else None,
        P=row(o.P) if momentum else None,
    )
    parts = zip(map(flat, state.start), momenta, map(flat, o.d), map(flat, o.x), strict=True)
    return [PairSum(w, s, (d, x), c) for w, s, d, x in parts]


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
    often = spec.optimizer.orthogonal and spec.optimizer.period < spec.chunk
    return often or spec.retention.mapped


def _one_by_one(
    state: MemoryState, opened: OpenChunk, pair: tuple[Tensor, Tensor], gates: Gates
) -> OpenChunk:
    k, v = pair
    for i in range(k.shape[2]):
        now = gates.map(lambda x: x[:, :, i])  # noqa: B023
        here = torch.full_like(state.offset, i)
        written = write(state, opened, k[:, :, i : i + 1], v[:, :, i : i + 1], now, here)
        opened = where(i < state.offset, written, opened)
    return opened


def _at_once(
    state: MemoryState, o: OpenChunk, pair: tuple[Tensor, Tensor], gates: Gates
) -> OpenChunk:
    """Tokens k, v [b, h, m, d], of which row r has offset[r], behind the look-back pairs."""
    spec, (k, v) = state.spec, pair
    heads, muon = k.shape[1], spec.optimizer.orthogonal
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
