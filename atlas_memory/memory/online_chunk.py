"""`online.py` in parallel: inside a chunk the features are fixed, so its exact steps are solved.

The features of all keys are made once, at the chunk's start. The output matrix is then a linear
memory on them (`linear.py`), solved in runs of some tokens; its errors give the rank-one parts of
the hidden matrices, which are summed over pairs as in `chunkwise.py`, or orthogonalized where Muon
steps; and the queries read both. What no weight enters is made before the scan.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

import torch
from torch import Tensor

from atlas_memory.memory.architectures import MLP, plain
from atlas_memory.memory.graphs import Plan, chunk_body, compiles, kept_blocks, scan
from atlas_memory.memory.learner import (
    Learner,
    bounded_back,
    count_of_streams,
    error,
    features,
    hidden_of,
    hoist_hidden,
    newborn,
    of_state,
    to_state,
)
from atlas_memory.memory.linear import hoist_exact
from atlas_memory.memory.native import texts as native
from atlas_memory.memory.native.library import served
from atlas_memory.memory.omega import by_block, decays
from atlas_memory.memory.optimizers import FEW, Alike, Apart, Muon, Steps
from atlas_memory.memory.products import baddbmm, matmul
from atlas_memory.memory.runs import write_runs
from atlas_memory.memory.spec import MemorySpec
from atlas_memory.memory.state import MemoryState
from atlas_memory.memory.tokens import Blocks, Tokens, cut_blocks, flat, gather
from atlas_memory.memory.tree import Tensors, where

# Errors that are solved at once: their matrices grow with the square, which a processor feels, and
# fewer of them are fewer launches, which an accelerator feels.
UNKNOWNS, ON_ACCELERATOR = 64, 256
BlockResult = tuple[Tensor, Tensors]


def run_length(spec: MemorySpec, device: torch.device) -> int:
    """Tokens of a chunk whose errors are solved at once: a divisor of the chunk."""
    window = 1 if spec.bias.hebbian else spec.window
    most = max(1, (UNKNOWNS if device.type == "cpu" else ON_ACCELERATOR) // window)
    return max(n for n in range(1, min(spec.chunk, most) + 1) if spec.chunk % n == 0)


def memorize_online(
    tokens: Tokens, state: MemoryState, initial: Tensors, spec: MemorySpec, sparse: bool = False
) -> tuple[Tensor, MemoryState]:
    """Answers of the new tokens, and the state behind them.

    sparse: look for stretches in which nothing is written, and read them only.
    """
    if tokens.new == 0:
        return tokens.values[:, :, tokens.recent :], state
    heads, carried = tokens.keys.shape[1], of_state(state)
    now = carried.like(flat(carried.flat()))
    first = flat(initial)
    outputs = []
    for piece in _pieces(tokens, spec, sparse and _may_look(tokens, spec)):
        read = _pass_by if piece.idle else _read
        y, now = read(spec, piece, now, first, tokens.constants)
        outputs.append(y)
    y = torch.cat(outputs, dim=1).unflatten(0, (-1, heads))
    y = y if piece.blocks is None else gather(y, piece.blocks.slot)
    after = now.like(tuple(x.unflatten(0, (-1, heads)) for x in now.flat()))
    return y, to_state(state, after)


# ---- how a text is cut ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Piece:
    """Tokens whose blocks are alike. phase: place in its chunk of the first token, the same in all
    rows; None where rows differ, and then `streams` end with the place of every token. idle: no
    gate of any token lets the memory change.
    """

    streams: Tensors  # q, k, v, alpha, eta, theta, gamma, mu (, place): [g, slots, ..]
    block: int
    phase: int | None
    blocks: Blocks | None = None
    idle: bool = False


def _pieces(tokens: Tokens, spec: MemorySpec, sparse: bool) -> Iterator[Piece]:
    """What is left of the open chunk, then whole chunks; or all at once where rows differ."""
    if tokens.alike and tokens.phase is not None:
        phase = tokens.phase
        opened = min(spec.chunk - phase, tokens.new) if phase else 0
        if opened:
            yield Piece(_slice(tokens, 0, opened), opened, phase)
        if opened < tokens.new:
            for begin, end, idle in _stretches(tokens, spec, opened, sparse):
                block = min(spec.chunk, end - begin)
                yield Piece(_slice(tokens, begin, end), block, 0, idle=idle)
    else:
        yield _ragged(tokens, spec)


def _may_look(tokens: Tokens, spec: MemorySpec) -> bool:
    """Whether gates may be looked at: without gradients, and where no device has to be waited for.
    A momentum that holds steps goes on moving the memory whatever the gates say.
    """
    near = tokens.keys.device.type == "cpu" and not torch.is_grad_enabled()
    return near and not spec.optimizer.heavy


def _stretches(
    tokens: Tokens, spec: MemorySpec, opened: int, sparse: bool
) -> Iterator[tuple[int, int, bool]]:
    """Chunks behind the first `opened` tokens, those alike side by side together: (begin, end,
    whether nothing is written there in any row and head).
    """
    if not sparse:
        yield opened, tokens.new, False
        return
    writes = by_block(_writes(tokens, spec)[None, opened:], spec.chunk, 0).any(1).tolist()
    begin = opened
    for written, chunks in groupby(writes):
        end = min(begin + spec.chunk * sum(1 for _ in chunks), tokens.new)
        yield begin, end, not written
        begin = end


def _writes(tokens: Tokens, spec: MemorySpec) -> Tensor:
    """Whether a token changes anything, [t]: it steps, forgets, or adds to Muon's momentum."""
    alpha, eta, theta, gamma, mu = _gates(tokens)
    changes = (eta != 0) | (mu != 0) | (alpha != 1)
    if spec.optimizer.momentum:
        changes |= (theta != 1) | (gamma != 0).any(dim=3)
    return changes.flatten(0, 1).any(dim=0)


def _gates(tokens: Tokens) -> Tensors:
    return (*tokens.gates.complete(), tokens.gates.named()["hidden"])


def _slice(tokens: Tokens, begin: int, end: int) -> Tensors:
    recent = tokens.recent
    pairs = (x[:, :, begin : end + recent] for x in (tokens.keys, tokens.values))
    gates = (x[:, :, begin:end] for x in _gates(tokens))
    return flat((tokens.queries[:, :, begin:end], *pairs, *gates))


def _ragged(tokens: Tokens, spec: MemorySpec) -> Piece:
    heads, recent = tokens.keys.shape[1], tokens.recent
    run = run_length(spec, tokens.keys.device)
    width = min(spec.chunk, -(-tokens.new // run) * run)  # of whole runs
    blocks = cut_blocks(
        tokens.position, tokens.new, spec.chunk, width, tokens.starts, tokens.lengths
    )
    own, pairs = blocks.tokens(tokens.new), blocks.tokens(tokens.new, recent)
    laid = [gather(tokens.queries, own), *(gather(x, pairs) for x in (tokens.keys, tokens.values))]
    laid += [gather(x, own) for x in _gates(tokens)]
    place = blocks.place.repeat_interleave(heads, 0)
    return Piece((*flat(tuple(laid)), place), width, None, blocks)


# ---- the scan ------------------------------------------------------------------------------------


def _read(
    spec: MemorySpec, piece: Piece, now: Learner, first: Tensors, constants: Tensor | None
) -> tuple[Tensor, Learner]:
    q, k, v, alpha, eta, theta, gamma, mu, *place = piece.streams
    blocks, rows = piece.blocks, len(q)
    run = min(run_length(spec, q.device), piece.block)
    kept = decays(by_block(alpha, run, 1.0)) if run == piece.block else None
    exact = hoist_exact(spec, (alpha, eta, theta, gamma), run, v.shape[2], kept)
    at = _steps(spec, piece.phase, [by_block(x, piece.block, 0) for x in place], piece.block)
    few = _few(spec, piece, at)
    hidden = hoist_hidden(spec, (alpha, mu, theta, gamma), piece.block, at, kept, few)
    per_row = spec.features.per_row(constants, rows)
    shared, seen = first[1:], k
    asked: Tensors = (q,)
    if early := _early(spec, q.shape[-1]):
        seen, phi_q = features(spec, k, q, per_row)
        asked = hidden_of(spec, hidden, at).asked(phi_q, shared)
    elif per_row is not None:
        shared = (*shared, per_row)
    if early and _by_kernel(spec, piece, few, now, (seen, *exact, *hidden, *asked)):
        text = (seen, error(spec, k, v), exact, hidden, asked)
        y, now = _read_by_kernel(spec, piece.block, run, now, first, text)
        return (y + q if spec.architecture.residual else y), now
    streams = (seen, error(spec, k, v), *place, *exact, *hidden, *asked)
    own = (0,) * len(hidden) if few is None else (*(None,) * (len(hidden) - 1), 0)
    back, heads = spec.window - 1, rows if blocks is None else rows // len(blocks.count)
    plan = Plan(
        block=piece.block,
        slots=q.shape[1],
        lookbacks=(back, back, *(0,) * (len(place) + len(exact)), *own, *(0,) * len(asked)),
        partial=True,
        apart=blocks is not None,
        kept=kept_blocks(piece.block * spec.window, first, q),
        fresh=None if blocks is None else blocks.fresh.repeat_interleave(heads, 0),
        count=None if blocks is None else blocks.count.repeat_interleave(heads, 0),
    )
    initial = () if blocks is None else newborn(spec, first).flat()
    choices = (spec, piece.phase, run, early)
    whole = piece.phase == 0 and piece.block == spec.chunk  # others come in too many lengths
    body = chunk_body(online_body, *choices) if whole else online_body(*choices)
    y, after = scan(partial(body, like=now), plan, now.flat(), initial, streams, shared)
    return (y + q if spec.architecture.residual else y), now.like(after)


def _by_kernel(
    spec: MemorySpec, piece: Piece, few: range | None, now: Learner, given: Tensors
) -> bool:
    """Whether a kernel of the processor's can read all chunks of a piece, one behind the other."""
    deep = spec.architecture
    plain = isinstance(deep, MLP) and deep.normalize and not spec.bias.hebbian
    steps = few is not None or not spec.optimizer.orthogonal
    if not (plain and steps and piece.phase == 0) or spec.stop_gradient or compiles():
        return False
    return served((*now.flat(), *given))


def _read_by_kernel(
    spec: MemorySpec,
    block: int,
    run: int,
    now: Learner,
    first: Tensors,
    text: tuple[Tensor, Tensor, Tensors, Tensors, Tensors],
) -> tuple[Tensor, Learner]:
    seen, target, exact, hidden, asked = text
    optimizer, forgets, muon = spec.optimizer, spec.retention.forgets, spec.optimizer.orthogonal
    A, C, B, T, P, E, since = _in_order(hidden, muon)
    phi_q = None if muon else asked[0]
    left, newborn = (*(asked if muon else asked[1:]), None)[:2]
    gates = (*exact, None)[:3]
    known = (now.W[0], *(now.S or (None,)), *now.H, *(now.R or (None,)))
    streams = (seen, target, *gates, A, C, B, T, P, E, since, phi_q, left, newborn)
    rows, period = 0 if T is None else T.shape[-2], min(optimizer.period, block + 1)
    flags = int(optimizer.heavy), int(forgets), int(muon)
    sizes = asked[0].shape[1], block, run, spec.window, *flags, period, rows
    newton_schulz = optimizer.polynomial if isinstance(optimizer, Muon) else (0, 0.0, 0.0, 0.0)
    y, *behind = native.Online.run(first[1], *known, *streams, sizes, newton_schulz)
    return y, now.like(tuple(x for x in behind if x is not None))


def _in_order(hidden: Tensors, muon: bool) -> tuple[Tensor | None, ...]:
    """A, C, B, T, P, E, since of `hoist_hidden`; None for those that the rule has not."""
    if muon:
        T, P, A, E, since = hidden
        return A, None, None, T, P, E, since
    return *(*hidden, None, None, None)[:5], None, None


def _pass_by(
    spec: MemorySpec, piece: Piece, now: Learner, first: Tensors, constants: Tensor | None
) -> tuple[Tensor, Learner]:
    """`_read` of whole chunks in which nothing is written: queries are answered, and the window's
    pairs are left as `_read` would leave them.
    """
    (q, k, v), back = piece.streams[:3], spec.window - 1
    k, v = k[:, k.shape[1] - back :], v[:, v.shape[1] - back :]
    per_row = spec.features.per_row(constants, len(q))
    phi_k, phi_q = features(spec, k, q, per_row)
    maps, W = [plain(w) for w in now.H], now.W[0]
    y = matmul(spec.architecture.hidden(maps, phi_q)[0], W.mT)
    d: Tensors = ()
    if back:
        h, tape = spec.architecture.hidden(maps, phi_k)
        e = error(spec, k, v)
        e = e if spec.bias.hebbian else baddbmm(e, h, W.mT, alpha=-1)
        d = bounded_back(spec, tape, matmul(e, W))
    return (y + q if spec.architecture.residual else y), replace(now, H_start=now.H, d=d)


def _early(spec: MemorySpec, dk: int) -> bool:
    """Whether the features of all tokens are made at once: where they are few enough to keep."""
    return spec.features.dim(dk) <= 4 * dk


def _steps(spec: MemorySpec, phase: int | None, place: Sequence[Tensor], m: int) -> Steps:
    """The tokens of a block at which Muon steps, from the place of its first token in its chunk:
    the same in all rows, or that of every token, [g, m].
    """
    period = spec.optimizer.period
    if period == 1 or phase is not None:
        return Alike(range((-(phase or 0) - 1) % period, m, period))
    return Apart.behind(place[0][:, 0], m, period)


def _few(spec: MemorySpec, piece: Piece, at: Steps) -> range | None:
    """The tokens of every block at which Muon steps, where they are few and the same in all."""
    if not spec.optimizer.orthogonal or piece.phase is None or not isinstance(at, Alike):
        return None
    return at.at if len(at) <= FEW else None


# ---- one block -----------------------------------------------------------------------------------


def online_body(
    spec: MemorySpec, phase: int | None, run: int, early: bool
) -> Callable[..., BlockResult]:
    """A chunk, or a part of one that begins at `phase`; the output matrix is solved `run` tokens
    at a time. Streams: the keys, what is to be written, the coefficients, and the queries; early:
    as features, and what queries find of the first matrices.
    """
    deep = spec.architecture
    ends = 3 if spec.optimizer.heavy else 2  # streams of `hoist_exact`
    gated = ends + count_of_streams(spec)

    def body(
        state: Tensors, streams: Tensors, shared: Tensors, count: Tensor | None, like: Learner
    ) -> BlockResult:
        now, (seen, target, *rest) = like.like(state), streams
        first = shared[: len(like.H)]
        opens: Tensor | bool = phase == 0
        H = now.H if opens else now.H_start
        place = rest[:1] if phase is None else []
        if place:
            opens, rest = place[0][:, 0] == 0, rest[1:]
            H = where(opens, now.H, now.H_start)
        gates, asked = tuple(rest[:gated]), tuple(rest[gated:])
        hidden = hidden_of(spec, gates[ends:], _steps(spec, phase, place, asked[0].shape[1]))
        if not early:
            constants = shared[len(like.H)] if len(shared) > len(like.H) else None
            seen, phi_q = features(spec, seen, asked[0], constants)
            asked = hidden.asked(phi_q, first)
        h, tape = deep.hidden([plain(w) for w in H], seen)
        older = spec.window - 1 if opens is not False else 0
        output = write_runs(spec, (*now.W, *now.S), (h, target), gates[:ends], run, count, older)
        d = _rank_one(spec, now, (tape, output.passed), opens)
        written = seen.detach() if spec.stop_gradient else seen
        moved = hidden.move(now, first, asked, tuple((x, written) for x in d), count)
        h_q, _ = deep.hidden([_given(z) for z in moved.z], asked[0])
        y = output.read(h_q)
        W, *S = output.end()
        d_end = tuple(_newest(x, spec.window - 1, count) for x in d) if spec.window > 1 else ()
        return y, Learner((W,), tuple(S), moved.H, moved.R, H, d_end).flat()

    return body


def _given(z: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda _: z


def _rank_one(
    spec: MemorySpec,
    now: Learner,
    made: tuple[Tensors, Tensor],
    opens: Tensor | bool,
) -> Tensors:
    """d of the look-back pairs, anew where a chunk opens, and of the block's own."""
    tape, dh = made
    back = spec.window - 1
    if not back:
        return bounded_back(spec, tape, dh)
    if opens is False:
        own = bounded_back(spec, tuple(x[:, back:] for x in tape), dh)
        return tuple(torch.cat(parts, dim=1) for parts in zip(now.d, own, strict=True))
    d = bounded_back(spec, tape, dh)
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
