"""The memory straight from its equations: Python loops, float64, autograd for every inner gradient.

Shares no code with the package. A spec is read as a description only (the names of its choices and
their fields); the package is asked for one thing alone, the order in which it lists the features.

    u_i = grad_W l(W'; phi(k_i), v_i)              W' = weights at the end of the previous chunk
    g_t = sum_{i = max(0, t-c+1) .. t} gamma[t, t-i] u_i
    GradientDescent   A_t = alpha_t A_{t-1} - eta_t g_t
    Momentum          S_t = theta_t S_{t-1} - eta_t g_t ;  A_t = alpha_t A_{t-1} + S_t
    Muon              S_t = theta_t S_{t-1} + g_t       ;  A_t = alpha_t A_{t-1} - eta_t NS(S_t)
    W_t = retention map of A_t (A_t itself for all but Softmax and Lq) ;  y_t = M(phi(q_t); W_t)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Weights = list[Tensor]


@dataclass
class Result:
    """What one run leaves behind; weights and momentum are tuples of [b, h, out, in]."""

    y: Tensor
    weights: tuple[Tensor, ...]
    momentum: tuple[Tensor, ...]


@dataclass
class Head:
    """One head of one row: lists over its tokens, so that every equation is about one token.

    hidden: mu, the step of the hidden matrices (`online_oracle.py`).
    """

    q: list[Tensor]
    k: list[Tensor]
    v: list[Tensor]
    alpha: list[Any]
    eta: list[Any]
    theta: list[Any]
    gamma: list[Any]
    hidden: list[Any]
    weights: Weights
    phi: Callable[[Tensor], Tensor]


def kind(choice: object) -> str:
    return type(choice).__name__


# ---- the whole operator -----------------------------------------------------------------------


def memorize(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gates: Any,
    weights: Sequence[Tensor],
    spec: Any,
    phi: Callable[[Tensor], Tensor] | None = None,
    run: Callable[[Head, Any], Any] | None = None,
) -> Result:
    """Every head of every row alone; `phi` maps one vector to its features (identity if None)."""
    rows, heads = q.shape[:2]
    run = run or (run_kernel if kind(spec.features) == "Exponential" else run_head)
    grid = []
    for b in range(rows):
        for h in range(heads):
            head = Head(
                list(q[b, h]),
                list(k[b, h]),
                list(v[b, h]),
                gate(gates.alpha, b, h, q.shape[2], 1.0),
                gate(gates.eta, b, h, q.shape[2], 1.0),
                gate(gates.theta, b, h, q.shape[2], 0.0),
                gate(gates.gamma, b, h, q.shape[2], [1.0] * spec.window),
                gate(gates.eta if gates.hidden is None else gates.hidden, b, h, q.shape[2], 1.0),
                [w[h] if w.ndim == 3 else w[b, h] for w in weights],
                phi or (lambda x: x),
            )
            grid.append(run(head, spec))
    y = torch.stack([torch.stack(ys) for ys, _, _ in grid]).unflatten(0, (rows, heads))
    return Result(y, gather(grid, 1, rows, heads), gather(grid, 2, rows, heads))


def gate(values: Tensor | None, b: int, h: int, length: int, missing: Any) -> list[Any]:
    if values is None:
        return [missing] * length
    if values.ndim == 1:  # FixedRetention: one constant per head
        return [values[h]] * length
    return list(values[b, h])


def gather(grid: list[Any], item: int, rows: int, heads: int) -> tuple[Tensor, ...]:
    columns = zip(*(cell[item] for cell in grid), strict=True)
    return tuple(torch.stack(column).unflatten(0, (rows, heads)) for column in columns)


# ---- one head, an ordinary feature map --------------------------------------------------------


def run_head(head: Head, spec: Any) -> tuple[list[Tensor], Weights, Weights]:
    softmax = kind(spec.retention) == "SoftmaxRetention"
    A = [w.log() if softmax else w for w in head.weights]
    W = [retention_map(spec.retention, a) for a in A]
    S = [torch.zeros_like(w) for w in W]
    outputs: list[Tensor] = []
    for t in range(len(head.q)):
        if t % spec.chunk == 0:
            start, gradients = W, {}
        if getattr(spec.retention, "before_gradient", False):
            start, gradients = decay(head.alpha[t], W), {}
        g = [torch.zeros_like(w) for w in W]
        for i in range(max(0, t - spec.window + 1), t + 1):
            if i not in gradients:
                gradients[i] = inner_gradient(head, spec, start, i)
            g = [a + head.gamma[t][t - i] * u for a, u in zip(g, gradients[i], strict=True)]
        A, S = step(head, spec, A, S, g, t)
        W = [retention_map(spec.retention, a) for a in A]
        outputs.append(network(spec, lambda j, x, W=W: W[j] @ x, head.q[t], head.phi))
    return outputs, W, S


def step(
    head: Head, spec: Any, A: Weights, S: Weights, g: Weights, t: int
) -> tuple[Weights, Weights]:
    kept, eta, theta = decay(head.alpha[t], A), head.eta[t], head.theta[t]
    name = kind(spec.optimizer)
    if name == "GradientDescent":
        return [a - eta * d for a, d in zip(kept, g, strict=True)], S
    if name == "Momentum":
        S = [theta * s - eta * d for s, d in zip(S, g, strict=True)]
        return [a + s for a, s in zip(kept, S, strict=True)], S
    if name == "Muon":
        S = [theta * s + d for s, d in zip(S, g, strict=True)]
        if (t % spec.chunk + 1) % spec.optimizer.period != 0:
            return kept, S
        steps = spec.optimizer.steps
        return [a - eta * newton_schulz(s, steps) for a, s in zip(kept, S, strict=True)], S
    if name == "Implicit":
        x = head.phi(head.k[t])
        delta = eta / (1 + eta * (x @ x))
        return [a - delta * d for a, d in zip(kept, g, strict=True)], S
    raise ValueError(f"the oracle knows no optimizer {name}")


def decay(alpha: Any, W: Weights) -> Weights:
    """alpha_t W; a vector alpha_t (ChannelRetention) multiplies the columns of W."""
    return [alpha * w for w in W]


def inner_gradient(head: Head, spec: Any, W: Weights, i: int) -> Weights:
    """u_i by autograd, itself differentiable."""
    with torch.enable_grad():
        W = [w if w.requires_grad else w.detach().requires_grad_() for w in W]
        prediction = network(spec, lambda j, x: W[j] @ x, head.k[i], head.phi)
        loss = attentional_bias(spec.bias, prediction, head.v[i])
        return constants_if(spec.stop_gradient, torch.autograd.grad(loss, W, create_graph=True))


def constants_if(stop: bool, gradients: Sequence[Tensor]) -> Weights:
    return [u.detach() if stop else u for u in gradients]


# ---- one head, phi* as a kernel expansion -----------------------------------------------------


def run_kernel(head: Head, spec: Any) -> tuple[list[Tensor], Weights, Weights]:
    """First-layer maps are `W x + sum_i exp(x.k_i / sqrt(dk)) p_i`, later layers plain matrices.

    `W` holds what acts on x itself (it never changes) and the later layers, `P[j][i]` the
    coefficient of pair i in map j, `R` the same for the momentum.
    """
    first = first_layer(spec.architecture)
    W, S = head.weights, [torch.zeros_like(w) for w in head.weights]
    P: dict[int, list[Tensor]] = {j: [] for j in first}
    R: dict[int, list[Tensor]] = {j: [] for j in first}
    outputs: list[Tensor] = []
    for t in range(len(head.q)):
        if t % spec.chunk == 0:
            start, start_P, gradients = W, {j: list(p) for j, p in P.items()}, {}
        for j in first:
            P[j].append(torch.zeros_like(W[j][:, 0]))
            R[j].append(torch.zeros_like(W[j][:, 0]))
        alpha, eta, theta = head.alpha[t], head.eta[t], head.theta[t]
        total: list[Any] = [{} if j in first else torch.zeros_like(w) for j, w in enumerate(W)]
        for i in range(max(0, t - spec.window + 1), t + 1):
            if i not in gradients:
                gradients[i] = kernel_gradient(head, spec, start, start_P, i)
            for j, u in enumerate(gradients[i]):
                if j in first:
                    total[j][i] = head.gamma[t][t - i] * u
                else:
                    total[j] = total[j] + head.gamma[t][t - i] * u
        heavy = kind(spec.optimizer) == "Momentum"
        for j in range(len(W)):
            if j in first:
                for i in range(t + 1):
                    R[j][i] = (theta * R[j][i] if heavy else 0.0) - eta * total[j].get(i, 0.0)
                    P[j][i] = alpha * P[j][i] + R[j][i]
        S = [
            s if j in first else (theta * s if heavy else 0.0) - eta * total[j]
            for j, s in enumerate(S)
        ]
        W = [w if j in first else alpha * w + S[j] for j, w in enumerate(W)]
        outputs.append(network(spec, kernel_maps(head, spec, W, P), head.q[t], head.phi))
    return outputs, W, S


def first_layer(architecture: Any) -> set[int]:
    return {"Matrix": {0}, "MLP": {1}, "GatedMLP": {1, 2}}[kind(architecture)]


def kernel_maps(
    head: Head, spec: Any, W: Weights, P: dict[int, list[Tensor]], nudge: Any = None
) -> Callable[[int, Tensor], Tensor]:
    """The linear maps of the network; `nudge[j]` is added to the output of first-layer map j."""

    def apply(j: int, x: Tensor) -> Tensor:
        z = W[j] @ x
        if P.get(j):
            # The largest exponent cancels in the ratio, so that nothing overflows.
            logits = torch.stack([x @ head.k[i] for i in range(len(P[j]))]) / math.sqrt(len(x))
            if spec.features.normalize:
                z = z + torch.stack(P[j], 1) @ logits.softmax(0)
            else:
                z = z + torch.stack(P[j], 1) @ logits.exp()
        return z if nudge is None or j not in P else z + nudge[j]

    return apply


def kernel_gradient(
    head: Head, spec: Any, W: Weights, P: dict[int, list[Tensor]], i: int
) -> Weights:
    """dl/dz for the first-layer maps (the factor of exp(x.k_i)), dl/dW for the others."""
    with torch.enable_grad():
        W = [w if w.requires_grad else w.detach().requires_grad_() for w in W]
        nudge = {j: torch.zeros_like(W[j][:, 0]).requires_grad_() for j in P}
        prediction = network(spec, kernel_maps(head, spec, W, P, nudge), head.k[i], head.phi)
        loss = attentional_bias(spec.bias, prediction, head.v[i])
        wanted = [nudge[j] if j in P else w for j, w in enumerate(W)]
        return constants_if(
            spec.stop_gradient, torch.autograd.grad(loss, wanted, create_graph=True)
        )


# ---- the choices ------------------------------------------------------------------------------


def network(
    spec: Any,
    apply: Callable[[int, Tensor], Tensor],
    x: Tensor,
    phi: Callable[[Tensor], Tensor],
) -> Tensor:
    """M(phi(x)); the skip takes x itself, and s is the exact GELU x Phi(x)."""
    name, features = kind(spec.architecture), phi(x)
    if name == "Matrix":
        return x + apply(0, features) if spec.architecture.residual else apply(0, features)
    hidden = apply(1, features)
    hidden = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
    if name == "GatedMLP":
        hidden = hidden * apply(2, features)
    return x + apply(0, hidden) if spec.architecture.residual else apply(0, hidden)


def attentional_bias(bias: Any, prediction: Tensor, v: Tensor) -> Tensor:
    name, e = kind(bias), prediction - v
    if name == "DotProduct":
        return -(prediction @ v)
    if name == "L2":
        return (e @ e) / 2
    if name == "Lp":
        return e.abs().pow(bias.p).sum() / bias.p
    if name == "Huber":
        size = (e @ e).sqrt()
        return (e @ e) / 2 if size <= bias.delta else bias.delta * (size - bias.delta / 2)
    raise ValueError(f"the oracle knows no bias {name}")


def newton_schulz(S: Tensor, steps: int) -> Tensor:
    """The usual loop, on the short side."""
    tall = S.shape[0] > S.shape[1]
    X = S.T if tall else S
    X = X / (X.norm() + 1e-7)
    for _ in range(steps):
        A = X @ X.T
        X = 3.4445 * X + (-4.7750 * A + 2.0315 * A @ A) @ X
    return X.T if tall else X


def retention_map(retention: Any, A: Tensor) -> Tensor:
    """W of the accumulator A: Memora's L (from log W_0), Moneta's A (from W_0), or W itself."""
    if kind(retention) == "SoftmaxRetention":
        return retention.scale * A.exp() / A.exp().sum(1, keepdim=True)
    if kind(retention) == "LqRetention":
        return A / (A.abs().pow(retention.q).sum() ** (1 / retention.q)) ** (retention.q - 2)
    return A


# ---- features ---------------------------------------------------------------------------------


def monomials(x: Tensor, coefficients: Sequence[Any]) -> Tensor:
    """All monomials of x up to the degree, weighted so that phi(q).phi(k) = sum_i a_i (q.k)^i.

    (q.k)^i = sum over multi-indices m of size i of (i! / m!) q^m k^m.
    """
    columns = []
    for degree, a in enumerate(coefficients):
        for picked in itertools.combinations_with_replacement(range(len(x)), degree):
            counts = [picked.count(j) for j in set(picked)]
            weight = math.factorial(degree) / math.prod(math.factorial(c) for c in counts)
            value = torch.ones((), dtype=x.dtype)
            for j in picked:
                value = value * x[j]
            columns.append(value * (torch.as_tensor(a, dtype=x.dtype) * weight) ** 0.5)
    return torch.stack(columns)


def polynomial(
    degree: int,
    dim: int,
    like: Callable[[Tensor], Tensor],
    coefficients: Sequence[Any] | None = None,
) -> Callable[[Tensor], Tensor]:
    """`monomials` in the order in which the map `like` lists them, found at a probe."""
    plain = [1 / math.factorial(i) for i in range(degree + 1)]
    probe = 1 + torch.arange(1, dim + 1, dtype=torch.float64).sqrt() / math.pi
    ours, theirs = monomials(probe, plain), like(probe)
    assert len(ours.unique()) == len(ours), "the probe cannot tell two monomials apart"
    assert ours.shape == theirs.shape, f"{theirs.shape} features where {ours.shape} were expected"
    order = ours.argsort()[theirs.argsort().argsort()]
    torch.testing.assert_close(ours[order], theirs, rtol=1e-12, atol=1e-12)
    return lambda x: monomials(x, plain if coefficients is None else coefficients)[order]
