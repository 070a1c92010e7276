"""The memory whose output layer learns at every token, straight from its equations: loops, float64.

Shares no code with the package; a spec is read as a description only. r(x) = x with the residual,
else 0; H the hidden matrices, H_0 their initial values, H' those at the end of the previous chunk,
Delta = H - H_0; h(x; H) the hidden features (Matrix: phi(x), and no hidden matrices).

    W~    = alpha_t W1_{t-1}
    e_i   = v_i - r(k_i) - W~ h(k_i; H')      every pair i of the window   (DotProduct: e_i = v_i)
    W1_t  = W~ + eta_t sum_j gamma[t, j] e_{t-j} h(k_{t-j}; H')^T
            (Momentum: S1_t = theta_t S1_{t-1} + eta_t sum .. ;  W1_t = W~ + S1_t)
    d_t   = back-propagation of W~^T e_t through h at H', once, at the pair's own token;
            d <- d / (1 + ||d||) per hidden matrix; a pair older than the chunk has the d
            of W1', the output matrix at the end of the previous chunk, and of H'
    GradientDescent   Delta_t = alpha_t Delta_{t-1} + mu_t sum_j gamma[t, j] d_{t-j} (x) x_{t-j}
    Momentum          S_t = theta_t S_{t-1} + mu_t sum .. ;  Delta_t = alpha_t Delta_{t-1} + S_t
    Muon              S_t = theta_t S_{t-1} + sum .. ;  Delta_t = alpha_t Delta_{t-1} + mu_t NS(S_t)
                      at every period-th token of a chunk, else Delta_t = alpha_t Delta_{t-1}
    y_t   = r(q_t) + W1_t h(q_t; H_0 + Delta_t)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tests import oracles
from tests.oracles import Head, Weights, kind

# ---- one head ---------------------------------------------------------------------------------


def run_head(head: Head, spec: Any) -> tuple[list[Tensor], Weights, Weights]:
    W1, *H0 = head.weights
    S1, S = torch.zeros_like(W1), [torch.zeros_like(w) for w in H0]
    H, Delta = H0, S
    outputs: list[Tensor] = []
    for t in range(len(head.q)):
        first = max(0, t - spec.window + 1)
        if t % spec.chunk == 0:
            start = H
            below = {i: hidden_write(head, spec, W1, start, i) for i in range(first, t)}
        decayed = head.alpha[t] * W1
        below[t] = hidden_write(head, spec, decayed, start, t)
        above = {i: [output_write(head, spec, decayed, start, i)] for i in range(first, t + 1)}
        W1, S1 = output_step(head, spec, decayed, S1, window_sum(head, above, first, t)[0], t)
        Delta, S = hidden_step(head, spec, Delta, S, window_sum(head, below, first, t), t)
        H = [h0 + delta for h0, delta in zip(H0, Delta, strict=True)]
        hidden, _ = features(head, spec, head.q[t], H)
        outputs.append(skip(spec, head.q[t]) + W1 @ hidden)
    momentum = {"GradientDescent": [], "Momentum": [S1, *S], "Muon": S}[kind(spec.optimizer)]
    return outputs, [W1, *H], momentum


def window_sum(head: Head, writes: dict[int, Weights], first: int, t: int) -> Weights:
    """sum_j gamma[t, j] of what pair t - j writes, for every matrix."""
    total = [torch.zeros_like(u) for u in writes[t]]
    for i in range(first, t + 1):
        total = [a + head.gamma[t][t - i] * u for a, u in zip(total, writes[i], strict=True)]
    return total


def output_step(
    head: Head, spec: Any, decayed: Tensor, S1: Tensor, g: Tensor, t: int
) -> tuple[Tensor, Tensor]:
    if kind(spec.optimizer) == "Momentum":
        S1 = head.theta[t] * S1 + head.eta[t] * g
        return decayed + S1, S1
    return decayed + head.eta[t] * g, S1


def hidden_step(
    head: Head, spec: Any, Delta: Weights, S: Weights, g: Weights, t: int
) -> tuple[Weights, Weights]:
    name, mu, theta = kind(spec.optimizer), head.hidden[t], head.theta[t]
    kept = [head.alpha[t] * delta for delta in Delta]
    if name == "GradientDescent":
        return [delta + mu * u for delta, u in zip(kept, g, strict=True)], S
    if name == "Momentum":
        S = [theta * s + mu * u for s, u in zip(S, g, strict=True)]
        return [delta + s for delta, s in zip(kept, S, strict=True)], S
    if name == "Muon":
        S = [theta * s + u for s, u in zip(S, g, strict=True)]
        if (t % spec.chunk + 1) % spec.optimizer.period != 0:
            return kept, S
        steps = [newton_schulz(s, spec.optimizer) for s in S]
        return [delta + mu * n for delta, n in zip(kept, steps, strict=True)], S
    raise ValueError(f"the oracle knows no optimizer {name}")


def newton_schulz(S: Tensor, muon: Any) -> Tensor:
    """X <- aX + (bA + cA^2)X with A = XX^T on the short side, from X = S / (||S||_F + 1e-7)."""
    a, b, c = muon.coefficients
    tall = S.shape[0] > S.shape[1]
    X = S.T if tall else S
    X = X / (size(X) + 1e-7)
    for _ in range(muon.steps):
        A = X @ X.T
        X = a * X + (b * A + c * A @ A) @ X
    return X.T if tall else X


# ---- what one pair writes ---------------------------------------------------------------------


def output_write(head: Head, spec: Any, W1: Tensor, H: Weights, i: int) -> Tensor:
    """e_i h(k_i; H)^T, the error taken at W1."""
    e, h = surprise(head, spec, W1, H, i)
    return torch.outer(*constants_if(spec.stop_gradient, [e, h]))


def hidden_write(head: Head, spec: Any, W1: Tensor, H: Weights, i: int) -> Weights:
    """d_i (x) x_i for every hidden matrix; d is the gradient of <h, W1^T e> in z = H x."""
    if not H:
        return []
    e, _ = surprise(head, spec, W1, H, i)
    with torch.enable_grad():
        nudge = [torch.zeros_like(w[:, 0]).requires_grad_() for w in H]  # z + 0: a leaf at z
        h, x = features(head, spec, head.k[i], H, nudge)
        ds = torch.autograd.grad(h @ (W1.T @ e), nudge, create_graph=True)
    ds = [d / (1 + size(d)) for d in ds]
    return [torch.outer(*constants_if(spec.stop_gradient, [d, x])) for d in ds]


def surprise(head: Head, spec: Any, W1: Tensor, H: Weights, i: int) -> tuple[Tensor, Tensor]:
    """e_i at W1 and H, and the features h(k_i; H)."""
    h, _ = features(head, spec, head.k[i], H)
    if kind(spec.bias) == "DotProduct":
        return head.v[i], h
    if kind(spec.bias) == "L2":
        return head.v[i] - skip(spec, head.k[i]) - W1 @ h, h
    raise ValueError(f"the oracle knows no bias {kind(spec.bias)} for an output that is online")


def size(x: Tensor) -> Tensor:
    """The Euclidean norm of all entries, whose derivative at zero is taken to be zero."""
    square = (x * x).sum()
    return square.sqrt() if square > 0 else x.new_zeros(())  # the square may also underflow


def constants_if(stop: bool, values: Sequence[Tensor]) -> list[Tensor]:
    return [x.detach() if stop else x for x in values]


# ---- the network below its output matrix ------------------------------------------------------


def features(
    head: Head, spec: Any, x: Tensor, H: Weights, nudge: Sequence[Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """h(x; H), and phi(x) that the hidden matrices act on; `nudge[j]` is added to H[j] phi(x)."""
    name, inputs = kind(spec.architecture), head.phi(x)
    if name == "Matrix":
        return inputs, inputs
    z = [w @ inputs for w in H]
    if nudge is not None:
        z = [a + b for a, b in zip(z, nudge, strict=True)]
    h = z[0] * 0.5 * (1 + torch.erf(z[0] / math.sqrt(2)))
    if name == "GatedMLP":
        h = h * z[1]
    if spec.architecture.normalize:
        h = h / (h @ h + 1e-4).sqrt()
    return h, inputs


def skip(spec: Any, x: Tensor) -> Tensor | float:
    """r(x)."""
    deep = kind(spec.architecture) != "Matrix"
    return x if deep and spec.architecture.residual else 0.0


# ---- the whole operator -----------------------------------------------------------------------

# `weights` of the result: W1_t, then every H_0 + Delta_t. `momentum`: Momentum (S1_t, *S_t); Muon
# the S_t of the hidden matrices only, for W1 takes plain steps; GradientDescent ().
memorize = partial(oracles.memorize, run=run_head)
