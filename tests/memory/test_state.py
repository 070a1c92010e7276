"""The state is a value: any cut, any form on either side, forks, padding, packing, a file."""

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise, product
from pathlib import Path

import pytest
import torch
from torch import Tensor

import atlas_memory as am
from tests.memory.cases import Problem, assert_same, describe, draw, oracle, package, results
from tests.memory.grid import FEW, GRID, KERNELS, matrix

FORMS = ("recurrent", "chunkwise")
BOTH = list(product(FORMS, FORMS))
CARRIED = pytest.mark.parametrize("spec", FEW, ids=describe)


@lru_cache(maxsize=64)
def drawn(spec: am.MemorySpec, t: int, seed: int = 0) -> tuple[Problem, dict[str, Tensor]]:
    """A problem and what the oracle, which is slow, says of it: asked once for all forms."""
    problem = draw(spec, t, seed=seed)
    return problem, expected(problem, spec)


def expected(problem: Problem, spec: am.MemorySpec) -> dict[str, Tensor]:
    result = oracle(problem, spec)
    return detached(results(spec, result.y, result.weights, result.momentum))


def found(spec: am.MemorySpec, pieces: list[Tensor], state: am.MemoryState) -> dict[str, Tensor]:
    return detached(results(spec, torch.cat(pieces, 2), state.weights, state.momentum))


def detached(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: x.detach() for name, x in tensors.items()}


@CARRIED
@pytest.mark.parametrize(("first", "second"), BOTH)
def test_every_cut_of_thirteen_tokens(spec: am.MemorySpec, first: str, second: str) -> None:
    problem, whole = drawn(spec, 13)
    for cut in range(1, 13):
        left, state = package(problem.cut(0, cut), spec, first)
        right, state = package(problem.cut(cut), spec, second, state=state)
        assert_same(found(spec, [left, right], state), whole)


@CARRIED
@pytest.mark.parametrize("form", FORMS)
def test_token_by_token(spec: am.MemorySpec, form: str) -> None:
    problem, whole = drawn(spec, 13, seed=1)
    pieces, state = [], None
    for t in range(13):
        y, state = package(problem.cut(t, t + 1), spec, form, state=state)
        pieces.append(y)
    assert_same(found(spec, pieces, state), whole)


@CARRIED
@pytest.mark.parametrize("stopped", [False, True], ids=["", "stop_gradient"])
def test_gradients_cross_a_cut(spec: am.MemorySpec, stopped: bool) -> None:
    """Single tokens among the pieces, which have code of their own."""
    spec, gradients = replace(spec, stop_gradient=stopped), []
    for cuts in ((0, 13), (0, 1, 6, 7, 11, 13)):
        problem, leaf = draw(spec, 13, seed=2).leaves()
        pieces, state = [], None
        for start, end in pairwise(cuts):
            y, state = package(problem.cut(start, end), spec, "chunkwise", state=state)
            pieces.append(y)
        loss = torch.cat(pieces, 2).pow(2).sum() + state.weights[0].sin().sum()
        values = torch.autograd.grad(
            loss, list(leaf.values()), allow_unused=True, materialize_grads=True
        )
        gradients.append({f"gradient of {name}": g for name, g in zip(leaf, values, strict=True)})
    assert_same(gradients[1], gradients[0])


# ---- packing: a document begins inside a row --------------------------------------------------

BORDERS = {0: (0, 3, 9), 1: (0, 1, 6, 7)}


def packed_starts() -> Tensor:
    starts = torch.zeros(2, 13, dtype=torch.bool)
    for row, borders in BORDERS.items():
        starts[row, list(borders)] = True
    return starts


def documents_apart(problem: Problem, spec: am.MemorySpec) -> dict[str, Tensor]:
    """Every document alone through the oracle; the state is that of the last one of each row."""
    rows, last = [], []
    for row, borders in BORDERS.items():
        edges = zip(borders, (*borders[1:], 13), strict=True)
        parts = [expected(problem.rows(row).cut(start, end), spec) for start, end in edges]
        rows.append(torch.cat([part["y"] for part in parts], 2))
        last.append(parts[-1])
    together = {name: torch.cat([part[name] for part in last]) for name in last[0] if name != "y"}
    return {"y": torch.cat(rows), **together}


@CARRIED
@pytest.mark.parametrize("form", FORMS)
def test_packed_documents_equal_separate_rows(spec: am.MemorySpec, form: str) -> None:
    problem = draw(spec, 13, seed=3)
    y, state = package(problem, spec, form, starts=packed_starts())
    assert_same(found(spec, [y], state), documents_apart(problem, spec))


@CARRIED
def test_packed_rows_can_be_cut(spec: am.MemorySpec) -> None:
    """Rows then stand at different places of their chunks."""
    problem, starts = draw(spec, 13, seed=4), packed_starts()
    whole = documents_apart(problem, spec)
    for cut, forms in zip((1, 3, 5, 8, 9), product(FORMS, FORMS), strict=False):
        left, state = package(problem.cut(0, cut), spec, forms[0], starts=starts[:, :cut])
        right, state = package(
            problem.cut(cut), spec, forms[1], state=state, starts=starts[:, cut:]
        )
        assert_same(found(spec, [left, right], state), whole)


@pytest.mark.parametrize("form", FORMS)
def test_a_start_forgets_the_state_that_is_passed_in(form: str) -> None:
    spec = GRID[17]
    problem, other = draw(spec, 6), draw(spec, 9, seed=8)
    _, state = package(other, spec, form)
    starts = torch.zeros(2, 6, dtype=torch.bool)
    starts[:, 0] = True
    y, state = package(problem, spec, form, state=state, starts=starts)
    assert_same(found(spec, [y], state), expected(problem, spec))


@pytest.mark.parametrize("form", FORMS)
def test_gradients_of_packed_documents(form: str) -> None:
    spec = GRID[21]
    problem, leaf = draw(spec, 13, seed=5).leaves()
    y, _ = package(problem, spec, form, starts=packed_starts())
    packed = torch.autograd.grad(y.pow(2).sum(), list(leaf.values()))
    apart = torch.zeros((), dtype=torch.float64)
    for row, borders in BORDERS.items():
        for start, end in zip(borders, (*borders[1:], 13), strict=True):
            apart = apart + oracle(problem.rows(row).cut(start, end), spec).y.pow(2).sum()
    separate = torch.autograd.grad(apart, list(leaf.values()))
    names = [f"gradient of {name}" for name in leaf]
    assert_same(dict(zip(names, packed, strict=True)), dict(zip(names, separate, strict=True)))


# ---- padding on the right ---------------------------------------------------------------------


def padded(problem: Problem, lengths: Tensor) -> Problem:
    """Large nonsense after the end of each row, gates left alone."""
    mask = torch.arange(problem.q.shape[2]) >= lengths[:, None]
    spoil = mask[:, None, :, None] * 1e3
    return replace(problem, q=problem.q + spoil, k=problem.k + spoil, v=problem.v - spoil)


@CARRIED
@pytest.mark.parametrize("form", FORMS)
def test_lengths_equal_shorter_rows(spec: am.MemorySpec, form: str) -> None:
    problem, lengths = draw(spec, 9, seed=6), torch.tensor([5, 8])
    y, state = package(padded(problem, lengths), spec, form, lengths=lengths)
    for row, length in enumerate(lengths.tolist()):
        alone = expected(problem.rows(row).cut(0, length), spec)
        one = state.select(torch.tensor([row]))
        assert_same(found(spec, [y[row : row + 1, :, :length]], one), alone)


@CARRIED
@pytest.mark.parametrize(("first", "second"), BOTH)
def test_rows_of_different_lengths_go_on(spec: am.MemorySpec, first: str, second: str) -> None:
    """Row 0 has read 2 tokens and row 1 seven; both go on from where they stand."""
    long, more, lengths = draw(spec, 7, seed=7), draw(spec, 6, seed=7), torch.tensor([2, 7])
    more = replace(more, weights=long.weights, coefficients=long.coefficients)
    if more.gates.alpha is not None and more.gates.alpha.ndim == 1:
        more = replace(more, gates=replace(more.gates, alpha=long.gates.alpha))
    _, state = package(padded(long, lengths), spec, first, lengths=lengths)
    y, state = package(more, spec, second, state=state)
    for row, length in enumerate(lengths.tolist()):
        history = joined(long.rows(row).cut(0, length), more.rows(row))
        whole = expected(history, spec)
        whole["y"] = whole["y"][:, :, length:]
        one = state.select(torch.tensor([row]))
        assert_same(found(spec, [y[row : row + 1]], one), whole)


def joined(left: Problem, right: Problem) -> Problem:
    gates = {}
    for name in ("alpha", "eta", "theta", "gamma", "hidden"):
        a, b = getattr(left.gates, name), getattr(right.gates, name)
        gates[name] = a if a is None or a.ndim == 1 else torch.cat([a, b], 2)
    q, k, v = (torch.cat([getattr(left, n), getattr(right, n)], 2) for n in "qkv")
    return replace(left, q=q, k=k, v=v, gates=am.Gates(**gates))


@pytest.mark.parametrize("form", FORMS)
def test_a_row_without_tokens_keeps_its_state(form: str) -> None:
    spec = GRID[21]
    problem = draw(spec, 10, seed=8)
    _, state = package(problem.cut(0, 6), spec, form)
    lengths = torch.tensor([0, 4])
    _, later = package(padded(problem.cut(6), lengths), spec, form, state=state, lengths=lengths)
    for before, after in zip(state.weights, later.weights, strict=True):
        torch.testing.assert_close(after[0], before[0], rtol=1e-12, atol=1e-12)
        assert not torch.allclose(after[1], before[1])


# ---- forks, values, files ---------------------------------------------------------------------


@CARRIED
def test_select_forks_and_reorders_rows(spec: am.MemorySpec) -> None:
    problem, order = draw(spec, 13, seed=9), (1, 0, 1)
    _, state = package(problem.cut(0, 6), spec, "chunkwise")
    forked = state.select(torch.tensor(order))
    y, forked = package(problem.rows(*order).cut(6), spec, "chunkwise", state=forked)
    whole = expected(problem.rows(*order), spec)
    whole["y"] = whole["y"][:, :, 6:]
    assert_same(found(spec, [y], forked), whole)


@CARRIED
@pytest.mark.parametrize("form", FORMS)
def test_a_state_can_be_used_twice(spec: am.MemorySpec, form: str) -> None:
    problem = draw(spec, 13, seed=10)
    _, state = package(problem.cut(0, 6), spec, form)
    kept = [w.clone() for w in state.weights]
    first, _ = package(problem.cut(6), spec, form, state=state)
    second, _ = package(problem.cut(6), spec, form, state=state)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    for before, after in zip(kept, state.weights, strict=True):
        torch.testing.assert_close(after, before, rtol=0, atol=0)


@CARRIED
def test_detach_cuts_the_graph_and_nothing_else(spec: am.MemorySpec) -> None:
    problem, leaf = draw(spec, 13, seed=11).leaves()
    _, state = package(problem.cut(0, 6), spec, "chunkwise")
    assert any(w.requires_grad for w in state.weights)
    state = state.detach()
    assert not any(w.requires_grad for w in (*state.weights, *(state.momentum or ())))
    y, _ = package(problem.cut(6), spec, "chunkwise", state=state)
    (gradient,) = torch.autograd.grad(y.sum(), leaf["k"])
    assert (gradient[:, :, :6] == 0).all()
    assert (gradient[:, :, 6:] != 0).any()
    torch.testing.assert_close(y, expected(problem, spec)["y"][:, :, 6:], rtol=1e-9, atol=1e-9)


@CARRIED
def test_saved_states_go_on(spec: am.MemorySpec, tmp_path: Path) -> None:
    problem = draw(spec, 13, seed=12)
    _, state = package(problem.cut(0, 6), spec, "chunkwise")
    state.save(tmp_path / "memory.safetensors")
    loaded = am.MemoryState.load(tmp_path / "memory.safetensors")
    y, here = package(problem.cut(6), spec, "chunkwise", state=state)
    again, there = package(problem.cut(6), spec, "chunkwise", state=loaded)
    torch.testing.assert_close(again, y, rtol=0, atol=0)
    for a, b in zip(there.weights, here.weights, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_a_saved_state_knows_its_spec(tmp_path: Path) -> None:
    spec = GRID[21]
    problem = draw(spec, 6)
    _, state = package(problem, spec, "chunkwise")
    state.save(tmp_path / "memory.safetensors")
    loaded = am.MemoryState.load(tmp_path / "memory.safetensors")
    with pytest.raises(ValueError, match="spec"):
        package(problem, replace(spec, chunk=spec.chunk + 1), "chunkwise", state=loaded)


def test_a_file_that_is_no_state_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=r"other\.safetensors"):
        am.MemoryState.load(tmp_path / "other.safetensors")


@pytest.mark.parametrize("spec", [s for s in FEW if s not in KERNELS], ids=describe)
@pytest.mark.parametrize("form", FORMS)
def test_the_state_does_not_grow(spec: am.MemorySpec, form: str) -> None:
    sizes = {t: package(draw(spec, t), spec, form)[1].num_bytes for t in (1, 4, 13, 29)}
    assert len(set(sizes.values())) == 1, sizes
    assert sizes[1] > 0


def test_a_kernel_memory_grows_linearly() -> None:
    spec = KERNELS[5]
    sizes = [package(draw(spec, t), spec, "chunkwise")[1].num_bytes for t in (40, 80, 120)]
    assert sizes[2] - sizes[1] == sizes[1] - sizes[0] > 0


def test_to_moves_every_tensor() -> None:
    spec = matrix(optimizer=am.Momentum(), chunk=4)
    _, state = package(draw(spec, 6), spec, "chunkwise")
    assert {x.device.type for x in state.to("meta").tensors().values()} == {"meta"}
    assert {x.device.type for x in state.tensors().values()} == {"cpu"}
