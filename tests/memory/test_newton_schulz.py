"""Newton-Schulz by the Gram matrix and directly, against the loop as the paper writes it."""

import pytest
import torch
from torch import Tensor

from atlas_memory.memory.optimizers import KELLER, newton_schulz

STEPS = (0, 1, 2, 5)
SHAPES = [(3, 2, 4, 16), (2, 16, 5), (5, 8, 8), (2, 6, 12)]  # long, tall, square, at the border


def as_written(S: Tensor, steps: int) -> Tensor:
    a, b, c = KELLER
    if S.shape[-2] > S.shape[-1]:
        return as_written(S.mT, steps).mT
    X = S / (S.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        A = X @ X.mT
        X = a * X + (b * A + c * A @ A) @ X
    return X


def draw(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    S, weight = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    return S.requires_grad_(), weight


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients(shape, steps):
    S, weight = draw(shape)
    made, expected = newton_schulz(S, steps), as_written(S, steps)
    torch.testing.assert_close(made, expected, rtol=0, atol=1e-13)
    gradients = [torch.autograd.grad(y, S, weight)[0] for y in (made, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_written_stays_nothing(shape):
    """A momentum of 0 has no direction: its answer is 0, and its gradient that of the loop."""
    zeros = [torch.zeros(shape, requires_grad=True) for _ in range(2)]
    for S, run in zip(zeros, (newton_schulz, as_written), strict=True):
        y = run(S, 5)
        assert not y.any()
        y.sum().backward()
    torch.testing.assert_close(zeros[0].grad, zeros[1].grad)


@pytest.mark.parametrize("scale", [1e-15, 1e-3, 1e15])
def test_any_length_in_float32(scale):
    S, _ = draw((2, 8, 32))
    small = (scale * S.detach()).float()
    torch.testing.assert_close(
        newton_schulz(small, 5), as_written(small.double(), 5).float(), rtol=1e-3, atol=1e-5
    )
