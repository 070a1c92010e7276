"""What holds for every memory, every length and every gate, searched by hypothesis."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

import atlas_memory as am
from tests.memory.cases import Problem, draw, package
from tests.memory.grid import ALL

SPECS = st.sampled_from(ALL)
FORMS = st.sampled_from(["recurrent", "chunkwise"])
SEEDS = st.integers(0, 10_000)
search = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@search
@given(SPECS, FORMS, SEEDS, st.integers(2, 20), st.data())
def test_causality(spec: am.MemorySpec, form: str, seed: int, t: int, data: st.DataObject) -> None:
    """Another future, the same present."""
    now = data.draw(st.integers(1, t - 1))
    here, other = draw(spec, t, seed=seed), draw(spec, t, seed=seed + 1)
    changed = spliced(here, other, now)
    y, _ = package(here, spec, form)
    again, _ = package(changed, spec, form)
    close(again[:, :, :now], y[:, :, :now])
    assert not torch.allclose(again[:, :, now:], y[:, :, now:])


def spliced(here: Problem, other: Problem, now: int) -> Problem:
    """The first `now` tokens of one problem, the rest of another; one set of weights."""

    def join(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.cat([a[:, :, :now], b[:, :, now:]], 2)

    mine, theirs = here.gates.named(), other.gates.named()
    gates = {name: join(mine[name], theirs[name]) for name in mine if mine[name].ndim > 1}
    q, k, v = join(here.q, other.q), join(here.k, other.k), join(here.v, other.v)
    return replace(here, q=q, k=k, v=v, gates=replace(here.gates, **gates))


@search
@given(SPECS, FORMS, SEEDS, st.integers(1, 20))
def test_rows_know_nothing_of_each_other(spec: am.MemorySpec, form: str, seed: int, t: int) -> None:
    problem = draw(spec, t, seed=seed)
    y, state = package(problem, spec, form)
    for row in range(2):
        alone, own = package(problem.rows(row), spec, form)
        close(y[row : row + 1], alone)
        for together, apart in zip(state.weights, own.weights, strict=True):
            close(together[row : row + 1], apart)


@search
@given(SPECS, SEEDS, st.lists(st.tuples(st.integers(1, 9), FORMS), min_size=1, max_size=5), FORMS)
def test_the_cut_does_not_matter(
    spec: am.MemorySpec, seed: int, parts: list[tuple[int, str]], form: str
) -> None:
    """Any pieces, each in any form."""
    problem = draw(spec, sum(length for length, _ in parts), seed=seed)
    whole, last = package(problem, spec, form)
    pieces, state, start = [], None, 0
    for length, how in parts:
        y, state = package(problem.cut(start, start + length), spec, how, state=state)
        pieces.append(y)
        start += length
    close(torch.cat(pieces, 2), whole)
    for a, b in zip(state.weights, last.weights, strict=True):
        close(a, b)


@search
@given(SPECS, FORMS, SEEDS, st.lists(st.integers(1, 8), min_size=1, max_size=4))
def test_packing_equals_separate_rows(
    spec: am.MemorySpec, form: str, seed: int, documents: list[int]
) -> None:
    """Row 0 holds the documents in this order, row 1 in the other."""
    t = sum(documents)
    problem = draw(spec, t, seed=seed)
    orders = (documents, documents[::-1])
    starts = torch.zeros(2, t, dtype=torch.bool)
    for row, order in enumerate(orders):
        starts[row, [sum(order[:i]) for i in range(len(order))]] = True
    y, state = package(problem, spec, form, starts=starts)
    for row, order in enumerate(orders):
        start = 0
        for length in order:
            alone, own = package(problem.rows(row).cut(start, start + length), spec, form)
            close(y[row : row + 1, :, start : start + length], alone)
            start += length
        for together, apart in zip(state.weights, own.weights, strict=True):
            close(together[row : row + 1], apart)


@search
@given(SPECS, FORMS, SEEDS, st.integers(1, 12), st.integers(0, 12))
def test_padding_changes_nothing(
    spec: am.MemorySpec, form: str, seed: int, length: int, padding: int
) -> None:
    problem = draw(spec, length + padding, seed=seed)
    lengths = torch.tensor([length, length + padding])
    y, state = package(problem, spec, form, lengths=lengths)
    for row in range(2):
        end = int(lengths[row])
        alone, own = package(problem.rows(row).cut(0, end), spec, form)
        close(y[row : row + 1, :, :end], alone)
        for together, apart in zip(state.weights, own.weights, strict=True):
            close(together[row : row + 1], apart)


@search
@given(SPECS, FORMS, SEEDS, st.integers(1, 12))
def test_nothing_given_is_written(spec: am.MemorySpec, form: str, seed: int, t: int) -> None:
    problem, leaf = draw(spec, t, seed=seed).leaves()
    kept = {name: x.detach().clone() for name, x in leaf.items()}
    versions = {name: x._version for name, x in leaf.items()}
    y, state = package(problem, spec, form)
    later, _ = package(problem, spec, form, state=state)
    (y.sum() + later.sum()).backward()
    for name, x in leaf.items():
        assert x._version == versions[name], name
        assert torch.equal(x, kept[name]), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_stays_close(dtype: torch.dtype) -> None:
    """The state is at least float32, and the answer that of float64 up to the inputs' rounding."""
    for spec in ALL[::7]:
        problem = draw(spec, 24)
        low = problem.each(lambda x: x.to(dtype))
        low = replace(low, weights=tuple(w.float() for w in problem.weights))
        if low.coefficients is not None:
            low = replace(low, coefficients=low.coefficients.float())
        y, state = package(low, spec, "chunkwise")
        exact, _ = package(problem, spec, "recurrent")
        assert y.dtype == dtype
        assert {w.dtype for w in state.weights} == {torch.float32}
        error = (y.double() - exact).norm() / exact.norm()
        assert error < (1e-4 if dtype == torch.float32 else 0.1), spec
