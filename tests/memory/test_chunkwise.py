"""The chunkwise form must equal the recurrent one and the oracle: outputs, state and gradients."""

import pytest
import torch

import atlas_memory as am
from tests.memory.cases import assert_same, describe, draw, package, run
from tests.memory.grid import ALL, EXTRA, FEW, GRID, KERNELS

# Every fourth row of the grid goes long; four offsets so that each length meets its own rows.
LONG = [(spec, 64) for spec in GRID[0::4]] + [(spec, 150) for spec in GRID[2::8]]
LONG += [(spec, 64) for spec in EXTRA[0::2]] + [(spec, 150) for spec in EXTRA[1::2]]
LONG += [(spec, 64) for spec in KERNELS[0::2]] + [(spec, 150) for spec in KERNELS[1::3]]


@pytest.mark.parametrize("spec", ALL, ids=describe)
def test_chunkwise_equals_oracle(spec: am.MemorySpec) -> None:
    problem = draw(spec, 13, seed=1)
    assert_same(run(problem, spec, "chunkwise"), run(problem, spec, "oracle"))


@pytest.mark.parametrize("spec", FEW, ids=describe)
def test_one_token(spec: am.MemorySpec) -> None:
    problem = draw(spec, 1, seed=2)
    expected = run(problem, spec, "oracle")
    assert_same(run(problem, spec, "chunkwise"), expected)
    assert_same(run(problem, spec, "recurrent"), expected)


@pytest.mark.parametrize(
    ("spec", "t"), LONG, ids=lambda x: x if isinstance(x, int) else describe(x)
)
def test_chunkwise_equals_recurrent(spec: am.MemorySpec, t: int) -> None:
    problem = draw(spec, t, seed=3)
    assert_same(run(problem, spec, "chunkwise"), run(problem, spec, "recurrent"))


@pytest.mark.parametrize("spec", [GRID[5], EXTRA[0], EXTRA[5], KERNELS[2]], ids=describe)
@pytest.mark.parametrize("form", ["chunkwise", "recurrent"])
def test_gradient_equals_finite_differences(spec: am.MemorySpec, form: str) -> None:
    """Guards the one thing that autograd in both the oracle and the package could share."""
    problem, leaf = draw(spec, 5, seed=4).leaves()
    weight = torch.linspace(-1, 1, problem.v.numel(), dtype=torch.float64).view_as(problem.v)

    def loss() -> torch.Tensor:
        return (package(problem, spec, form)[0] * weight).sum()

    gradients = torch.autograd.grad(loss(), list(leaf.values()))
    generator = torch.Generator().manual_seed(5)
    for (name, x), gradient in zip(leaf.items(), gradients, strict=True):
        direction = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        sides = []
        for sign in (1e-5, -1e-5):
            with torch.no_grad():
                x += sign * direction
                sides.append(loss())
                x -= sign * direction
        slope = (sides[0] - sides[1]) / 2e-5
        torch.testing.assert_close(
            (gradient * direction).sum(),
            slope,
            rtol=1e-6,
            atol=1e-7,
            msg=lambda m, n=name: f"{n} {m}",
        )
