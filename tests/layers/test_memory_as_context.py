"""Segments in which nothing is written are read side by side, and nothing else is different."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import atlas_memory as am
from atlas_memory.layers.memory_as_context import MemoryAsContext
from atlas_memory.memory.tree import leaves

DIM, SEGMENT, SEGMENTS = 16, 4, 5
SPEC = am.MemorySpec(
    *(am.Identity(), am.MLP(2, normalize=True), am.L2(), am.GradientDescent()),
    retention=am.ScalarRetention(),
    window=2,
    chunk=8,
    output="online",
)


@pytest.fixture
def layer() -> MemoryAsContext:
    """Whose write gate opens where the first coordinate of a token is large."""
    torch.manual_seed(0)
    memory = am.MemoryLayer(DIM, 2, SPEC, admission=True)
    mac = MemoryAsContext(DIM, 2, memory, segment=SEGMENT).double()
    nn.init.normal_(mac.o_proj.weight, std=0.1)
    gate = memory.write_gate
    assert gate is not None
    with torch.no_grad():
        gate.weight.zero_()
        gate.weight[:, 0] = 20.0
        gate.bias.fill_(-40.0)
    return mac.eval()


def text(written: list[int]) -> torch.Tensor:
    """Tokens whose first coordinate is large where they are to be written, else below zero."""
    x = torch.randn(2, SEGMENT * SEGMENTS, DIM, dtype=torch.float64)
    x[..., 0] = -x[..., 0].abs()
    x[1, written, 0] = 40.0
    return x


def read(layer: MemoryAsContext, written: list[int], monkeypatch: pytest.MonkeyPatch) -> Iterator:
    """Answers and state behind a first segment, as it is and one segment after the other."""
    first, rest = text([1])[:, :SEGMENT], text(written)
    with torch.no_grad():
        _, state = layer(first)
        yield layer(rest, state)
        monkeypatch.setattr(layer, "_may_guess", lambda x, state: False)
        yield layer(rest, state)


@pytest.mark.parametrize("written", [[], [9], [SEGMENT * SEGMENTS - 1]])
def test_shut_segments_side_by_side_are_what_they_are_one_by_one(layer, written, monkeypatch):
    (y, state), (expected, after) = read(layer, written, monkeypatch)
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-12)
    for (name, a), (_, b) in zip(leaves(state), leaves(after), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12, msg=name)


@pytest.mark.parametrize(("written", "guessed"), [([], True), ([9], False)])
def test_only_what_is_shut_is_guessed(layer, written, guessed):
    with torch.no_grad():
        _, state = layer(text([1])[:, :SEGMENT])
        assert (layer._read_shut(text(written), state) is not None) == guessed


def test_nothing_is_guessed_inside_a_segment_or_with_gradients(layer):
    x = text([])
    with torch.no_grad():
        _, state = layer(x[:, :SEGMENT])
        _, inside = layer(x[:, : SEGMENT - 1])
        assert layer._may_guess(x, state)
        assert not layer._may_guess(x, inside)
        assert not layer._may_guess(x[:, :SEGMENT], state)
        assert not layer._may_guess(x, None)
    assert not layer._may_guess(x, state)
