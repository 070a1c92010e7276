"""`online.py` for one token a row, as decoding reads it: rank-one changes, and few operations.

Everything is up to date behind every token, so nothing is rebuilt: the window's pairs are read
once at the chunk's features, the output matrix and the hidden ones take their step, and the query
is answered. Rows may stand at different places in their chunks; then `place` says where.
"""

from dataclasses import replace

import torch
from torch import Tensor

from atlas_memory.memory.architectures import plain
from atlas_memory.memory.learner import Learner, bounded_back, error, features, of_state, to_state
from atlas_memory.memory.native import token as native
from atlas_memory.memory.omega import Gates
from atlas_memory.memory.spec import MemorySpec
from atlas_memory.memory.state import MemoryState
from atlas_memory.memory.tree import Tensors, where


def read_token(
    qkv: tuple[Tensor, Tensor, Tensor], gates: Gates, state: MemoryState, initial: Tensors
) -> tuple[Tensor, MemoryState]:
    """The answer to the one new token of every row, and the state behind it."""
    (q, keys, values), spec, now = qkv, state.spec, of_state(state)
    if spec.window > 1:
        keys = torch.cat([state.keys, keys], dim=2)
        values = torch.cat([state.values, values], dim=2)
    opens = _opens(state)
    if isinstance(opens, Tensor):
        now = replace(now, H_start=where(opens, now.H, now.H_start))
    elif opens:
        now = replace(now, H_start=now.H)
    read = _by_kernel if native.reads_token(spec, (q, keys, *now.flat(), *initial)) else _by_torch
    y, after = read((q, keys, values), gates, state, now, initial[1:], opens)
    return y, one_further(to_state(state, after), keys, values)


def _by_kernel(
    qkv: tuple[Tensor, Tensor, Tensor],
    gates: Gates,
    state: MemoryState,
    now: Learner,
    first: Tensors,
    opens: Tensor | bool,
) -> tuple[Tensor, Learner]:
    """`_by_torch` in one call, but for the step of Muon's, behind which a row answers again."""
    assert gates.hidden is not None
    spec, (alpha, eta, theta, gamma) = state.spec, gates.complete()
    scalars = alpha, eta, theta, gates.hidden, gamma
    y, after = native.read_token(spec, qkv, scalars, now, first[0], opens, state.constants)
    rows = _due(state)
    if rows is not None:  # in the place of what has been made here
        (W,), (H,), (R,), q = after.W, after.H, after.R, qkv[0][rows]
        H[rows] += gates.hidden[rows][..., None] * spec.optimizer.orthogonalize(R[rows])
        phi_q = features(spec, q[:, :, :0], q, state.constants)[1]
        y[rows] = _answer(spec, q, phi_q, W[rows], (H[rows],))
    return y, after


def _by_torch(
    qkv: tuple[Tensor, Tensor, Tensor],
    gates: Gates,
    state: MemoryState,
    now: Learner,
    first: Tensors,
    opens: Tensor | bool,
) -> tuple[Tensor, Learner]:
    """The answer, and what is known behind the token. now: with H_start of this token's chunk."""
    (q, keys, values), spec = qkv, state.spec
    phi_k, phi_q = features(spec, keys, q, state.constants)
    h, tape = spec.architecture.hidden([plain(w) for w in now.H_start], phi_k)
    alpha, eta, theta, gamma = (x[..., None] for x in gates.complete())
    # [b, h, 1, c, 1] -> [b, h, c, 1], oldest pair first
    weight = gamma[:, :, 0].flip(2) if spec.window > 1 else gamma[:, :, 0]
    target = error(spec, keys, values)

    keeps = not spec.retention.forgets
    W = now.W[0] if keeps else alpha * now.W[0]
    e = target if spec.bias.hebbian else plus(target, h, W.mT, -1)
    d = _recent(spec, now, opens, (h, target, tape))
    d = _with_own(spec, d, tape, e[:, :, -1:] @ W)
    if spec.stop_gradient:
        e, h, phi_k = e.detach(), h.detach(), phi_k.detach()
    written = ((eta * weight) * e).mT
    S = tuple(onto(theta * s, written, h) for s in now.S)
    W = W + S[0] if S else (plus if keeps else onto)(W, written, h)
    pairs = tuple(((weight * x).mT, phi_k) for x in d)
    assert gates.hidden is not None
    H = now.H
    if not keeps:  # bit for bit H where alpha is 1
        H = tuple(torch.lerp(start, w, alpha) for w, start in zip(H, first, strict=True))
    H, R = _move(state, H, now.R, pairs, (gates.hidden[..., None], theta))
    kept = tuple(x[:, :, 1:] for x in d) if spec.window > 1 else ()
    return _answer(spec, q, phi_q, W, H), Learner((W,), S, H, R, now.H_start, kept)


def _answer(spec: MemorySpec, q: Tensor, phi_q: Tensor, W: Tensor, H: Tensors) -> Tensor:
    h, _ = spec.architecture.hidden([plain(w) for w in H], phi_q)
    return plus(q, h, W.mT) if spec.architecture.residual else h @ W.mT


def _opens(state: MemoryState) -> Tensor | bool:
    """Whether a chunk begins here; [b] where rows differ, unless it can be seen that none does."""
    if state.phase is not None:
        return True if state.phase == 0 else False  # noqa: SIM210 - a tracer's answer is no bool
    opens = state.offset == 0
    return opens if opens.device.type != "cpu" or bool(opens.any()) else False


def plus(x: Tensor, a: Tensor, b: Tensor, scale: float = 1) -> Tensor:
    """x + scale a b, of matrices [b, h, .., ..]."""
    flat = (part.flatten(0, 1) for part in (x, a, b))
    return torch.baddbmm(*flat, alpha=scale).unflatten(0, x.shape[:2])


def onto(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """x + a b in the place of x, which was made here; a graph may hold it."""
    if torch.is_grad_enabled():
        return plus(x, a, b)
    flat = x.flatten(0, 1).baddbmm_(a.flatten(0, 1), b.flatten(0, 1))
    return flat.unflatten(0, x.shape[:2])


def one_further(state: MemoryState, keys: Tensor, values: Tensor) -> MemoryState:
    back = state.spec.window - 1
    return replace(
        state,
        keys=keys[:, :, keys.shape[2] - back :],
        values=values[:, :, values.shape[2] - back :],
        position=state.position + 1,
        phase=None if state.phase is None else (state.phase + 1) % state.spec.rhythm,
    )


def _recent(
    spec: MemorySpec,
    now: Learner,
    opens: Tensor | bool,
    made: tuple[Tensor, Tensor, Tensors],
) -> Tensors:
    """d of the look-back pairs: carried, and made anew where a chunk opens."""
    if spec.window == 1 or opens is False:
        return now.d
    h, target, tape = made
    W, back = now.W[0], spec.window - 1
    e = target[:, :, :back]
    e = e if spec.bias.hebbian else plus(e, h[:, :, :back], W.mT, -1)
    found = bounded_back(spec, tuple(x[:, :, :back] for x in tape), e @ W)
    return found if opens is True else where(opens, found, now.d)


def _with_own(spec: MemorySpec, d: Tensors, tape: Tensors, dh: Tensor) -> Tensors:
    """The window's d, the new token's last."""
    own = bounded_back(spec, tuple(x[:, :, -1:] for x in tape), dh)
    if spec.window == 1:
        return own
    return tuple(torch.cat(both, dim=2) for both in zip(d, own, strict=True))


def _move(
    state: MemoryState,
    H: Tensors,
    R: Tensors,
    pairs: tuple[tuple[Tensor, Tensor], ...],
    gates: tuple[Tensor, Tensor],
) -> tuple[Tensors, Tensors]:
    """The hidden matrices behind their step, where one is due, and their momentum."""
    (mu, theta), optimizer = gates, state.spec.optimizer
    if optimizer.heavy:
        R = tuple(onto(theta * r, mu * d, x) for r, (d, x) in zip(R, pairs, strict=True))
        return tuple(w + r for w, r in zip(H, R, strict=True)), R
    if not optimizer.orthogonal:
        return tuple(plus(w, mu * d, x) for w, (d, x) in zip(H, pairs, strict=True)), R
    R = tuple(onto(theta * r, d, x) for r, (d, x) in zip(R, pairs, strict=True))
    rows = _due(state)
    if rows is None:
        return H, R
    steps = (mu[rows] * optimizer.orthogonalize(r[rows]) for r in R)
    if isinstance(rows, slice):
        return tuple(w + step for w, step in zip(H, steps, strict=True)), R
    return tuple(w.index_add(0, rows, step) for w, step in zip(H, steps, strict=True)), R


def _due(state: MemoryState) -> Tensor | slice | None:
    """The rows in which Muon steps here: all, some or none."""
    optimizer = state.spec.optimizer
    if not optimizer.orthogonal:
        return None
    if state.phase is not None:
        return None if (state.phase + 1) % optimizer.period else slice(None)
    rows = ((state.offset + 1) % optimizer.period == 0).nonzero()[:, 0]
    return rows if len(rows) else None
