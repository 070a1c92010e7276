"""Writing exactly: a deep memory whose output matrix learns at every token.

Given its hidden features h a deep memory is linear in its output matrix W, and a linear memory is
exact (`linear.py`). So only the hidden matrices H are written from the chunk's start H', and what
they are made of, Delta = H - H_0, is what is forgotten: a memory that forgets all is newborn.

    W~   = alpha_t W_{t-1}
    e_i  = v_i - r(k_i) - W~ h(k_i; H')                  every pair i of the window
    W_t  = W~ + eta_t sum_j gamma[t, j] e_{t-j} (x) h_{t-j}
    d_t  = back-propagation of W~^T e_t through h at H', d <- d / (1 + ||d||), once per pair
    Delta_t = alpha_t Delta_{t-1} + mu_t sum_j gamma[t, j] d_{t-j} (x) phi_{t-j}
    y_t  = r(q_t) + W_t h(q_t; H_0 + Delta_t)

Momentum and Muon as in `optimizers.py`, with descent as the sign: Muon is for hidden matrices, the
output matrix then descends plainly. A pair older than the chunk counts in it with d of the chunk's
start. This file is the recurrent form, the definition; `online_chunk.py` is the parallel one.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from atlas_memory.memory.architectures import Tape, plain
from atlas_memory.memory.feature_maps import Identity
from atlas_memory.memory.graphs import OwnBackward
from atlas_memory.memory.scan import Tensors
from atlas_memory.memory.spec import MemorySpec
from atlas_memory.memory.state import MemoryState
from atlas_memory.memory.tokens import Tokens

TINY = 1e-30  # at d = 0 the bound has no direction


@dataclass(frozen=True)
class Learner:
    """What an online memory knows behind a token, every part a tuple of [.., rows, columns].

    W, S: the output matrix and its momentum (of Momentum alone). H, R: the hidden matrices and
    their momentum. H_start: at the chunk's start. d: of the last c - 1 pairs, per hidden matrix.
    """

    W: Tensors
    S: Tensors
    H: Tensors
    R: Tensors
    H_start: Tensors
    d: Tensors

    def flat(self) -> Tensors:
        return tuple(x for field in fields(self) for x in getattr(self, field.name))

    def like(self, tensors: Tensors) -> "Learner":
        """The same parts with other tensors, in the order of `flat`."""
        rest = iter(tensors)
        return Learner(*(tuple(next(rest) for _ in getattr(self, f.name)) for f in fields(self)))


def of_state(state: MemoryState) -> Learner:
    W, *H_start = state.start
    own = 1 if state.spec.optimizer.heavy else 0
    S, R = state.start_momentum[:own], state.start_momentum[own:]
    return Learner((W,), S, state.hidden, R, tuple(H_start), state.recent)


def to_state(state: MemoryState, now: Learner) -> MemoryState:
    start, momentum = (*now.W, *now.H_start), (*now.S, *now.R)
    return replace(state, start=start, start_momentum=momentum, hidden=now.H, recent=now.d)


def newborn(spec: MemorySpec, initial: Tensors) -> Learner:
    """A memory that has read nothing, from its first matrices."""
    W, *H = initial
    matrices, lead = tuple(H), W.shape[:-2]
    zeros = tuple(torch.zeros_like(w) for w in initial)
    back = spec.window - 1
    return Learner(
        W=(W,),
        S=zeros[:1] if spec.optimizer.heavy else (),
        H=matrices,
        R=zeros[1:] if spec.optimizer.momentum else (),
        H_start=matrices,
        d=tuple(w.new_zeros(*lead, back, w.shape[-2]) for w in H) if back else (),
    )


def error(spec: MemorySpec, keys: Tensor, values: Tensor) -> Tensor:
    """What is left to say of a pair where the output matrix says nothing: v - r(k), or v."""
    residual = spec.architecture.residual and not spec.bias.hebbian
    return values - keys if residual else values


def features(
    spec: MemorySpec, keys: Tensor, queries: Tensor, constants: Tensor | None
) -> tuple[Tensor, Tensor]:
    """phi of keys [.., n, d] and queries [.., m, d], in one go."""
    if isinstance(spec.features, Identity):
        return keys, queries
    both = spec.features(torch.cat([keys, queries], dim=-2), constants)
    phi_k, phi_q = both.tensor_split([keys.shape[-2]], dim=-2)
    return phi_k, phi_q


def bounded_back(spec: MemorySpec, tape: Tape, dh: Tensor) -> Tensors:
    """d of every hidden matrix from W~^T e: never longer than 1, whatever W has become."""
    found = spec.architecture.back(tape, dh)
    bounded: Tensors = tuple(_Bounded.run(d) for d in found)
    return tuple(d.detach() for d in bounded) if spec.stop_gradient else bounded


class _Bounded(OwnBackward):
    """d / (1 + ||d||)."""

    @staticmethod
    def forward(ctx: Any, d: Tensor) -> Tensor:
        norm = torch.linalg.vector_norm(d, dim=-1, keepdim=True)
        bounded = d / (1 + norm)
        ctx.save_for_backward(bounded, norm)
        return bounded

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, w: Tensor) -> Tensor:
        bounded, norm = ctx.saved_tensors
        along = (bounded * w).sum(dim=-1, keepdim=True).div_(norm.clamp(min=TINY))
        return (w / (1 + norm)).addcmul_(bounded, along, value=-1)


def where(rows: Tensor, yes: Tensors, no: Tensors) -> Tensors:
    """Row by row one of two; rows [b] or [g]."""
    pairs = zip(yes, no, strict=True)
    return tuple(torch.where(rows.view(-1, *(1,) * (a.dim() - 1)), a, b) for a, b in pairs)


def memorize_online_recurrent(
    tokens: Tokens, state: MemoryState, initial: Tensors, spec: MemorySpec
) -> tuple[Tensor, MemoryState]:
    """One token after the other, every matrix as it is."""
    now, fresh, outputs = of_state(state), newborn(spec, initial), []
    for i in tokens.indices():
        active, starts = tokens.active(i), tokens.starts_at(i)
        if starts is not None:
            now = now.like(where(starts & active, fresh.flat(), now.flat()))
        read = _read_token(spec, now, tokens, i, fresh.H)
        now = now.like(where(active, read.flat(), now.flat()))
        outputs.append(_answer(spec, now, tokens, i))
    y = torch.cat(outputs, dim=2) if outputs else tokens.values[:, :, tokens.recent :]
    return y, to_state(state, now)


def _read_token(spec: MemorySpec, now: Learner, tokens: Tokens, i: int, H_0: Tensors) -> Learner:
    keys, values = tokens.window(i, spec.window)
    age = tokens.age(i)
    begins = age % spec.chunk == 0
    H_start = where(begins, now.H, now.H_start)
    phi = spec.features(keys, tokens.constants)
    h, tape = spec.architecture.hidden([plain(w) for w in H_start], phi)
    t = i - tokens.recent
    alpha, eta, theta, gamma = (x[:, :, t] for x in tokens.gates.complete())
    mu = tokens.gates.named()["hidden"][:, :, t]
    target, weight = error(spec, keys, values), gamma.flip(-1)[..., None]
    older = bounded_back(spec, tape, _errors(spec, target, h, now.W[0]) @ now.W[0])
    d = where(begins, tuple(x[:, :, :-1] for x in older), now.d) if spec.window > 1 else ()

    W = alpha[..., None, None] * now.W[0]
    e = _errors(spec, target, h, W)
    newest = bounded_back(spec, tape, e @ W)
    rolled = [torch.cat([*d[n : n + 1], x[:, :, -1:]], dim=2) for n, x in enumerate(newest)]
    if spec.stop_gradient:
        e, h, phi = e.detach(), h.detach(), phi.detach()
    step = eta[..., None, None] * ((weight * e).mT @ h)
    S = tuple(theta[..., None, None] * s + step for s in now.S)
    g = tuple((weight * x).mT @ phi for x in rolled)
    due = (age % spec.chunk + 1) % spec.optimizer.period == 0
    H, R = _write_hidden(spec, now, H_0, g, (alpha, mu, theta, due))
    kept = tuple(x[:, :, 1:] for x in rolled) if spec.window > 1 else ()
    return Learner((W + (S[0] if S else step),), S, H, R, H_start, kept)


def _errors(spec: MemorySpec, target: Tensor, h: Tensor, W: Tensor) -> Tensor:
    return target if spec.bias.hebbian else target - h @ W.mT


def _write_hidden(
    spec: MemorySpec, now: Learner, H_0: Tensors, g: Tensors, gates: tuple[Tensor, ...]
) -> tuple[Tensors, Tensors]:
    alpha, mu, theta = (x[..., None, None] for x in gates[:3])
    due = gates[3][:, None, None, None]
    R: Tensors = ()
    if spec.optimizer.orthogonal:
        R = tuple(theta * r + x for r, x in zip(now.R, g, strict=True))
        steps = tuple(mu * due.to(mu) * spec.optimizer.orthogonalize(r) for r in R)
    elif spec.optimizer.heavy:
        R = steps = tuple(theta * r + mu * x for r, x in zip(now.R, g, strict=True))
    else:
        steps = tuple(mu * x for x in g)
    parts = zip(now.H, H_0, steps, strict=True)
    return tuple(alpha * w + (1 - alpha) * first + step for w, first, step in parts), R


def _answer(spec: MemorySpec, now: Learner, tokens: Tokens, i: int) -> Tensor:
    q = tokens.queries[:, :, i - tokens.recent, None]
    maps = [plain(w) for w in (*now.W, *now.H)]
    return spec.architecture.forward(maps, spec.features(q, tokens.constants), q)[0]
