"""A spec is data: JSON and back, and a sentence for every combination that does not exist."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import atlas_memory as am
from tests.memory.cases import describe
from tests.memory.grid import ALL, BEFORE, matrix


@pytest.mark.parametrize("spec", ALL, ids=describe)
def test_round_trip_through_json(spec: am.MemorySpec) -> None:
    again = am.MemorySpec.from_dict(json.loads(json.dumps(spec.to_dict())))
    assert again == spec
    assert hash(again) == hash(spec)


def test_every_optimizer_is_named_when_one_is_unknown() -> None:
    broken = replaced(matrix().to_dict(), "optimizer", "adam")
    with pytest.raises(ValueError, match=r"adam.*momentum.*muon"):
        am.MemorySpec.from_dict(broken)


@pytest.mark.parametrize(
    ("part", "known"),
    [
        ("features", "polynomial"),
        ("architecture", "mlp"),
        ("bias", "huber"),
        ("retention", "scalar"),
    ],
)
def test_an_unknown_choice_names_the_known_ones(part: str, known: str) -> None:
    broken = replaced(matrix().to_dict(), part, "nonsense")
    with pytest.raises(ValueError, match=rf"nonsense.*{known}"):
        am.MemorySpec.from_dict(broken)


def replaced(tree: dict[str, object], part: str, name: str) -> dict[str, object]:
    """The dict with another name for the choice of `part`, however that is spelled inside."""
    choice = tree[part]
    if isinstance(choice, str):
        return {**tree, part: name}
    assert isinstance(choice, dict)
    (key,) = [key for key, value in choice.items() if isinstance(value, str)]
    return {**tree, part: {**choice, key: name}}


def test_an_unknown_field_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"windows.*window"):
        am.MemorySpec.from_dict({**matrix().to_dict(), "windows": 3})
    tree = matrix(optimizer=am.Muon()).to_dict()
    tree = {**tree, "optimizer": {**tree["optimizer"], "step": 3}}
    with pytest.raises(ValueError, match=r"step.*steps"):
        am.MemorySpec.from_dict(tree)


# Both names of the sentence, and what it is about.
REFUSED: dict[str, dict[str, Any]] = {
    "Implicit.*MLP": {"optimizer": am.Implicit(), "architecture": am.MLP()},
    "Implicit.*Huber": {"optimizer": am.Implicit(), "bias": am.Huber(1.0)},
    "Implicit.*window": {"optimizer": am.Implicit(), "window": 2},
    "Implicit.*chunk": {"optimizer": am.Implicit(), "chunk": 2},
    "before_gradient.*chunk": {"retention": BEFORE, "chunk": 2},
    "ChannelRetention.*MLP": {"retention": am.ChannelRetention(), "architecture": am.MLP()},
    "period=5.*chunk": {"optimizer": am.Muon(period=5), "chunk": 4},
} | {
    f"Exponential.*{type(choice).__name__}": {"features": am.Exponential(), name: choice}
    for name, choice in [
        ("optimizer", am.Muon()),
        ("retention", am.SoftmaxRetention()),
        ("retention", am.LqRetention(4.0)),
        ("retention", am.ChannelRetention()),
    ]
}


@pytest.mark.parametrize("match", REFUSED)
def test_choices_that_do_not_go_together(match: str) -> None:
    """One sentence with both names; either order."""
    first, second = match.split(".*")
    with pytest.raises(ValueError, match=f"{first}.*{second}|{second}.*{first}") as error:
        matrix(**REFUSED[match])
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: matrix(chunk=0), "chunk=0"),
        (lambda: matrix(window=0), "window=0"),
        (lambda: matrix(chunk=-3), "chunk=-3"),
        (lambda: am.Polynomial(0), "degree=0"),
        (lambda: am.Elementwise(0), "degree=0"),
        (lambda: am.Sketch(2, 0), "size=0"),
        (lambda: am.MLP(0), "expansion=0"),
        (lambda: am.GatedMLP(0), "expansion=0"),
        (lambda: am.Lp(0.5), r"p=0\.5"),
        (lambda: am.Huber(0.0), r"delta=0\.0"),
        (lambda: am.Muon(steps=-1), "steps=-1"),
        (lambda: am.Muon(period=0), "period=0"),
        (lambda: am.LqRetention(1.5), r"q=1\.5"),
        (lambda: am.SoftmaxRetention(0.0), r"scale=0\.0"),
    ],
)
def test_values_out_of_range(make: Callable[[], object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        make()


def test_specs_are_values() -> None:
    assert matrix(window=3) == matrix(window=3) != matrix(window=4)
    assert replace(matrix(window=3), window=4) == matrix(window=4)
