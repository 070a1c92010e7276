"""The oracle itself, against closed forms written out by hand: nobody else checks it."""

import math

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import atlas_memory as am
from tests import oracles
from tests.memory.cases import Sizes, draw, oracle
from tests.memory.grid import BEFORE, kernel, matrix


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a.detach(), b, rtol=1e-12, atol=1e-12)


def test_delta_rule() -> None:
    """M (I - beta k k^T) + beta v k^T, one row and one head in plain matrices."""
    problem = draw(matrix(), 9, Sizes(rows=1, heads=1))
    M, y = problem.weights[0][0], []
    for t in range(9):
        k, v = problem.k[0, 0, t], problem.v[0, 0, t]
        beta = problem.gates.eta[0, 0, t] * problem.gates.gamma[0, 0, t, 0]
        M = M @ (torch.eye(4) - beta * torch.outer(k, k)) + beta * torch.outer(v, k)
        y.append(M @ problem.q[0, 0, t])
    result = oracle(problem, matrix())
    close(result.y[0, 0], torch.stack(y))
    close(result.weights[0][0, 0], M)


def test_decay_before_the_gradient() -> None:
    """alpha M (I - beta k k^T) + beta v k^T."""
    spec = matrix(retention=BEFORE)
    problem = draw(spec, 9, Sizes(rows=1, heads=1))
    M = problem.weights[0][0]
    for t in range(9):
        k, v, alpha = problem.k[0, 0, t], problem.v[0, 0, t], problem.gates.alpha[0, 0, t]
        beta = problem.gates.eta[0, 0, t] * problem.gates.gamma[0, 0, t, 0]
        M = alpha * M @ (torch.eye(4) - beta * torch.outer(k, k)) + beta * torch.outer(v, k)
    close(oracle(problem, spec).weights[0][0, 0], M)


def test_softmax_attention() -> None:
    spec = kernel(am.Exponential(), bias=am.DotProduct(), chunk=5)
    p = draw(spec, 9)
    weights = (torch.zeros_like(p.weights[0]),)
    result = oracles.memorize(p.q, p.k, p.v, am.Gates(), weights, spec)
    close(result.y, scaled_dot_product_attention(p.q, p.k, p.v, is_causal=True))


def test_hebbian_window_as_one_matrix_product() -> None:
    """y = (C * q k^T) v, C[t, i] = sum of eta_s gamma[s, s-i] over the steps s <= t."""
    spec = matrix(bias=am.DotProduct(), window=3, chunk=4)
    p = draw(spec, 11)
    C = torch.zeros(2, 2, 11, 11, dtype=torch.float64)
    for t in range(11):
        for s in range(t + 1):
            for i in range(max(0, s - 2), s + 1):
                C[:, :, t, i] += p.gates.eta[:, :, s] * p.gates.gamma[:, :, s, s - i]
    start = p.q @ p.weights[0].mT
    close(oracle(p, spec).y, start + (C * (p.q @ p.k.mT)) @ p.v)


def test_momentum_of_a_constant_gradient() -> None:
    """A Hebbian gradient never changes, so S is a geometric series."""
    spec = matrix(bias=am.DotProduct(), optimizer=am.Momentum(), chunk=3)
    p = draw(spec, 6, Sizes(rows=1, heads=1))
    gates = am.Gates(
        eta=torch.full((1, 1, 6), 0.5).double(), theta=torch.full((1, 1, 6), 0.5).double()
    )
    k, v = p.k[:, :, :1].expand_as(p.k), p.v[:, :, :1].expand_as(p.v)
    result = oracles.memorize(p.q, k, v, gates, p.weights, spec)
    write = 0.5 * torch.outer(v[0, 0, 0], k[0, 0, 0])
    S = [write * (2 - 0.5**t) for t in range(6)]
    close(result.momentum[0][0, 0], S[-1])
    close(result.weights[0][0, 0], p.weights[0][0] + sum(S))


def test_inner_gradient_of_a_deep_memory() -> None:
    """dl/dW1 = e s(z)^T, dl/dW2 = (W1^T e * s'(z)) k^T, for the residual MLP and l2."""
    spec = matrix(architecture=am.MLP(2))
    p = draw(spec, 1, Sizes(rows=1, heads=1))
    W1, W2 = (w[0] for w in p.weights)
    k, v = p.k[0, 0, 0], p.v[0, 0, 0]
    z = W2 @ k
    cdf = 0.5 * (1 + torch.erf(z / math.sqrt(2)))
    density = torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    e = k + W1 @ (z * cdf) - v
    step = p.gates.eta[0, 0, 0] * p.gates.gamma[0, 0, 0, 0]
    result = oracle(p, spec)
    close(result.weights[0][0, 0], W1 - step * torch.outer(e, z * cdf))
    close(result.weights[1][0, 0], W2 - step * torch.outer((W1.T @ e) * (cdf + z * density), k))


def test_retention_maps() -> None:
    """Memora's rows are distributions times the scale, from W_0 on; Moneta's norm is |A|^(3-q)."""
    W = torch.rand(3, 5, dtype=torch.float64) + 0.1
    memora = oracles.retention_map(am.SoftmaxRetention(2.0), W.log())
    close(memora, 2 * W / W.sum(1, keepdim=True))
    moneta = oracles.retention_map(am.LqRetention(4.0), W)
    close(moneta.norm(4), 1 / W.norm(4))
    close(oracles.retention_map(am.LqRetention(2.0), W), W)


def test_monomials() -> None:
    x, z = torch.tensor([[2.0, -1.0, 0.5], [0.3, 0.7, -0.2]], dtype=torch.float64)
    a = [1.0, 0.7, 0.4, 0.1]
    product = oracles.monomials(x, a) @ oracles.monomials(z, a)
    close(product, sum(c * (x @ z) ** i for i, c in enumerate(a)))


def test_phi_star_is_the_limit_of_the_polynomials() -> None:
    """Without normalizer the kernel expansion is the map of degree 14, up to 1e-11.

    The matrix that acts on x is the degree-one part: exp(x.k / sqrt(dk)) belongs to x / dk^(1/4).
    """
    choices = dict(architecture=am.GatedMLP(2, residual=False), optimizer=am.Momentum())
    choices |= dict(chunk=4, window=3)
    p = draw(kernel(am.Exponential(normalize=False), **choices), 9, Sizes(rows=1, dk=2, dv=3))
    scale, taylor = 2**0.25, [1 / math.factorial(i) for i in range(15)]
    wide = [p.weights[0]]
    for w in p.weights[1:]:
        wide.append(
            torch.cat([torch.zeros_like(w[..., :1]), w * scale, torch.zeros(2, 6, 117)], -1)
        )
    kernels = oracle(p, kernel(am.Exponential(normalize=False), **choices))
    truncated = oracles.memorize(
        p.q,
        p.k,
        p.v,
        p.gates,
        wide,
        matrix(**choices),
        lambda x: oracles.monomials(x / scale, taylor),
    )
    torch.testing.assert_close(kernels.y, truncated.y, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(kernels.weights[0], truncated.weights[0], rtol=1e-10, atol=1e-10)
