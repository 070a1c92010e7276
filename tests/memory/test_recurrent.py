"""The recurrent form is the definition: it must be what the equations say, token by token."""

from dataclasses import replace

import pytest

import atlas_memory as am
from tests.memory.cases import Sizes, assert_same, describe, draw, run
from tests.memory.grid import ALL, FEW, SLOW


@pytest.mark.parametrize("spec", [*ALL, *SLOW], ids=describe)
def test_recurrent_equals_oracle(spec: am.MemorySpec) -> None:
    problem = draw(spec, 7)
    assert_same(run(problem, spec, "recurrent"), run(problem, spec, "oracle"))


@pytest.mark.parametrize("spec", FEW, ids=describe)
def test_more_values_than_keys(spec: am.MemorySpec) -> None:
    """dk != dv, one row, three heads, weights that differ from row to row."""
    spec = replace(spec, architecture=replace(spec.architecture, residual=False))
    problem = draw(spec, 5, Sizes(rows=2, heads=3, dk=3, dv=5), own_weights=True)
    expected = run(problem, spec, "oracle")
    for form in ("recurrent", "chunkwise"):
        assert_same(run(problem, spec, form), expected)


@pytest.mark.parametrize("spec", FEW[:4], ids=describe)
def test_missing_gates_are_neutral(spec: am.MemorySpec) -> None:
    """No gate given: alpha = eta = gamma = 1 and theta = 0."""
    problem = replace(draw(spec, 3), gates=am.Gates())
    expected = run(problem, spec, "oracle")
    for form in ("recurrent", "chunkwise"):
        assert_same(run(problem, spec, form), expected)
