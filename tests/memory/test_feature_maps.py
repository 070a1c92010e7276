"""Feature maps: the kernels they promise."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import atlas_memory as am
from tests.memory.cases import draw, inverse_factorials, package
from tests.memory.grid import matrix


def pairs(dim: int, count: int = 50) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, count, dim, generator=generator, dtype=torch.float64)
    return q, k


def kernel_of(features: am.Polynomial, dim: int, coefficients: Tensor) -> tuple[Tensor, Tensor]:
    q, k = pairs(dim)
    products = (features(q, coefficients) * features(k, coefficients)).sum(-1)
    return products, (q * k).sum(-1)


@pytest.mark.parametrize("dim", [1, 3, 6])
@pytest.mark.parametrize("degree", [1, 2, 3, 5])
def test_polynomial_kernel_identity(degree: int, dim: int) -> None:
    """phi(q).phi(k) = sum_i a_i (q.k)^i, for any positive a_i."""
    generator = torch.Generator().manual_seed(1)
    a = torch.rand(degree + 1, generator=generator, dtype=torch.float64) + 0.1
    product, dot = kernel_of(am.Polynomial(degree), dim, a)
    torch.testing.assert_close(product, sum(a[i] * dot**i for i in range(degree + 1)))


def test_polynomial_has_every_monomial_once() -> None:
    for dim, degree in ((4, 2), (5, 3), (1, 4)):
        assert am.Polynomial(degree).dim(dim) == math.comb(dim + degree, degree)
        x = torch.ones(1, dim, dtype=torch.float64)
        phi = am.Polynomial(degree)(x, inverse_factorials(degree))
        assert phi.shape == (1, am.Polynomial(degree).dim(dim))


def test_coefficients_start_as_the_taylor_series() -> None:
    """Without `coefficients=`, memorize uses a_i = 1/i!."""
    spec = matrix(features=am.Polynomial(3))
    problem = draw(spec, 6)
    given = package(problem, spec, "recurrent")[0]
    plain = package(replace(problem, coefficients=None), spec, "recurrent")[0]
    taylor = package(replace(problem, coefficients=inverse_factorials(3)), spec, "recurrent")[0]
    torch.testing.assert_close(plain, taylor, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(plain, given)


def test_polynomial_approaches_the_exponential() -> None:
    product, dot = kernel_of(am.Polynomial(14), 2, inverse_factorials(14))
    near = dot.abs() < 1
    torch.testing.assert_close(product[near], dot[near].exp(), rtol=1e-10, atol=1e-10)


def test_elementwise_kernel_identity() -> None:
    """phi(q).phi(k) = sum_i a_i sum_j (q_j k_j)^i."""
    features = am.Elementwise(3)
    q, k = pairs(5)
    a = features.constants(5)
    product = (features(q, a) * features(k, a)).sum(-1)
    expected = sum(a[i] * ((q * k) ** i).sum(-1) for i in range(1, 4))
    torch.testing.assert_close(product, expected)


@pytest.mark.parametrize("degree", [2, 4])
def test_sketch_estimates_the_power(degree: int) -> None:
    """Never negative; over many sketches, the mean of (s(q).s(k))^2 is (q.k)^p plus the variance.

    One random product has mean c = q.k and second moment 1 + 2c^2; s(q).s(k) averages `size`
    independent products of p/2 of them.
    """
    size, count = 24, 400
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in pairs(3, 30))
    sketches = [am.Sketch(degree, size, seed=seed) for seed in range(count)]
    constants = [features.constants(3) for features in sketches]
    found = torch.stack(
        [(f(q, G) * f(k, G)).sum(-1) for f, G in zip(sketches, constants, strict=True)]
    )
    c = (q * k).sum(-1)
    variance = ((1 + 2 * c**2) ** (degree / 2) - c**degree) / size
    assert (found >= -1e-12).all()
    assert ((found.mean(0) - c**degree - variance).abs() < 5 * found.std(0) / count**0.5).all()


def test_sketch_is_reproducible() -> None:
    torch.testing.assert_close(
        am.Sketch(2, 4).constants(5), am.Sketch(2, 4).constants(5), rtol=0, atol=0
    )
    assert not torch.equal(am.Sketch(2, 4, seed=1).constants(5), am.Sketch(2, 4).constants(5))


def test_what_is_kept_between_calls_serves_training_too() -> None:
    """The tables of monomials outlive a first call that comes from a server, or from meta."""
    x = torch.randn(3, 7, dtype=torch.float64)
    for features in (am.Polynomial(4), am.Sketch(2, size=9)):
        constants = features.constants(7)
        with torch.inference_mode(), torch.device("meta"):
            features(torch.empty_like(x, device="meta"), constants.to("meta"))
        learned = x.clone().requires_grad_()
        features(learned, constants).sum().backward()
        assert learned.grad is not None
