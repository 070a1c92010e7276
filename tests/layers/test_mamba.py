"""Mamba against transformers' own forward, and what transformers' cannot do."""

import pytest
import torch
from streams import rows, stream

from atlas_memory.layers.mamba import Mamba, diagonal_scan


@pytest.fixture
def layer():
    torch.manual_seed(0)
    layer = Mamba(8, state_size=4)
    for parameter in layer.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return layer.double()


def test_equals_transformers_slow_path(layer):
    layer = layer.float().eval()
    x = rows(2, 19, 8).float()
    torch.testing.assert_close(layer(x)[0], layer.mixer(x), rtol=1e-5, atol=1e-6)


def test_gradients_equal_transformers(layer):
    layer = layer.float().eval()
    x = rows(2, 19, 8).float()
    ours = torch.autograd.grad(layer(x)[0].square().sum(), list(layer.parameters()))
    theirs = torch.autograd.grad(layer.mixer(x).square().sum(), list(layer.parameters()))
    for mine, peer in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, peer, rtol=1e-4, atol=1e-4)


def test_scan_has_exact_gradients():
    a, b, h = rows(2, 5, 3).sigmoid(), rows(2, 5, 3), rows(2, 3)
    inputs = [x.clone().requires_grad_() for x in (a, b, h)]
    assert torch.autograd.gradcheck(diagonal_scan, inputs)
    torch.library.opcheck(diagonal_scan, inputs)


@pytest.mark.parametrize("cuts", [[1] * 9, [2, 7], [5, 1, 3]])
def test_any_cut_gives_the_same(layer, cuts):
    x = rows(2, 9, 8)
    y, _ = stream(layer, x, cuts)
    torch.testing.assert_close(y, layer(x)[0], rtol=0, atol=1e-13)


def test_documents_do_not_see_each_other(layer):
    x = rows(1, 11, 8)
    starts = torch.zeros(1, 11, dtype=torch.bool)
    starts[0, [4, 9]] = True
    before = layer(rows(1, 5, 8))[1]
    y, state = layer(x, before, starts=starts)
    first, *others = x.split([4, 5, 2], dim=1)
    alone = torch.cat([layer(first, before)[0], *(layer(part)[0] for part in others)], dim=1)
    torch.testing.assert_close(y, alone, rtol=0, atol=1e-13)
    torch.testing.assert_close(state.hidden, layer(others[-1])[1].hidden, rtol=0, atol=1e-13)


def test_ragged_rows_equal_rows_alone(layer):
    x, before = rows(3, 7, 8), layer(rows(3, 2, 8))[1]
    lengths = torch.tensor([7, 0, 3])
    y, state = layer(x, before, lengths=lengths)
    for row, length in enumerate(lengths.tolist()):
        picked = before.select(torch.tensor([row]))
        if length == 0:
            torch.testing.assert_close(state.hidden[row : row + 1], picked.hidden, rtol=0, atol=0)
            continue
        alone, after = layer(x[row : row + 1, :length], picked)
        torch.testing.assert_close(y[row : row + 1, :length], alone, rtol=0, atol=1e-13)
        torch.testing.assert_close(state.hidden[row : row + 1], after.hidden, rtol=0, atol=1e-13)
