"""Newton-Schulz, the analytic surprises, and what each optimizer leaves in the state."""

import pytest
import torch
from torch import Tensor

import atlas_memory as am
from atlas_memory.memory.optimizers import newton_schulz
from tests import oracles
from tests.memory.cases import draw, package
from tests.memory.grid import BIASES, matrix

SHAPES = ((4, 4), (4, 9), (9, 4), (16, 64), (1, 5), (5, 1))


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("steps", [1, 2, 5, 8])
def test_gram_form_equals_the_usual_loop(shape: tuple[int, int], steps: int) -> None:
    S = random(3, *shape)
    expected = torch.stack([oracles.newton_schulz(s, steps) for s in S])
    torch.testing.assert_close(newton_schulz(S, steps), expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("shape", [(4, 9), (9, 4), (16, 64)])
def test_gradients_of_the_gram_form(shape: tuple[int, int]) -> None:
    S = random(*shape).requires_grad_()
    R = random(*shape, seed=1)
    (found,) = torch.autograd.grad((newton_schulz(S, 5) * R).sum(), S)
    (expected,) = torch.autograd.grad((oracles.newton_schulz(S, 5) * R).sum(), S)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("shape", [(6, 24), (24, 6), (8, 32)])
def test_singular_values_come_close_to_one(shape: tuple[int, int]) -> None:
    """Five steps bring a well conditioned matrix to between 0.68 and 1.21."""
    values = torch.linalg.svdvals(newton_schulz(random(20, *shape), 5))
    assert values.min() > 0.68
    assert values.max() < 1.21


def test_the_scale_of_the_momentum_does_not_matter() -> None:
    S = random(5, 8)
    for scale in (1e-3, 1e3):
        torch.testing.assert_close(
            newton_schulz(scale * S, 5), newton_schulz(S, 5), rtol=1e-3, atol=1e-4
        )


def test_no_momentum_gives_no_step() -> None:
    S = torch.zeros(3, 4, 8, dtype=torch.float64, requires_grad=True)
    found = newton_schulz(S, 5)
    assert (found == 0).all()
    (gradient,) = torch.autograd.grad(found.sum(), S)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("bias", [*BIASES, am.Lp(2.0), am.Lp(4.0), am.Huber(10.0)], ids=repr)
def test_surprise_is_the_gradient_of_the_loss(bias: am.L2) -> None:
    """Against autograd of the oracle's loss, and of the package's own."""
    y, v = random(6, 5).requires_grad_(), random(6, 5, seed=1)
    expected = torch.stack(
        [oracles.attentional_bias(bias, *pair) for pair in zip(y, v, strict=True)]
    )
    torch.testing.assert_close(bias.loss(y, v), expected, rtol=1e-12, atol=1e-12)
    (gradient,) = torch.autograd.grad(expected.sum(), y)
    torch.testing.assert_close(bias.surprise(y, v).detach(), gradient, rtol=1e-12, atol=1e-12)


def test_l2_is_lp_of_two_and_a_wide_huber() -> None:
    y, v = random(6, 5), random(6, 5, seed=1)
    for other in (am.Lp(2.0), am.Huber(100.0)):
        torch.testing.assert_close(
            other.surprise(y, v), am.L2().surprise(y, v), rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize("bias", [am.Huber(0.5), am.Lp(3.0), am.Lp(1.5)], ids=repr)
def test_no_error_no_surprise_and_no_nan(bias: am.Huber) -> None:
    """A perfect answer is where norms have no derivative."""
    y = torch.zeros(3, 5, dtype=torch.float64, requires_grad=True)
    surprise = bias.surprise(y, torch.zeros_like(y))
    assert (surprise == 0).all()
    (gradient,) = torch.autograd.grad(surprise.sum(), y)
    assert not gradient.isnan().any()


@pytest.mark.parametrize("form", ["recurrent", "chunkwise"])
def test_huber_is_bounded(form: str) -> None:
    """A surprise of at most delta: values a million times too large move the memory no further."""
    spec = matrix(bias=am.Huber(1.0), chunk=4)
    problem = draw(spec, 8)
    problem.v.mul_(1e6)
    _, state = package(problem, spec, form)
    moved = (state.weights[0] - problem.weights[0]).norm(dim=(-2, -1))
    assert (moved <= (problem.gates.eta * problem.gates.gamma[..., 0]).sum(-1) + 1e-12).all()


@pytest.mark.parametrize("form", ["recurrent", "chunkwise"])
def test_tokens_between_periods_only_decay(form: str) -> None:
    spec = matrix(optimizer=am.Muon(5, period=4), retention=am.ScalarRetention(), chunk=4)
    problem = draw(spec, 7)
    W = [package(problem.cut(0, t), spec, form)[1].weights[0] for t in range(1, 8)]
    for t in (0, 1, 2, 4, 5, 6):
        before = problem.weights[0].expand_as(W[0]) if t == 0 else W[t - 1]
        kept = problem.gates.alpha[:, :, t, None, None] * before
        torch.testing.assert_close(W[t], kept, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(W[3], problem.gates.alpha[:, :, 3, None, None] * W[2])
