"""The open chunk while it is decoded: begun empty, written pair by pair, read as a sum of pairs.

    P <- theta P - eta gamma      T <- theta T
    C <- alpha C + P              B <- alpha B + T      A <- alpha A

Rules that need their matrices at every token (Muon, Memora, Moneta) step them instead, and keep
the pairs of the window alone. Rows may stand at different offsets: each has its own slot.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from atlas_memory.memory.chunkwise import Coefficients, PairSum, gradient_point, gradients
from atlas_memory.memory.omega import Gates
from atlas_memory.memory.optimizers import Momentum, Muon, TokenGates
from atlas_memory.memory.spec import MemorySpec
from atlas_memory.memory.state import MemoryState, OpenChunk, Tensors


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
    constants = state.constants
    shared = state.spec.features.constants(state.keys.shape[-1])
    if constants is None or shared is None or constants.dim() == shared.dim():
        return constants
    return constants.repeat(state.keys.shape[0], *(1,) * (constants.dim() - 1))


def begin(state: MemoryState, keys: Tensor, values: Tensor) -> OpenChunk:
    """An empty chunk behind the look-back pairs keys, values [b, h, c - 1, d]."""
    b, h = keys.shape[:2]
    spec, slots = state.spec, state.spec.window - 1 + state.spec.chunk
    one = keys.new_ones(b, h, 1)
    pairs = gradient_pairs(state, one[..., 0], keys, values)

    materialized = isinstance(spec.optimizer, Muon) or spec.retention.mapped
    room_of = (1, 0) if materialized else (0, spec.chunk)

    def room(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (0, 0, *room_of))

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
    momentum = isinstance(spec.optimizer, Momentum)
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
    period = spec.optimizer.period if isinstance(spec.optimizer, Muon) else 1
    steps = ((offset + 1) % period == 0)[:, None, None, None].to(eta)
    shaped = TokenGates(
        alpha=alpha[:, :, None] if alpha.dim() == 3 else alpha[..., None, None],
        eta=eta[..., None, None],
        theta=theta[..., None, None],
        steps=steps,
    )
    oldest_first = gamma.flip(-1)[..., None]
    muon = isinstance(spec.optimizer, Muon)
    rows = steps.flatten().nonzero()[:, 0] if muon else offset
    L, S = [], []
    for i, (d, x) in enumerate(zip(o.d, o.x, strict=True)):
        g = (oldest_first * d).mT @ x
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


def where(rows: Tensor, yes: OpenChunk, no: OpenChunk) -> OpenChunk:
    """Row by row one of two open chunks."""
    return merge(yes, no, lambda a, b: torch.where(rows.view(-1, *(1,) * (a.dim() - 1)), a, b))


def merge(a: OpenChunk, b: OpenChunk, pick: Callable[[Tensor, Tensor], Tensor]) -> OpenChunk:
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
