"""The short convolution: causal, cut anywhere, ragged, packed; and RMSNorm against torch's own."""

import pytest
import torch
from streams import rows, stream

from atlas_memory.layers import projections
from atlas_memory.layers.projections import RMSNorm, ShortConv


@pytest.fixture
def conv():
    torch.manual_seed(0)
    return ShortConv(6, size=4).double()


def test_equals_the_definition(conv):
    x = rows(2, 9, 6)
    y, _ = conv(x)
    for t in range(9):
        expected = sum(conv.weight[:, j] * x[:, t - j] for j in range(4) if t - j >= 0)
        torch.testing.assert_close(y[:, t], expected)


@pytest.mark.parametrize(("time", "size"), [(9, 4), (2, 4), (5, 2)])
def test_the_sum_of_taps_is_conv1d_gradients_too(time, size, monkeypatch):
    torch.manual_seed(0)
    conv, x = ShortConv(6, size=size).double(), rows(2, time, 6).requires_grad_()
    found = []
    for devices in (("cpu",), ()):
        monkeypatch.setattr(projections, "BY_TAPS", devices)
        y, _ = conv(x)
        found.append((y, *torch.autograd.grad(y.sin().sum(), [x, conv.weight])))
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("cuts", [[1] * 9, [2, 7], [5, 1, 3], [9]])
def test_any_cut_gives_the_same(conv, cuts):
    x = rows(2, 9, 6)
    y, state = stream(conv, x, cuts)
    torch.testing.assert_close(y, conv(x)[0])
    torch.testing.assert_close(state.tail, x[:, -3:])


def test_documents_do_not_see_each_other(conv):
    x = rows(1, 11, 6)
    starts = torch.zeros(1, 11, dtype=torch.bool)
    starts[0, [0, 4, 9]] = True
    y, state = conv(x, conv(rows(1, 5, 6))[1], starts=starts)
    alone = torch.cat([conv(part)[0] for part in x.split([4, 5, 2], dim=1)], dim=1)
    torch.testing.assert_close(y, alone)
    torch.testing.assert_close(state.tail, conv(x[:, 9:])[1].tail)


def test_ragged_rows_equal_rows_alone(conv):
    x = rows(4, 7, 6)
    before = conv(rows(4, 2, 6))[1]
    lengths = torch.tensor([7, 0, 2, 5])
    y, state = conv(x, before, lengths=lengths)
    for row, length in enumerate(lengths.tolist()):
        picked = before.select(torch.tensor([row]))
        alone, after = conv(x[row : row + 1, :length], picked) if length else (None, picked)
        torch.testing.assert_close(state.tail[row : row + 1], after.tail)
        if length:
            torch.testing.assert_close(y[row : row + 1, :length], alone)


def test_ragged_rows_with_documents(conv):
    x = rows(2, 6, 6)
    starts = torch.zeros(2, 6, dtype=torch.bool)
    starts[0, 3] = starts[1, 1] = True
    _, state = conv(x, lengths=torch.tensor([5, 2]), starts=starts)
    torch.testing.assert_close(state.tail[0:1], conv(x[0:1, 3:5])[1].tail)
    torch.testing.assert_close(state.tail[1:2], conv(x[1:2, 1:2])[1].tail)


def test_size_must_be_a_window():
    with pytest.raises(ValueError, match="size >= 2, got 1"):
        ShortConv(4, size=1)


def test_the_norm_is_that_of_torch():
    norm = RMSNorm(8, eps=1e-6).double()
    norm.weight.data.normal_()
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    expected = torch.nn.functional.rms_norm(x, (8,), norm.weight, eps=1e-6)
    torch.testing.assert_close(norm(x), expected)


def test_bfloat16_is_normalized_in_float32():
    x = torch.full((1, 4096), 300.0, dtype=torch.bfloat16)
    y = RMSNorm(4096).bfloat16()(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, torch.ones_like(x))
