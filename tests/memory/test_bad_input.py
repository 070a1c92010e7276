"""A user's mistake is a ValueError that names the value and says what would be right."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import atlas_memory as am
from tests.memory.cases import Problem, Sizes, draw, package
from tests.memory.grid import matrix

SPEC = matrix(
    architecture=am.MLP(2), optimizer=am.Momentum(), retention=am.ScalarRetention(), chunk=4
)
SPEC = replace(SPEC, window=3)


@pytest.fixture(params=["recurrent", "chunkwise"])
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def problem() -> Problem:
    return draw(SPEC, 6)


def refuse(match: str, problem: Problem, form: str, **more: Any) -> None:
    with pytest.raises(ValueError, match=match) as error:
        package(problem, more.pop("spec", SPEC), form, **more)
    assert "\n" not in str(error.value), "one sentence"


def test_keys_of_another_length(problem: Problem, form: str) -> None:
    refuse(r"\bk\b.*2, 2, 5, 4.*2, 2, 6, 4", replace(problem, k=problem.k[:, :, :5]), form)


def test_values_of_another_batch(problem: Problem, form: str) -> None:
    refuse(r"\bv\b.*1, 2, 6, 4", replace(problem, v=problem.v[:1]), form)


def test_queries_without_a_head_axis(problem: Problem, form: str) -> None:
    refuse(r"\bq\b.*2, 6, 4", replace(problem, q=problem.q[:, 0]), form)


@pytest.mark.parametrize("gate", ["alpha", "eta", "theta"])
def test_gates_of_another_length(problem: Problem, form: str, gate: str) -> None:
    gates = replace(problem.gates, **{gate: getattr(problem.gates, gate)[:, :, :5]})
    refuse(rf"{gate}.*2, 2, 5\b.*2, 2, 6\b", replace(problem, gates=gates), form)


def test_gamma_of_the_wrong_width(problem: Problem, form: str) -> None:
    gates = replace(problem.gates, gamma=problem.gates.gamma[..., :2])
    refuse(r"gamma.*2, 2, 6, 2.*2, 2, 6, 3", replace(problem, gates=gates), form)


def test_channel_decay_of_the_wrong_width(form: str) -> None:
    spec = matrix(retention=am.ChannelRetention())
    problem = draw(spec, 6)
    gates = replace(problem.gates, alpha=problem.gates.alpha[..., :3])
    refuse(r"alpha.*2, 2, 6, 3.*2, 2, 6, 4", replace(problem, gates=gates), form, spec=spec)


def test_fixed_decay_of_another_number_of_heads(form: str) -> None:
    spec = matrix(retention=am.FixedRetention())
    problem = draw(spec, 6)
    gates = replace(problem.gates, alpha=torch.ones(3, dtype=torch.float64))
    refuse(r"alpha.*3.*2", replace(problem, gates=gates), form, spec=spec)


@pytest.mark.parametrize("architecture", [am.MLP(2), am.GatedMLP(2)])
def test_a_residual_needs_equal_sizes(form: str, architecture: Any) -> None:
    spec = replace(SPEC, architecture=architecture)
    refuse(r"dk=3.*dv=5.*residual", draw(spec, 6, Sizes(dk=3, dv=5)), form, spec=spec)


def test_too_few_weights(problem: Problem, form: str) -> None:
    refuse(r"weights.*2, 4, 8.*2, 8, 4", replace(problem, weights=problem.weights[:1]), form)


def test_weights_of_another_shape(problem: Problem, form: str) -> None:
    broken = (problem.weights[0], problem.weights[1][:, :7])
    refuse(r"2, 7, 4.*8, 4", replace(problem, weights=broken), form)


def test_weights_of_another_number_of_heads(problem: Problem, form: str) -> None:
    broken = tuple(w[:1] for w in problem.weights)
    refuse(r"1, 4, 8.*2, 4, 8", replace(problem, weights=broken), form)


def test_memora_starts_from_positive_weights(form: str) -> None:
    spec = matrix(retention=am.SoftmaxRetention())
    problem = draw(spec, 6)
    broken = (-problem.weights[0],)
    refuse(r"SoftmaxRetention.*(positive|> 0)", replace(problem, weights=broken), form, spec=spec)


def test_a_state_of_another_spec(problem: Problem, form: str) -> None:
    _, state = package(problem, SPEC, form)
    other = replace(SPEC, window=2)
    refuse(r"state.*spec", draw(other, 6), form, spec=other, state=state)


def test_a_state_of_another_batch(problem: Problem, form: str) -> None:
    _, state = package(problem, SPEC, form)
    refuse(r"state.*2.*3", draw(SPEC, 6, Sizes(rows=3)), form, state=state)


def test_a_state_of_other_heads(problem: Problem, form: str) -> None:
    _, state = package(problem, SPEC, form)
    refuse(r"state.*2.*3", draw(SPEC, 6, Sizes(heads=3)), form, state=state)


def test_a_state_of_another_size(problem: Problem, form: str) -> None:
    _, state = package(problem, SPEC, form)
    refuse(r"state.*4.*6", draw(SPEC, 6, Sizes(dk=6, dv=6)), form, state=state)


def test_an_unknown_form(problem: Problem) -> None:
    refuse(r"parallel.*(chunkwise.*recurrent|recurrent.*chunkwise)", problem, "parallel")


def test_lengths_beyond_the_row(problem: Problem, form: str) -> None:
    refuse(r"lengths.*7.*6", problem, form, lengths=torch.tensor([6, 7]))


def test_negative_lengths(problem: Problem, form: str) -> None:
    refuse(r"lengths.*-1", problem, form, lengths=torch.tensor([6, -1]))


def test_lengths_of_another_batch(problem: Problem, form: str) -> None:
    refuse(r"lengths.*3.*2", problem, form, lengths=torch.tensor([6, 6, 6]))


def test_starts_of_another_shape(problem: Problem, form: str) -> None:
    refuse(r"starts.*2, 5.*2, 6", problem, form, starts=torch.zeros(2, 5, dtype=torch.bool))


def test_starts_that_are_numbers(problem: Problem, form: str) -> None:
    refuse(r"starts.*int64.*bool", problem, form, starts=torch.zeros(2, 6, dtype=torch.int64))


def test_coefficients_of_the_wrong_number(form: str) -> None:
    spec = matrix(features=am.Polynomial(2))
    problem = replace(draw(spec, 6), coefficients=torch.ones(2, dtype=torch.float64))
    refuse(r"coefficients.*2.*3", problem, form, spec=spec)


def test_coefficients_where_none_are_used(problem: Problem, form: str) -> None:
    refuse(r"coefficients.*Identity", replace(problem, coefficients=torch.ones(3).double()), form)


def test_no_tokens(problem: Problem, form: str) -> None:
    """Nothing to read is no mistake: nothing comes out, and the memory is as it was."""
    _, state = package(problem, SPEC, form)
    y, later = package(problem.cut(0, 0), SPEC, form, state=state)
    assert y.shape == (2, 2, 0, 4)
    for before, after in zip(state.weights, later.weights, strict=True):
        torch.testing.assert_close(after, before, rtol=0, atol=0)
