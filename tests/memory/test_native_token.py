"""A decoded token's kernel against torch's operations, which are its definition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import atlas_memory as am
from atlas_memory.memory.native import library, token
from atlas_memory.memory.state import MemoryState
from atlas_memory.memory.tree import leaves
from tests.memory.cases import Problem, Sizes, describe, draw, package

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason="there are no kernels here")

CHUNK, TOKENS, BEHIND = 6, 15, 4
SIZES = Sizes(rows=3, heads=2, dk=5, dv=5), Sizes(rows=3, heads=2, dk=20, dv=20)


def online(
    optimizer: object, window: int, features: object = None, **choices: object
) -> am.MemorySpec:
    given = {"architecture": am.MLP(4, normalize=True), "features": features or am.Identity()}
    more = {"optimizer": optimizer, "window": window, "chunk": CHUNK, "output": "online"}
    return am.MemorySpec(**(given | more | choices))


SPECS = [
    online(optimizer, window, features)
    for optimizer in (am.GradientDescent(), am.Momentum(), am.Muon(3, period=CHUNK), am.Muon(3, 2))
    for window in (1, 2, 4)
    for features in (am.Elementwise(2), am.Identity())
] + [
    online(am.Momentum(), 2, am.Polynomial(2)),
    online(am.Momentum(), 2, am.Elementwise(3), retention=am.NoRetention()),
    online(am.Muon(3, period=3), 4, retention=am.NoRetention()),
    online(am.GradientDescent(), 2, retention=am.FixedRetention()),
    online(am.Momentum(), 4, architecture=am.MLP(3, residual=False, normalize=True)),
]
EXACT = {torch.float64: 1e-12, torch.float32: 1e-5}


def cast(problem: Problem, dtype: torch.dtype) -> Problem:
    changed = problem.each(lambda x: x.to(dtype))
    gates = changed.gates.map(lambda x: x.to(dtype))
    weights = tuple(w.to(dtype) for w in problem.weights)
    coefficients = None if problem.coefficients is None else problem.coefficients.to(dtype)
    return replace(changed, gates=gates, weights=weights, coefficients=coefficients)


def apart(problem: Problem, spec: am.MemorySpec) -> MemoryState:
    """Its rows behind 3, 4 and 5 tokens."""
    states = [
        package(problem.rows(row).cut(0, BEHIND - 1 + row), spec, "chunkwise")[1]
        for row in range(3)
    ]
    return states[0].join(states[1:])


def decoded(problem: Problem, spec: am.MemorySpec, state: MemoryState) -> dict[str, Tensor]:
    """Every answer, and what is known behind the last."""
    answers = []
    for i in range(BEHIND + 1, TOKENS):
        y, state = package(problem.cut(i, i + 1), spec, "chunkwise", state=state)
        answers.append(y)
    return {"y": torch.cat(answers, dim=2), **dict(leaves(state))}


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that are called, by name."""
    names: list[str] = []
    call: Callable[..., None] = token.call
    monkeypatch.setattr(
        token, "call", lambda name, *given: (names.append(name), call(name, *given))
    )
    return names


@pytest.mark.parametrize("dtype", EXACT, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: f"d{sizes.dk}")
@pytest.mark.parametrize("alike", [True, False], ids=("alike", "apart"))
@pytest.mark.parametrize("spec", SPECS, ids=describe)
@torch.no_grad()
def test_answers_and_states(
    spec: am.MemorySpec,
    alike: bool,
    sizes: Sizes,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = cast(draw(spec, TOKENS, sizes), dtype)
    behind = problem.cut(0, BEHIND)
    state = package(behind, spec, "chunkwise")[1] if alike else apart(problem, spec)
    before = {name: x.clone() for name, x in leaves(state)}
    names = counted(monkeypatch)
    found = decoded(problem, spec, state)
    assert names == ["token"] * (TOKENS - BEHIND - 1)
    for name, x in leaves(state):
        assert torch.equal(x, before[name]), f"{name} of the old state has changed"
    monkeypatch.setattr(library, "_found", dict.fromkeys(library.NAMES, "torch is asked"))
    expected = decoded(problem, spec, state)
    assert len(names) == TOKENS - BEHIND - 1
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert value.isfinite().all()
        torch.testing.assert_close(
            *(found[name], value), rtol=EXACT[dtype], atol=EXACT[dtype], msg=f"{name} differs"
        )


@torch.no_grad()
def test_a_token_that_is_not_taken_in_changes_no_bit() -> None:
    spec = online(am.Muon(3, period=CHUNK), 2)
    problem = draw(spec, TOKENS, SIZES[1])
    _, state = package(problem.cut(0, BEHIND), spec, "chunkwise")
    token = problem.cut(BEHIND, BEHIND + 1)
    zero, one = torch.zeros_like(token.gates.eta), torch.ones_like(token.gates.eta)
    shut = replace(token.gates, alpha=one, eta=zero, theta=one, hidden=zero)
    shut = replace(shut, gamma=torch.zeros_like(shut.gamma))
    _, after = package(replace(token, gates=shut), spec, "chunkwise", state=state)
    for name, x in leaves((after.start, after.hidden, after.start_momentum)):
        assert torch.equal(x, dict(leaves((state.start, state.hidden, state.start_momentum)))[name])


def test_gradients_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = online(am.Momentum(), 2)
    names = counted(monkeypatch)
    y, _ = package(draw(spec, 1).leaves()[0], spec, "chunkwise")
    assert y.requires_grad
    assert not names


@pytest.mark.parametrize(
    "spec",
    [
        online(am.Momentum(), 2, architecture=am.GatedMLP(2, normalize=True)),
        online(am.Momentum(), 2, architecture=am.MLP(2)),
        online(am.Momentum(), 2, bias=am.DotProduct()),
    ],
    ids=describe,
)
@torch.no_grad()
def test_other_memories_are_torchs(spec: am.MemorySpec, monkeypatch: pytest.MonkeyPatch) -> None:
    names = counted(monkeypatch)
    package(draw(spec, 1), spec, "chunkwise")
    assert not names
