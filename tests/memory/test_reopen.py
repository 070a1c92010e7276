"""Decoding behind any other form: the open chunk is made again from its tokens."""

import pytest
import torch

import atlas_memory as am
from atlas_memory.memory.open_chunk import reopen
from tests.memory.cases import assert_same, describe, draw, package
from tests.memory.grid import matrix

SPECS = (
    am.MemorySpec(optimizer=am.Muon(3, period=6), chunk=6, window=4, architecture=am.MLP(2)),
    am.MemorySpec(optimizer=am.Muon(3, period=2), chunk=6, window=4, architecture=am.MLP(2)),
    am.MemorySpec(optimizer=am.Momentum(), chunk=5, window=7, architecture=am.GatedMLP(2)),
    am.MemorySpec(optimizer=am.GradientDescent(), chunk=6, window=1, architecture=am.MLP(2)),
    matrix(optimizer=am.Momentum(), retention=am.ChannelRetention(), chunk=4, window=3),
    matrix(optimizer=am.Muon(3, period=5), retention=am.ChannelRetention(), chunk=5, window=2),
    am.MemorySpec(retention=am.SoftmaxRetention(), optimizer=am.Momentum(), chunk=4, window=2),
)


@pytest.mark.parametrize("spec", SPECS, ids=describe)
def test_one_token_behind_every_cut(spec: am.MemorySpec) -> None:
    problem = draw(spec, 14)
    whole, _ = package(problem, spec, "chunkwise")
    for cut in range(1, 14):
        _, state = package(problem.cut(0, cut), spec, "chunkwise")
        y, _ = package(problem.cut(cut, cut + 1), spec, "chunkwise", state=state)
        assert_same({"y": y.detach()}, {"y": whole[:, :, cut : cut + 1].detach()})


@pytest.mark.parametrize("spec", SPECS, ids=describe)
def test_rows_at_different_offsets(spec: am.MemorySpec) -> None:
    """Some rows have an empty open chunk, others a nearly full one."""
    problem = draw(spec, 14)
    states = [package(problem.cut(0, cut), spec, "chunkwise")[1] for cut in (3, 4, 5, 6, 9, 12)]
    joined = states[0].join(states[1:])
    made, alone = reopen(joined), [reopen(state) for state in states]
    for name in ("d", "x", "L", "S"):
        for i, found in enumerate(getattr(made, name)):
            expected = torch.cat([getattr(chunk, name)[i] for chunk in alone])
            if name in ("d", "x") and not made.L:  # behind a row's own tokens nothing counts
                used = torch.arange(expected.shape[2]) < (spec.window - 1 + joined.offset)[:, None]
                found, expected = (x * used[:, None, :, None] for x in (found, expected))
            assert_same({name: found.detach()}, {name: expected.detach()})
    for name in ("C", "A", "B"):
        expected = torch.cat([getattr(chunk, name) for chunk in alone])
        assert_same({name: getattr(made, name).detach()}, {name: expected.detach()})
