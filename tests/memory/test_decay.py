"""What is left of older tokens: products of gates, and their gradients."""

import pytest
import torch

from atlas_memory.memory.omega import decay, decay_from, decay_to, decays


def written_out(gate: torch.Tensor) -> torch.Tensor:
    """Every product as it is."""
    m = len(gate)
    rows = [
        [gate[n + 1 : t + 1].prod() if n <= t else gate.new_zeros(()) for n in range(m)]
        for t in range(m)
    ]
    return torch.stack([torch.stack(row) for row in rows])


@pytest.mark.parametrize("zeros", [(), (0,), (3,), (2, 5), (8,)])
def test_products_and_gradients_are_exact_with_gates_of_zero_too(zeros: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    gate = torch.rand(9, dtype=torch.float64)
    gate[list(zeros)] = 0
    weight = torch.randn(9, 9, dtype=torch.float64)
    found = []
    for make in (decay, written_out):
        given = gate.clone().requires_grad_()
        D = make(given)
        (gradient,) = torch.autograd.grad((weight * D).sum(), given)
        found.append((D, gradient))
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("gate", [0.45, 0.8, 1e-3])
def test_nothing_is_left_that_a_processor_is_slow_with(gate: float) -> None:
    """Numbers below the smallest normal one made a step of Atlas take 1.6 times as long."""
    D = decay(torch.full((2, 128), gate))
    values = D.unique()
    assert values[0] == 0
    assert (values[1:] > 1e-19).all()
    assert D[0, 1, 0] == pytest.approx(gate)


@pytest.mark.parametrize("zero", [None, 3])
def test_some_columns_and_rows_are_those_of_the_whole_matrix(zero):
    gate = torch.rand(2, 9, dtype=torch.float64)
    if zero is not None:
        gate[:, zero] = 0.0
    gate.requires_grad_()
    whole, start = decays(gate)
    columns, rows = decay_from(gate, (-1, 2, 8)), decay_to(gate, (4, 8))
    torch.testing.assert_close(columns, torch.stack([start, whole[..., 2], whole[..., 8]], -1))
    expected = torch.cat([start[:, None, [4, 8]], whole[:, [4, 8]].mT], dim=1)
    torch.testing.assert_close(rows, expected)
    weights = torch.randn_like(rows)
    (found,) = torch.autograd.grad((rows * weights).sum(), gate, retain_graph=True)
    (wanted,) = torch.autograd.grad((expected * weights).sum(), gate)
    torch.testing.assert_close(found, wanted)
