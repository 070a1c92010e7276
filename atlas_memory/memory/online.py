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

import torch
from torch import Tensor

from atlas_memory.memory.architectures import plain
from atlas_memory.memory.learner import Learner, bounded_back, error, newborn, of_state, to_state
from atlas_memory.memory.spec import MemorySpec
from atlas_memory.memory.state import MemoryState
from atlas_memory.memory.tokens import Tokens
from atlas_memory.memory.tree import Tensors, where


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
