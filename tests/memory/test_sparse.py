"""Chunks in which nothing is written are read only, and nothing else is different for it."""

from dataclasses import replace

import pytest
import torch

import atlas_memory as am
from atlas_memory.memory import online_chunk
from atlas_memory.memory.tree import leaves
from tests.memory.cases import Problem, draw, package

CHUNK, TOKENS = 4, 27
SPECS = {
    "plain": am.MemorySpec(
        am.Identity(), am.MLP(2, normalize=True), am.L2(), am.GradientDescent(), chunk=CHUNK
    ),
    "window": am.MemorySpec(
        am.Elementwise(2), am.GatedMLP(2), am.L2(), am.GradientDescent(), window=3, chunk=CHUNK
    ),
    "muon": am.MemorySpec(
        *(am.Identity(), am.MLP(2, normalize=True), am.L2(), am.Muon(period=2)),
        window=2,
        chunk=CHUNK,
    ),
    "hebbian": am.MemorySpec(
        *(am.Identity(), am.MLP(2), am.DotProduct(), am.GradientDescent()), window=2, chunk=CHUNK
    ),
}
SPECS = {
    name: replace(spec, retention=am.ScalarRetention(), output="online")
    for name, spec in SPECS.items()
}


def quiet(problem: Problem, writes: list[int]) -> Problem:
    """Only these tokens are written: what the write gate of a layer makes of the gates."""
    t = problem.q.shape[2]
    w = torch.zeros(t, dtype=torch.float64)
    w[writes] = 1
    g = problem.gates
    c = g.gamma.shape[3]
    older = torch.stack([torch.cat([w.new_zeros(j), w])[:t] for j in range(c)], dim=1)
    theta = None if g.theta is None else 1 - w * (1 - g.theta)
    gates = am.Gates(
        1 - w * (1 - g.alpha), g.eta * w, theta, g.gamma * older, (w * g.hidden).contiguous()
    )
    return replace(problem, gates=gates)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("writes", [[], [0], [7], [9, 10, 26], [3, 4, 20]], ids=str)
@pytest.mark.parametrize("cut", [0, 3, 8, 13])
@torch.no_grad()
def test_what_is_read_only_is_what_the_definition_says(name, writes, cut):
    spec = SPECS[name]
    problem = quiet(draw(spec, TOKENS), writes)
    expected, at_end = package(problem, spec, "recurrent")
    first, state = package(problem.cut(0, cut), spec, "chunkwise", sparse=True)
    second, state = package(problem.cut(cut), spec, "chunkwise", sparse=True, state=state)
    torch.testing.assert_close(torch.cat([first, second], 2), expected, atol=1e-12, rtol=0)
    for (_, ours), (name, theirs) in zip(leaves(state), leaves(at_end), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0, msg=name)


@pytest.mark.parametrize("name", SPECS)
def test_only_chunks_that_write_are_solved(name, monkeypatch):
    """Chunk 1 and the last one write; with gradients all chunks are read as ever."""
    seen = []
    whole = online_chunk._read
    monkeypatch.setattr(
        online_chunk,
        "_read",
        lambda spec, piece, *rest: (
            seen.append(piece.streams[0].shape[1]) or whole(spec, piece, *rest)
        ),
    )
    problem = quiet(draw(SPECS[name], 24), [5, 23])
    with torch.no_grad():
        package(problem, SPECS[name], "chunkwise", sparse=True)
        # Muon's momentum of a pair that is written goes on into the next token, not farther
        assert seen == [CHUNK, CHUNK]
        package(problem, SPECS[name], "chunkwise")
    package(problem, SPECS[name], "chunkwise", sparse=True)
    assert seen[2:] == [24, 24]


@torch.no_grad()
def test_a_memory_that_is_not_written_stays_bit_for_bit():
    spec = SPECS["muon"]
    problem = quiet(draw(spec, 24), [2])
    _, state = package(problem.cut(0, 8), spec, "chunkwise")
    _, later = package(problem.cut(8), spec, "chunkwise", sparse=True, state=state)
    for before, after in zip(state.weights, later.weights, strict=True):
        assert torch.equal(before, after)
