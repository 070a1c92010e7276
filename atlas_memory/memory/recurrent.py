"""The recurrent form: the definition.   [Atlas Eq. 10, 15, 56]

u_i = grad_W l(W'; phi(k_i), v_i)     W' the weights at the end of the previous chunk
g_t = sum_j gamma[t, j] u_{t-j}
W_t = one step of the inner optimizer with g_t
y_t = M(phi(q_t); W_t)                token t is written before it is read
"""

from typing import NamedTuple

import torch
from torch import Tensor

from atlas_memory.memory.architectures import plain
from atlas_memory.memory.optimizers import TokenGates
from atlas_memory.memory.spec import MemorySpec
from atlas_memory.memory.state import MemoryState
from atlas_memory.memory.tokens import Tokens
from atlas_memory.memory.tree import Tensors, where


class Memory(NamedTuple):
    """L, S at this token, and at the start of its chunk."""

    L: Tensors
    S: Tensors
    L_start: Tensors
    S_start: Tensors


def _window_gradient(
    spec: MemorySpec,
    W: Tensors,
    keys: Tensor,
    values: Tensor,
    gamma: Tensor,
    constants: Tensor | None,
) -> Tensors:
    """g_t, a dense matrix per W, from the pairs keys [b, h, c, dk], oldest first."""
    y, tape = spec.architecture.forward([plain(w) for w in W], spec.features(keys, constants), keys)
    pairs = spec.architecture.backward(W, tape, spec.bias.surprise(y, values))
    if spec.stop_gradient:
        pairs = tuple((d.detach(), x.detach()) for d, x in pairs)
    return tuple(torch.einsum("bhc,bhco,bhci->bhoi", gamma, d, x) for d, x in pairs)


def _token_gates(spec: MemorySpec, tokens: Tokens, i: int, age: Tensor) -> TokenGates:
    alpha, eta, theta, _ = tokens.gates.complete()
    channel = spec.retention.channel
    steps = (age % spec.chunk + 1) % spec.optimizer.period == 0
    return TokenGates(
        alpha=alpha[:, :, i, None, :] if channel else alpha[:, :, i, None, None],
        eta=eta[:, :, i, None, None],
        theta=theta[:, :, i, None, None],
        steps=steps[:, None, None, None].to(eta),
    )


def _read_token(spec: MemorySpec, memory: Memory, tokens: Tokens, i: int, age: Tensor) -> Memory:
    """One token: open a chunk where one begins, take the window's gradient, step."""
    begins = age % spec.rhythm == 0
    L_start = where(begins, memory.L, memory.L_start)
    S_start = where(begins, memory.S, memory.S_start)
    gates = _token_gates(spec, tokens, i, age)
    W = tuple(spec.retention.weights(w) for w in L_start)
    if spec.decays_first:
        W = tuple(gates.alpha * w for w in W)
    keys, values = tokens.window(i, spec.window)
    gamma = tokens.gates.complete()[3][:, :, i].flip(-1)
    g = _window_gradient(spec, W, keys, values, gamma, tokens.constants)
    S = memory.S if spec.optimizer.momentum else g
    stepped = [spec.optimizer.step(*parts, gates) for parts in zip(memory.L, S, g, strict=True)]
    S = tuple(s for _, s in stepped) if spec.optimizer.momentum else ()
    return Memory(tuple(w for w, _ in stepped), S, L_start, S_start)


def memorize_recurrent(
    tokens: Tokens, state: MemoryState, initial: Tensors, spec: MemorySpec
) -> tuple[Tensor, Tensors, Tensors]:
    """Outputs of the new tokens, and accumulators and momentum at the start of the open chunk."""
    memory = Memory(state.start, state.start_momentum, state.start, state.start_momentum)
    zeros = tuple(torch.zeros_like(w) for w in initial) if spec.optimizer.momentum else ()
    fresh = Memory(initial, zeros, initial, zeros)
    outputs = []
    for i in tokens.indices():
        age, active, starts = tokens.age(i), tokens.active(i), tokens.starts_at(i)
        if starts is not None:
            memory = Memory(*where(starts & active, fresh, memory))
        read = _read_token(spec, memory, tokens, i, age)
        memory = Memory(*where(active, read, memory))
        if i >= tokens.recent:
            outputs.append(_answer(spec, memory, tokens, i))
    ended = tokens.end_offset() == 0
    start = where(ended, memory.L, memory.L_start)
    start_momentum = where(ended, memory.S, memory.S_start)
    y = torch.cat(outputs, dim=2) if outputs else tokens.values[:, :, tokens.recent :]
    return y, start, start_momentum


def _answer(spec: MemorySpec, memory: Memory, tokens: Tokens, i: int) -> Tensor:
    q = tokens.queries[:, :, i - tokens.recent, None]
    maps = [plain(spec.retention.weights(w)) for w in memory.L]
    return spec.architecture.forward(maps, spec.features(q, tokens.constants), q)[0]


def replay(state: MemoryState) -> tuple[Tensors, Tensors]:
    """Accumulators and momentum as of the last token: read the open chunk once more."""
    spec, tokens = state.spec, Tokens.of_state(state)
    memory = Memory(state.start, state.start_momentum, state.start, state.start_momentum)
    for i in tokens.indices():
        read = _read_token(spec, memory, tokens, i, tokens.age(i))
        memory = Memory(*where(tokens.active(i), read, memory))
    return memory.L, memory.S
