"""Mamba-2 on our memory against transformers' torch reference."""

import pytest
import torch
from streams import rows, stream

from atlas_memory.layers.mamba2 import Mamba2


@pytest.fixture
def layer():
    torch.manual_seed(0)
    layer = Mamba2(8, 2, state_size=4)
    for parameter in layer.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return layer


def test_equals_transformers(layer):
    x = rows(2, 37, 8).float()
    torch.testing.assert_close(layer(x)[0], layer.mixer(x), rtol=1e-5, atol=1e-5)


def test_gradients_equal_transformers(layer):
    x = rows(2, 19, 8).float()
    ours = torch.autograd.grad(layer(x)[0].square().sum(), list(layer.parameters()))
    theirs = torch.autograd.grad(layer.mixer(x).square().sum(), list(layer.parameters()))
    for mine, peer in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, peer, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("cuts", [[1] * 9, [2, 7], [5, 1, 3]])
def test_any_cut_gives_the_same(layer, cuts):
    layer, x = layer.double(), rows(2, 9, 8)
    y, _ = stream(layer, x, cuts)
    torch.testing.assert_close(y, layer(x)[0], rtol=0, atol=1e-13)


def test_heads_must_divide_the_width():
    with pytest.raises(ValueError, match="2 x 9 and 4 heads"):
        Mamba2(9, 4)
