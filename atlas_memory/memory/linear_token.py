"""`linear.py` for one token a row, as decoding reads it: the rule itself, with nothing to solve."""

from dataclasses import replace

import torch
from torch import Tensor

from atlas_memory.memory.learner import error, features
from atlas_memory.memory.omega import Gates
from atlas_memory.memory.online_token import one_further, onto, plus
from atlas_memory.memory.state import MemoryState


def read_linear_token(
    qkv: tuple[Tensor, Tensor, Tensor], gates: Gates, state: MemoryState
) -> tuple[Tensor, MemoryState]:
    """The answer to the one new token of every row, and the state behind it.

    W_t = alpha_t W_{t-1} + S_t,  S_t = theta_t S_{t-1} + eta_t sum_j gamma[t, j] e_j (x) phi(k_j)
    """
    (q, keys, values), spec = qkv, state.spec
    if spec.window > 1:
        keys = torch.cat([state.keys, keys], dim=2)
        values = torch.cat([state.values, values], dim=2)
    phi_k, phi_q = features(spec, keys, q, state.constants)
    alpha, eta, theta, gamma = gates.complete()
    # [b, h, 1, c] -> [b, h, c, 1], oldest pair first
    weight = (eta[..., None] * gamma).flip(3).mT
    before, keeps = state.start[0], not spec.retention.forgets
    decay = alpha if spec.retention.channel else alpha[..., None]
    W = before if keeps else decay * before
    e = error(spec, keys, values)
    if not spec.bias.hebbian:
        e = plus(e, phi_k, (W if spec.decays_first else before).mT, -1)
    if spec.stop_gradient:
        e, phi_k = e.detach(), phi_k.detach()
    written = (weight * e).mT
    S = tuple(onto(theta[..., None] * s, written, phi_k) for s in state.start_momentum)
    W = W + S[0] if S else (plus if keeps else onto)(W, written, phi_k)
    y = plus(q, phi_q, W.mT) if spec.architecture.residual else phi_q @ W.mT
    after = replace(state, start=(W,), start_momentum=S)
    return y, one_further(after, keys, values)
