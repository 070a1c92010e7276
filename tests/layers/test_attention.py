"""Attention over everything and over a window: definition, cuts, documents, ragged rows, cost."""

from dataclasses import replace

import pytest
import torch
from streams import rows, stream
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from atlas_memory.layers.attention import Attention

WINDOWS = [None, 1, 3, 8, 50]
OPTIONS = [{}, {"conv": 4}, {"persistent": 3}]


def build(window, **options):
    torch.manual_seed(0)
    return Attention(16, 2, window=window, **options).double()


def literal(layer, x):
    """Each token against each earlier one, rotations as complex numbers."""
    batch, time, dim = x.shape
    head_dim = dim // layer.heads
    frequency = layer.rope_theta ** -(torch.arange(head_dim // 2).double() * 2 / head_dim)
    turn = torch.polar(
        torch.ones(time, head_dim // 2).double(), torch.outer(torch.arange(time), frequency)
    )

    def heads(proj, rotated):
        z = proj(x).view(batch, time, layer.heads, head_dim).transpose(1, 2)
        if not rotated:
            return z
        a, b = z.chunk(2, dim=-1)
        z = torch.complex(a, b) * turn
        return torch.cat([z.real, z.imag], dim=-1)

    q, k, v = heads(layer.q_proj, True), heads(layer.k_proj, True), heads(layer.v_proj, False)
    scores = q @ k.transpose(-1, -2) / head_dim**0.5
    distance = torch.arange(time)[:, None] - torch.arange(time)
    window = layer.window or time
    scores = scores.masked_fill((distance < 0) | (distance >= window), -torch.inf)
    return layer.o_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("time", [1, 8, 23])
def test_equals_the_definition(window, time):
    layer, x = build(window), rows(2, time, 16)
    torch.testing.assert_close(layer(x)[0], literal(layer, x))


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("cuts", [[1] * 23, [2, 20, 1], [5, 1, 17]])
def test_any_cut_gives_the_same(window, options, cuts):
    layer, x = build(window, **options), rows(2, 23, 16)
    y, state = stream(layer, x, cuts)
    torch.testing.assert_close(y, layer(x)[0], rtol=0, atol=1e-13)
    assert state.position.tolist() == [23, 23]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("options", OPTIONS)
def test_documents_do_not_see_each_other(window, options):
    layer, x = build(window, **options), rows(1, 21, 16)
    starts = torch.zeros(1, 21, dtype=torch.bool)
    starts[0, [2, 3, 14]] = True
    before = layer(rows(1, 5, 16))[1]
    y, state = layer(x, before, starts=starts)
    first, *others = x.split([2, 1, 11, 7], dim=1)
    alone = [layer(first, before)[0], *(layer(part)[0] for part in others)]
    torch.testing.assert_close(y, torch.cat(alone, dim=1), rtol=0, atol=1e-13)
    more = rows(1, 4, 16)
    expected = layer(more, layer(others[-1])[1])[0]
    torch.testing.assert_close(layer(more, state)[0], expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("carried", [0, 2])
def test_ragged_rows_equal_rows_alone(window, options, carried):
    layer, x, more = build(window, **options), rows(4, 13, 16), rows(4, 3, 16)
    before = layer(rows(4, carried, 16))[1] if carried else None
    lengths = torch.tensor([13, 1, 7, 12])
    y, state = layer(x, before, lengths=lengths)
    after, _ = layer(more, state)
    for row, length in enumerate(lengths.tolist()):
        picked = before.select(torch.tensor([row])) if carried else None
        alone, own = layer(x[row : row + 1, :length], picked)
        torch.testing.assert_close(y[row : row + 1, :length], alone, rtol=0, atol=1e-13)
        expected = layer(more[row : row + 1], own)[0]
        torch.testing.assert_close(after[row : row + 1], expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("window", [None, 4])
def test_a_row_of_no_tokens_keeps_its_state(window):
    layer, more = build(window, conv=4), rows(2, 3, 16)
    before = layer(rows(2, 6, 16))[1]
    _, state = layer(rows(2, 5, 16), before, lengths=torch.tensor([0, 5]))
    expected = layer(more, before)[0][:1]
    torch.testing.assert_close(layer(more, state)[0][:1], expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("time", [1, 3, 40])
def test_a_window_keeps_a_constant_number_of_bytes(time):
    layer = build(8, conv=4)
    _, state = layer(rows(2, time, 16))
    _, later = layer(rows(2, 31, 16), state)
    assert state.num_bytes == later.num_bytes == layer(rows(2, 1, 16))[1].num_bytes


class LargestTensor(TorchDispatchMode):
    """Remembers the size of the largest tensor that any operation made."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.numel = max([self.numel, *(x.numel() for x in tree_leaves(out) if torch.is_tensor(x))])
        return out


def test_a_window_never_needs_a_square():
    layer, x = build(16), rows(1, 4096, 16).requires_grad_()
    with LargestTensor() as largest, FlopCounterMode(display=False) as flops:
        layer(x)[0].sum().backward()
    with FlopCounterMode(display=False) as half:
        layer(x[:, :2048])[0].sum().backward()
    assert largest.numel <= 2 * 4096 * 31
    assert flops.get_total_flops() == 2 * half.get_total_flops()


@pytest.mark.parametrize("window", [None, 5])
def test_padding_has_finite_gradients(window):
    layer, x = build(window, persistent=2), rows(3, 9, 16).requires_grad_()
    starts = torch.zeros(3, 9, dtype=torch.bool)
    starts[1, 2] = True
    y, _ = layer(x, starts=starts, lengths=torch.tensor([0, 4, 9]))
    y.sum().backward()
    assert x.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


def test_far_positions_are_exact():
    layer, x = build(4), rows(1, 6, 16)
    state = layer(rows(1, 3, 16))[1]
    nothing = replace(state.cache, valid=torch.zeros_like(state.cache.valid))
    far = replace(state, cache=nothing, position=torch.tensor([10_000_000]))
    torch.testing.assert_close(layer(x, far)[0], layer(x)[0], rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((16, 3), "width 16 and 3 heads"),
        ((6, 2), "even size, got width 6"),
        ((16, 2, 0), "at least 1 token, got 0"),
    ],
)
def test_bad_shapes_are_refused(arguments, message):
    dim, heads, *window = arguments
    with pytest.raises(ValueError, match=message):
        Attention(dim, heads, window=window[0] if window else None)
