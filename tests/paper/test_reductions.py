"""Special cases of the one operator: windows, optimizers, Titans, attention, mirror descents."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

import atlas_memory as am
from atlas_memory.memory.architectures import plain
from tests.memory.cases import (
    Sizes,
    assert_same,
    draw,
    inverse_factorials,
    oracle,
    package,
    results,
    run,
)
from tests.memory.grid import kernel, matrix
from tests.paper.recurrences import FORMS, LINEAR, T, agree, outer, tokens, wide

# ---- the Omega rule and its optimizers --------------------------------------------------------


@FORMS
@pytest.mark.parametrize("window", [2, 5])
def test_only_the_newest_gate_is_a_window_of_one(form: str, window: int) -> None:
    """gamma = (1, 0, .., 0) prunes the rest of the context: the Delta rule."""
    spec = matrix(window=window, chunk=4, architecture=am.MLP(2))
    p = draw(spec, 30)
    gamma = torch.zeros_like(p.gates.gamma)
    gamma[..., 0] = 1
    p = replace(p, gates=replace(p.gates, gamma=gamma))
    one = replace(p, gates=replace(p.gates, gamma=None))
    y, state = package(p, spec, form)
    expected, last = package(one, replace(spec, window=1), form)
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(state.weights, last.weights, rtol=1e-12, atol=1e-12)


@FORMS
@pytest.mark.parametrize("architecture", [am.Matrix(), am.MLP(2)])
def test_a_window_of_the_whole_context_descends_the_loss_of_all_pairs(
    form: str, architecture: am.Matrix | am.MLP
) -> None:
    """c >= t, gamma = 1: a step follows the gradient of sum_i l(M; k_i, v_i), i = 1 .. t."""
    spec = matrix(window=T, chunk=1, architecture=architecture, retention=am.NoRetention())
    p = draw(spec, T)
    p = replace(p, gates=am.Gates(eta=p.gates.eta))
    _, before = package(p.cut(0, T - 1), spec, form)
    _, after = package(p, spec, form)
    W = [w.detach().requires_grad_() for w in before.weights]
    y, _ = architecture.forward([plain(w) for w in W], p.k, p.k)
    gradients = torch.autograd.grad(spec.bias.loss(y, p.v).sum(), W)
    eta = wide(p.gates.eta[:, :, -1])
    expected = tuple(w - eta * g for w, g in zip(before.weights, gradients, strict=True))
    torch.testing.assert_close(after.weights, expected, rtol=1e-10, atol=1e-12)


@FORMS
def test_coefficients_gate_the_degrees_of_the_input(form: str) -> None:
    """a_1 = 1 and a_i = 0 for i != 1 is phi(x) = x."""
    spec = matrix(features=am.Polynomial(2), window=2)
    p = draw(spec, T)
    coefficients = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    first = p.weights[0][..., 1 : 1 + p.k.shape[-1]]
    y, _ = package(replace(p, coefficients=coefficients), spec, form)
    plainly = replace(p, coefficients=None, weights=(first,))
    expected, _ = package(plainly, replace(spec, features=am.Identity()), form)
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)


@FORMS
def test_omega_rule_of_a_matrix(form: str) -> None:
    """alpha M - sum_i gamma_i (M k_i - v_i) k_i^T over the window, at every token anew."""
    spec = matrix(window=3, retention=am.ScalarRetention())
    p = draw(spec, T)
    kv, gates = tokens(p), p.gates

    def step(M: Tensor, t: int) -> Tensor:
        new = wide(gates.alpha[:, :, t]) * M
        for j in range(min(3, t + 1)):
            k, v = kv[t - j]
            error = (M @ k[..., None])[..., 0] - v
            new = new - wide(gates.eta[:, :, t] * gates.gamma[:, :, t, j]) * outer(error, k)
        return new

    agree(p, spec, form, step)


@FORMS
def test_momentum_without_theta_is_gradient_descent(form: str) -> None:
    spec = matrix(architecture=am.GatedMLP(2), retention=am.ScalarRetention(), window=3, chunk=4)
    p = draw(spec, 30)
    momentum = replace(spec, optimizer=am.Momentum())
    for theta in (None, torch.zeros_like(p.gates.eta)):
        q = replace(p, gates=replace(p.gates, theta=theta))
        y, state = package(q, momentum, form)
        expected, last = package(p, spec, form)
        torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(state.weights, last.weights, rtol=1e-12, atol=1e-12)


@FORMS
def test_muon_without_newton_schulz_is_momentum(form: str) -> None:
    """Rank one and one step of X <- aX: NS is S/|S|, so that rescaled steps are momentum's.

    With (a, b, c) = (1, 0, 0) Newton-Schulz only divides by the norm. Momentum with a constant eta
    has S = -eta sum theta.. u, Muon S = sum theta.. u; a step of eta |S| makes them one.
    """
    muon = matrix(bias=LINEAR, optimizer=am.Muon(1, coefficients=(1.0, 0.0, 0.0)), chunk=4)
    p = draw(muon, 30)
    theta = p.gates.theta
    S, sizes = torch.zeros(2, 2, 4, 4, dtype=torch.float64), []
    for t, (k, v) in enumerate(tokens(p)):
        S = wide(theta[:, :, t]) * S - outer(v, k)
        sizes.append(S.flatten(-2).norm(dim=-1) + 1e-7)
    y, _ = package(
        replace(p, gates=am.Gates(theta=theta, eta=0.2 * torch.stack(sizes, -1))), muon, form
    )
    momentum = replace(muon, optimizer=am.Momentum())
    eta = torch.full_like(theta, 0.2)
    expected, _ = package(replace(p, gates=am.Gates(theta=theta, eta=eta)), momentum, form)
    torch.testing.assert_close(y, expected, rtol=1e-9, atol=1e-9)


@FORMS
def test_muon_steps_are_orthogonal(form: str) -> None:
    """From W_0 = 0 the first write is -eta times a nearly semi-orthogonal matrix."""
    spec = matrix(optimizer=am.Muon(5), window=8, chunk=8)
    p = draw(spec, 8, Sizes(rows=8))
    last = torch.zeros_like(p.gates.eta)
    last[:, :, -1] = 1  # only the eighth token steps, with eight tokens of momentum
    zero = (torch.zeros_like(p.weights[0]),)
    gates = am.Gates(eta=last, theta=torch.ones_like(last))
    _, state = package(replace(p, gates=gates, weights=zero), spec, form)
    values = torch.linalg.svdvals(state.weights[0])
    assert values.max() < 1.21
    assert values.median() > 0.68


# ---- Titans -----------------------------------------------------------------------------------

TITANS = am.MemorySpec(
    features=am.Identity(),
    architecture=am.MLP(2),
    bias=am.L2(),
    optimizer=am.Momentum(),
    retention=am.ScalarRetention(),
    window=1,
    chunk=1,
)


@FORMS
@pytest.mark.parametrize("residual", [True, False])
def test_titans_token_by_token(form: str, residual: bool) -> None:
    spec = replace(TITANS, architecture=am.MLP(2, residual=residual))
    p = draw(spec, 40)
    assert_same(run(p, spec, form), run(p, spec, "oracle"))


class ResidualMLP(nn.Module):
    """x + W1 gelu(W2 x), as titans-pytorch takes a memory model: weights [in, out]."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.w2 = nn.Parameter(torch.randn(dim, 2 * dim) / dim**0.5)
        self.w1 = nn.Parameter(torch.randn(2 * dim, dim) / (2 * dim) ** 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x + gelu(x @ self.w2) @ self.w1


@pytest.mark.parametrize("chunk", [1, 8])
@FORMS
def test_titans_equals_titans_pytorch(form: str, chunk: int) -> None:
    """Its `chunk_size=1` is a step per token; its `batch_size` is our chunk.

    Without its norms, with the sum of squares for a loss, and with its own projections giving our
    q, k, v and gates, nothing is left to differ.
    """
    from titans_pytorch import NeuralMemory

    torch.manual_seed(0)
    memory = NeuralMemory(
        6,
        chunk_size=1,
        batch_size=chunk,
        model=ResidualMLP(6),
        mem_model_norm_add_residual=False,
        pre_rmsnorm=False,
        store_memory_loss_fn=lambda pred, target: (pred - target).pow(2).sum(-1) / 2,
        default_step_transform_max_lr=0.3,
        init_decay_bias=-3.0,
    ).double()
    x = torch.randn(2, 29, 6, dtype=torch.float64)
    expected, last = memory(x)
    q, k, v = (f(x)[:, None] for f in (memory.to_queries, memory.to_keys, memory.to_values))
    gates = am.Gates(
        alpha=1 - memory.to_decay_factor(x).sigmoid().view(2, 1, 29),
        eta=memory.adaptive_step_transform(memory.to_adaptive_step(x)).view(2, 1, 29),
        theta=memory.to_momentum(x).sigmoid().view(2, 1, 29),
    )
    weights = tuple(w.mT for w in reversed(list(memory.memory_model_parameters)))
    y, state = am.memorize(q, k, v, gates, weights, replace(TITANS, chunk=chunk), form=form)
    torch.testing.assert_close(y[:, 0], expected, rtol=1e-9, atol=1e-9)
    theirs = list(last.states[0].values())
    for ours, name in zip(state.weights, reversed(theirs), strict=True):
        torch.testing.assert_close(ours[:, 0], name.mT, rtol=1e-9, atol=1e-9)


# ---- phi*: attention --------------------------------------------------------------------------


@FORMS
@pytest.mark.parametrize("chunk", [1, 7, 64])
@pytest.mark.parametrize("scale", [1.0, 60.0], ids=["unit keys", "sharp"])
def test_exponential_hebbian_matrix_is_softmax_attention(
    form: str, chunk: int, scale: float
) -> None:
    """W_0 = 0, eta = alpha = 1. Sharp: logits of +-1800, whose exponentials have no float64."""
    spec = kernel(am.Exponential(), bias=LINEAR, chunk=chunk)
    p = draw(spec, T)
    p = replace(p, q=scale * p.q, k=scale * p.k, gates=am.Gates())
    p = replace(p, weights=(torch.zeros_like(p.weights[0]),))
    y, _ = package(p, spec, form)
    expected = scaled_dot_product_attention(p.q, p.k, p.v, is_causal=True)
    torch.testing.assert_close(y, expected, rtol=1e-9, atol=1e-9)


def test_attention_gradients() -> None:
    spec = kernel(am.Exponential(), bias=LINEAR, chunk=16)
    p = draw(spec, T)
    zero = (torch.zeros_like(p.weights[0]),)
    q, k, v = (x.clone().requires_grad_() for x in (p.q, p.k, p.v))
    y, _ = am.memorize(q, k, v, am.Gates(), zero, spec, form="chunkwise")
    expected = scaled_dot_product_attention(q, k, v, is_causal=True)
    for a, b in zip(
        torch.autograd.grad(y.sin().sum(), (q, k, v)),
        torch.autograd.grad(expected.sin().sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7)


@FORMS
@pytest.mark.parametrize("decay", [False, True])
def test_phi_star_is_the_limit_of_the_polynomials(form: str, decay: bool) -> None:
    """Without normalizer, the kernel form is Polynomial(14) of x / dk^(1/4): a deep memory too.

    The matrix that acts on x is no part of what decays, so it is 0 where there is decay.
    """
    choices = dict(architecture=am.MLP(2, residual=False), optimizer=am.Momentum())
    choices |= dict(chunk=4, window=3)
    choices["retention"] = am.ScalarRetention() if decay else am.NoRetention()
    star = kernel(am.Exponential(normalize=False), **choices)
    p = draw(star, 20, Sizes(dk=2, dv=3))
    if decay:
        p = replace(p, weights=(p.weights[0], 0 * p.weights[1]))
    series = matrix(features=am.Polynomial(14), **choices)
    # Where the package keeps the two monomials of degree one is seen by differentiating at 0.
    slope = torch.func.jacrev(lambda x: series.features(x[None], inverse_factorials(14))[0])
    linear = p.weights[1] @ slope(torch.zeros(2, dtype=torch.float64)).T * 2**0.25
    y, state = package(p, star, form)
    shrunk = replace(p, q=p.q / 2**0.25, k=p.k / 2**0.25, weights=(p.weights[0], linear))
    expected, last = package(shrunk, series, form)
    torch.testing.assert_close(y, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(state.weights[0], last.weights[0], rtol=1e-9, atol=1e-9)


# ---- Moneta, Yaad, Memora ---------------------------------------------------------------------


@FORMS
def test_moneta_with_q_of_two_is_plain_decay(form: str) -> None:
    plain = matrix(architecture=am.MLP(2), retention=am.ScalarRetention(), bias=am.Lp(3.0), chunk=3)
    p = draw(plain, 20)
    y, state = package(p, replace(plain, retention=am.LqRetention(2.0)), form)
    expected, last = package(p, plain, form)
    torch.testing.assert_close(y, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(state.weights, last.weights, rtol=1e-9, atol=1e-9)


@FORMS
def test_yaad_with_a_wide_delta_is_l2(form: str) -> None:
    plain = matrix(architecture=am.MLP(2), retention=am.ScalarRetention(), chunk=3, window=2)
    p = draw(plain, 20)
    y, _ = package(p, replace(plain, bias=am.Huber(100.0)), form)
    torch.testing.assert_close(y, package(p, plain, form)[0], rtol=1e-12, atol=1e-12)


@FORMS
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_memora_rows_are_distributions(form: str, scale: float) -> None:
    spec = matrix(retention=am.SoftmaxRetention(scale), architecture=am.MLP(2), chunk=4)
    _, state = package(draw(spec, 20), spec, form)
    for W in state.weights:
        assert (W > 0).all()
        sums = torch.full_like(W[..., 0], scale)
        torch.testing.assert_close(W.sum(-1), sums, rtol=1e-12, atol=1e-12)


@FORMS
def test_memora_is_exponentiated_gradient_descent(form: str) -> None:
    """W_t ~ W_{t-1}^alpha exp(-eta g), rows normalized: multiplicative, so no log is kept."""
    spec = matrix(retention=am.SoftmaxRetention(), bias=LINEAR)
    p = draw(spec, 40)
    p = replace(p, weights=(p.weights[0] / p.weights[0].sum(-1, keepdim=True),))
    kv, gates = tokens(p), p.gates
    eta = gates.eta * gates.gamma[..., 0]

    def step(W: Tensor, t: int) -> Tensor:
        k, v = kv[t]
        W = W ** wide(gates.alpha[:, :, t]) * torch.exp(wide(eta[:, :, t]) * outer(v, k))
        return W / W.sum(-1, keepdim=True)

    agree(p, spec, form, step)


def test_oracle_and_package_read_the_same_row() -> None:
    """The preset Atlas of the paper: phi_2, MLP, l2, window, Muon, decay."""
    spec = am.MemorySpec(
        features=am.Polynomial(2),
        architecture=am.MLP(4),
        bias=am.L2(),
        optimizer=am.Muon(5),
        retention=am.ScalarRetention(),
        window=4,
        chunk=8,
    )
    p = draw(spec, 21)
    result = oracle(p, spec)
    expected = results(spec, result.y, result.weights, result.momentum)
    for form in ("recurrent", "chunkwise"):
        y, state = package(p, spec, form)
        found = results(spec, y, state.weights, state.momentum)
        assert_same(found, {name: x.detach() for name, x in expected.items()})
