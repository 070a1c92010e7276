"""The oracle of the online output layer, against closed forms written out by hand."""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.online_oracle import memorize
from tests.oracles import Result

D, HIDDEN = 3, 5


@dataclass(frozen=True)
class Matrix:
    pass


@dataclass(frozen=True)
class MLP:
    residual: bool = True
    normalize: bool = True


@dataclass(frozen=True)
class GatedMLP(MLP):
    pass


@dataclass(frozen=True)
class L2:
    pass


@dataclass(frozen=True)
class DotProduct:
    pass


@dataclass(frozen=True)
class GradientDescent:
    pass


@dataclass(frozen=True)
class Momentum:
    pass


@dataclass(frozen=True)
class Muon:
    steps: int = 5
    period: int = 1
    coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315)


@dataclass(frozen=True)
class Spec:
    architecture: Any = field(default_factory=MLP)
    bias: Any = field(default_factory=L2)
    optimizer: Any = field(default_factory=GradientDescent)
    window: int = 1
    chunk: int = 1
    stop_gradient: bool = False


@dataclass(frozen=True)
class Gates:
    alpha: Tensor | None = None
    eta: Tensor | None = None
    theta: Tensor | None = None
    gamma: Tensor | None = None
    hidden: Tensor | None = None


@dataclass(frozen=True)
class Problem:
    """Everything the oracle takes; `token` and `gate` are those of the first row and head."""

    q: Tensor
    k: Tensor
    v: Tensor
    gates: Gates
    weights: tuple[Tensor, ...]

    def run(self, spec: Spec) -> Result:
        return memorize(self.q, self.k, self.v, self.gates, self.weights, spec)

    def token(self, t: int) -> tuple[Tensor, Tensor]:
        return self.k[0, 0, t], self.v[0, 0, t]

    def gate(self, name: str, t: int) -> Tensor:
        return getattr(self.gates, name)[0, 0, t]


def draw(spec: Spec, length: int, rows: int = 1, heads: int = 1) -> Problem:
    make = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=make)

    def between(low: float, high: float, *more: int) -> Tensor:
        uniform = torch.rand(rows, heads, length, *more, dtype=torch.float64, generator=make)
        return low + (high - low) * uniform

    shapes = {"Matrix": [(D, D)], "MLP": [(D, HIDDEN), (HIDDEN, D)]}
    shapes["GatedMLP"] = [*shapes["MLP"], (HIDDEN, D)]
    return Problem(
        *(normal(rows, heads, length, D) for _ in range(3)),
        Gates(
            alpha=between(0.8, 1.0),
            eta=between(0.1, 0.5),
            theta=between(0.2, 0.8),
            gamma=between(0.2, 1.0, spec.window),
            hidden=between(0.1, 0.5),
        ),
        tuple(normal(heads, *shape) for shape in shapes[type(spec.architecture).__name__]),
    )


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a.detach(), b.detach(), rtol=1e-12, atol=1e-12)


# ---- the network and its derivatives by hand --------------------------------------------------


def cdf(z: Tensor) -> Tensor:
    return 0.5 * (1 + torch.erf(z / math.sqrt(2)))


def slope(z: Tensor) -> Tensor:
    """GELU'(z) = Phi(z) + z Phi'(z)."""
    return cdf(z) + z * torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def hidden_features(spec: Spec, H: list[Tensor], x: Tensor) -> tuple[Tensor, float]:
    """h and the number it was divided by."""
    h = (H[0] @ x) * cdf(H[0] @ x)
    if isinstance(spec.architecture, GatedMLP):
        h = h * (H[1] @ x)
    n = math.sqrt(float(h @ h) + 1e-4) if spec.architecture.normalize else 1.0
    return h / n, n


def bounded(d: Tensor) -> Tensor:
    return d / (1 + d.norm())


def back(spec: Spec, H: list[Tensor], x: Tensor, dh: Tensor) -> list[Tensor]:
    """d of every hidden matrix: through the division, the product and GELU."""
    h, n = hidden_features(spec, H, x)
    if spec.architecture.normalize:
        dh = (dh - h * (h @ dh)) / n
    z = H[0] @ x
    if isinstance(spec.architecture, GatedMLP):
        return [bounded(dh * (H[1] @ x) * slope(z)), bounded(dh * z * cdf(z))]
    return [bounded(dh * slope(z))]


def error(spec: Spec, W: Tensor, H: list[Tensor], k: Tensor, v: Tensor) -> Tensor:
    r = k if spec.architecture.residual else torch.zeros_like(k)
    return v - r - W @ hidden_features(spec, H, k)[0]


DEEP = [
    kind(residual, normalize)
    for kind in (MLP, GatedMLP)
    for residual in (True, False)
    for normalize in (True, False)
]


# ---- the output matrix ------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 4])
def test_a_matrix_is_gated_deltanet(chunk: int) -> None:
    """alpha M (I - eta k k^T) + eta v k^T, whatever the chunk."""
    spec = Spec(Matrix(), chunk=chunk)
    p = draw(spec, 9)
    p = replace(p, gates=replace(p.gates, gamma=None, theta=None, hidden=None))
    M, y = p.weights[0][0], []
    for t in range(9):
        (k, v), alpha, eta = p.token(t), p.gate("alpha", t), p.gate("eta", t)
        M = alpha * M @ (torch.eye(D) - eta * torch.outer(k, k)) + eta * torch.outer(v, k)
        y.append(M @ p.q[0, 0, t])
    result = p.run(spec)
    close(result.y[0, 0], torch.stack(y))
    close(result.weights[0][0, 0], M)
    assert result.momentum == ()


@pytest.mark.parametrize("optimizer", [GradientDescent(), Momentum(), Muon()])
def test_a_window_takes_every_error_at_the_decayed_matrix(optimizer: Any) -> None:
    spec = Spec(Matrix(), optimizer=optimizer, window=3, chunk=2)
    p = draw(spec, 7)
    M, S = p.weights[0][0], torch.zeros(D, D, dtype=torch.float64)
    for t in range(7):
        kept = p.gate("alpha", t) * M
        S = p.gate("theta", t) * S if optimizer == Momentum() else torch.zeros_like(S)
        for i in range(max(0, t - 2), t + 1):
            k, v = p.token(i)
            S = S + p.gate("eta", t) * p.gate("gamma", t)[t - i] * torch.outer(v - kept @ k, k)
        M = kept + S
    result = p.run(spec)
    close(result.weights[0][0, 0], M)
    assert len(result.momentum) == (optimizer == Momentum())
    if result.momentum:
        close(result.momentum[0][0, 0], S)


@pytest.mark.parametrize("architecture", DEEP)
def test_without_hidden_steps_it_is_gated_deltanet_on_fixed_features(architecture: Any) -> None:
    spec = Spec(architecture, chunk=3)
    p = draw(spec, 8)
    p = replace(p, gates=replace(p.gates, gamma=None, hidden=torch.zeros(1, 1, 8).double()))
    (W, *H), y = [w[0] for w in p.weights], []
    r = float(architecture.residual)
    for t in range(8):
        (k, v), q, eta = p.token(t), p.q[0, 0, t], p.gate("eta", t)
        h = hidden_features(spec, H, k)[0]
        W = p.gate("alpha", t) * W @ (torch.eye(HIDDEN) - eta * torch.outer(h, h))
        W = W + eta * torch.outer(v - r * k, h)
        y.append(r * q + W @ hidden_features(spec, H, q)[0])
    result = p.run(spec)
    close(result.y[0, 0], torch.stack(y))
    for ours, expected in zip(result.weights, [W, *H], strict=True):
        close(ours[0, 0], expected)


def test_dot_product_writes_values() -> None:
    spec = Spec(bias=DotProduct())
    p = draw(spec, 1)
    (k, v), (W, H) = p.token(0), (w[0] for w in p.weights)
    gamma, kept = p.gate("gamma", 0)[0], p.gate("alpha", 0) * W
    written = torch.outer(v, hidden_features(spec, [H], k)[0])
    [d] = back(spec, [H], k, kept.T @ v)
    result = p.run(spec)
    close(result.weights[0][0, 0], kept + p.gate("eta", 0) * gamma * written)
    close(result.weights[1][0, 0], H + p.gate("hidden", 0) * gamma * torch.outer(d, k))


# ---- the hidden matrices ----------------------------------------------------------------------


@pytest.mark.parametrize("architecture", DEEP)
def test_one_token_by_hand(architecture: Any) -> None:
    spec = Spec(architecture)
    p = draw(spec, 1)
    (k, v), q, (W, *H) = p.token(0), p.q[0, 0, 0], (w[0] for w in p.weights)
    gamma, kept = p.gate("gamma", 0)[0], p.gate("alpha", 0) * W
    e = error(spec, kept, H, k, v)
    ds = back(spec, H, k, kept.T @ e)
    W = kept + p.gate("eta", 0) * gamma * torch.outer(e, hidden_features(spec, H, k)[0])
    H = [w + p.gate("hidden", 0) * gamma * torch.outer(d, k) for w, d in zip(H, ds, strict=True)]
    result = p.run(spec)
    for ours, expected in zip(result.weights, [W, *H], strict=True):
        close(ours[0, 0], expected)
    close(result.y[0, 0, 0], q * architecture.residual + W @ hidden_features(spec, H, q)[0])


@pytest.mark.parametrize("chunk", [1, 2])
def test_an_older_pair_in_and_before_the_chunk(chunk: int) -> None:
    """Inside the chunk it keeps its d; before it, d is made again at W1' and H', not decayed."""
    spec = Spec(window=2, chunk=chunk)
    p = draw(spec, 2)
    one = replace(p, q=p.q[:, :, :1], k=p.k[:, :, :1], v=p.v[:, :, :1]).run(spec)
    (k0, v0), (k1, v1) = p.token(0), p.token(1)
    W0, H0 = (w[0] for w in p.weights)
    W1, H1 = (w[0, 0].detach() for w in one.weights)
    if chunk == 1:
        start, W_old = [H1], W1
    else:
        start, W_old = [H0], p.gate("alpha", 0) * W0
    [d0] = back(spec, start, k0, W_old.T @ error(spec, W_old, start, k0, v0))
    kept = p.gate("alpha", 1) * W1
    [d1] = back(spec, start, k1, kept.T @ error(spec, kept, start, k1, v1))
    now, before = p.gate("gamma", 1)
    written = now * torch.outer(d1, k1) + before * torch.outer(d0, k0)
    H = H0 + p.gate("alpha", 1) * (H1 - H0) + p.gate("hidden", 1) * written
    W = kept
    for gamma, k, v in ((now, k1, v1), (before, k0, v0)):
        h, e = hidden_features(spec, start, k)[0], error(spec, kept, start, k, v)
        W = W + p.gate("eta", 1) * gamma * torch.outer(e, h)
    close(p.run(spec).weights[0][0, 0], W)
    close(p.run(spec).weights[1][0, 0], H)


@pytest.mark.parametrize("optimizer", [Momentum(), Muon(2, 2, coefficients=(1.0, 0.0, 0.0))])
def test_momentum_and_muon_by_hand(optimizer: Any) -> None:
    """With the coefficients (1, 0, 0) Newton-Schulz is S / (||S|| + 1e-7)."""
    spec, heavy = Spec(optimizer=optimizer, chunk=3), optimizer == Momentum()
    p = draw(spec, 4)
    W, H0 = (w[0] for w in p.weights)
    S1, S, Delta = torch.zeros_like(W), torch.zeros_like(H0), torch.zeros_like(H0)
    start = [H0]
    for t in range(4):
        start = [H0 + Delta] if t == 3 else start
        (k, v), kept = p.token(t), p.gate("alpha", t) * W
        e, gamma = error(spec, kept, start, k, v), p.gate("gamma", t)[0]
        [d] = back(spec, start, k, kept.T @ e)
        S1 = p.gate("theta", t) * S1 if heavy else torch.zeros_like(W)
        S1 = S1 + p.gate("eta", t) * gamma * torch.outer(e, hidden_features(spec, start, k)[0])
        mu = p.gate("hidden", t)
        S = p.gate("theta", t) * S + (mu if heavy else 1) * gamma * torch.outer(d, k)
        W, Delta = kept + S1, p.gate("alpha", t) * Delta
        if heavy:
            Delta = Delta + S
        elif t == 1:  # tokens 0 and 2 of a chunk of three do not step
            Delta = Delta + mu * S / (S.norm() + 1e-7)
    result = p.run(spec)
    expected = [W, H0 + Delta, S1, S] if heavy else [W, H0 + Delta, S]
    for ours, by_hand in zip(result.weights + result.momentum, expected, strict=True):
        close(ours[0, 0], by_hand)


@pytest.mark.parametrize("optimizer", [GradientDescent(), Muon(period=2)])
def test_forgetting_everything_makes_a_newborn(optimizer: Any) -> None:
    spec = Spec(GatedMLP(), optimizer=optimizer, window=2, chunk=4)
    p = draw(spec, 6)
    alpha, eta, mu = (x.clone() for x in (p.gates.alpha, p.gates.eta, p.gates.hidden))
    for gate in (alpha, eta, mu):
        gate[..., -1] = 0
    result = replace(p, gates=replace(p.gates, alpha=alpha, eta=eta, hidden=mu)).run(spec)
    assert not result.weights[0].any()
    for H, H0 in zip(result.weights[1:], p.weights[1:], strict=True):
        assert torch.equal(H[0], H0)
    close(result.y[0, 0, -1], p.q[0, 0, -1])


# ---- the gates' defaults, rows and heads ------------------------------------------------------


def test_a_missing_gate_is_one_and_hidden_is_eta() -> None:
    spec = Spec(optimizer=Momentum(), window=2, chunk=2)
    p = draw(spec, 3)
    ones, eta = torch.ones(1, 1, 3).double(), p.gates.eta
    full = Gates(ones, eta, 0 * ones, torch.ones(1, 1, 3, 2).double(), eta)
    close(replace(p, gates=Gates(eta=eta)).run(spec).y, replace(p, gates=full).run(spec).y)
    full = replace(full, eta=ones, hidden=ones)
    close(replace(p, gates=Gates()).run(spec).y, replace(p, gates=full).run(spec).y)


def test_rows_and_heads_are_alone() -> None:
    spec = Spec(optimizer=Momentum(), window=2, chunk=2)
    p = draw(spec, 3, rows=2, heads=2)
    whole = p.run(spec)
    names = ("alpha", "eta", "theta", "gamma", "hidden")
    gates = Gates(**{name: getattr(p.gates, name)[1:, :1] for name in names})
    cell = Problem(p.q[1:, :1], p.k[1:, :1], p.v[1:, :1], gates, tuple(w[:1] for w in p.weights))
    alone = cell.run(spec)
    close(whole.y[1:, :1], alone.y)
    for a, b in zip(whole.weights + whole.momentum, alone.weights + alone.momentum, strict=True):
        close(a[1:, :1], b)
    fixed = torch.tensor([0.9, 0.7]).double()
    per_head = replace(p, gates=replace(p.gates, alpha=fixed)).run(spec)
    per_token = replace(p.gates, alpha=fixed[None, :, None].expand(2, 2, 3))
    close(per_head.y, replace(p, gates=per_token).run(spec).y)


# ---- outer gradients --------------------------------------------------------------------------


def leaves(p: Problem) -> tuple[Problem, dict[str, Tensor]]:
    names = ("alpha", "eta", "theta", "gamma", "hidden")
    named = {"q": p.q, "k": p.k, "v": p.v} | {name: getattr(p.gates, name) for name in names}
    named |= {f"weight {j}": w for j, w in enumerate(p.weights)}
    leaf = {name: x.clone().requires_grad_() for name, x in named.items()}
    return rebuilt(leaf), leaf


def rebuilt(named: dict[str, Tensor]) -> Problem:
    gates = Gates(*(named[name] for name in ("alpha", "eta", "theta", "gamma", "hidden")))
    weights = tuple(x for name, x in named.items() if name.startswith("weight"))
    return Problem(named["q"], named["k"], named["v"], gates, weights)


@pytest.mark.parametrize("optimizer", [GradientDescent(), Momentum(), Muon(2, period=2)])
def test_the_outer_gradient_is_that_of_finite_differences(optimizer: Any) -> None:
    spec = Spec(GatedMLP(), optimizer=optimizer, window=2, chunk=2)
    _, leaf = leaves(draw(spec, 3))
    names = list(leaf)

    def outputs(*values: Tensor) -> tuple[Tensor, ...]:
        result = rebuilt(dict(zip(names, values, strict=True))).run(spec)
        return result.y, *result.weights, *result.momentum

    assert torch.autograd.gradcheck(outputs, tuple(leaf.values()), fast_mode=True)


@pytest.mark.parametrize("optimizer", [GradientDescent(), Momentum(), Muon()])
def test_gradients_are_finite_where_nothing_is_surprising(optimizer: Any) -> None:
    """W1 = 0 makes d = 0 at the first token, and S = 0 for Newton-Schulz."""
    spec = Spec(optimizer=optimizer, window=2, chunk=2)
    p = draw(spec, 3)
    p, leaf = leaves(replace(p, weights=(torch.zeros_like(p.weights[0]), p.weights[1])))
    (p.run(spec).y ** 2).sum().backward()
    assert all(x.grad.isfinite().all() for x in leaf.values() if x.grad is not None)


def test_stop_gradient_makes_constants_of_what_is_written() -> None:
    spec = Spec(window=2, chunk=2, stop_gradient=True)
    p, leaf = leaves(draw(spec, 3))
    stopped = p.run(spec)
    close(stopped.y, p.run(replace(spec, stop_gradient=False)).y)
    stopped.y.sum().backward()
    assert leaf["k"].grad is None
    assert leaf["v"].grad is None
    for name in ("q", "alpha", "eta", "gamma", "hidden", "weight 0", "weight 1"):
        assert leaf[name].grad.any(), name
    # What is written is a constant, so W1_0 reaches W1_t through the decay alone.
    [grad] = torch.autograd.grad(p.run(spec).weights[0].sum(), leaf["weight 0"])
    close(grad, p.gates.alpha.prod() * torch.ones_like(grad))
