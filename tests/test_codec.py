"""Files name states by stable names: a class may move, and nothing a file names is imported."""

import json
from importlib import import_module
from pathlib import Path

import pytest
from safetensors import safe_open

from atlas_memory.codec import NAMES, decode, encode
from atlas_memory.memory.optimizers import Muon
from atlas_memory.memory.tree import State, leaves
from atlas_memory.reading.memory_file import inspect, restored

FIRST = Path(__file__).parent / "reading" / "first-format.memory"


def subclasses(kind):
    return {kind, *(deeper for one in kind.__subclasses__() for deeper in subclasses(one))}


def test_every_state_has_a_name():
    places = [place.rpartition(".") for place in NAMES.values()]
    named = {getattr(import_module(f"atlas_memory.{module}"), kind) for module, _, kind in places}
    own = {kind for kind in subclasses(State) if kind.__module__.startswith("atlas_memory.")}
    assert named == own - {State}


def test_a_file_of_the_first_format_opens():
    """A hybrid with Atlas and attention, saved when files named classes by their modules."""
    with safe_open(FIRST, framework="pt") as file:
        assert file.metadata()["format"] == "atlas memory 1"
        assert "atlas_memory.layers.hybrids" in file.metadata()["states"]
    contents = inspect(FIRST)
    (state,) = restored(contents).cache.states
    assert state.memory.memory.spec.optimizer == Muon(steps=5, period=64)
    held = {f"layers.0.{name}": x for name, x in leaves(state)}
    assert held.keys() == contents.tensors.keys() - {"last", "bits"}
    assert all(held[name] is contents.tensors[name] for name in held)


def test_what_is_encoded_is_plain_data_and_comes_back():
    states = restored(inspect(FIRST)).cache.states
    tensors = {}
    plans = encode(states, tensors)
    assert decode(json.loads(json.dumps(plans)), tensors) == list(states)
    assert "atlas_memory" not in json.dumps(plans)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"state": "cli.main.App", "fields": {}}, "'cli.main.App' is no state of atlas_memory"),
        ({"state": "conv", "fields": {"tail": None, "head": 1}}, "has 'head', which this version"),
        ({"state": "conv", "fields": {"tail": {"tensor": "none"}}}, "cannot be built: KeyError"),
        ({"state": "conv"}, "cannot be built: KeyError"),
        ({"fields": {}}, "None is no state"),
    ],
)
def test_what_is_no_state_is_refused(plan, message):
    with pytest.raises(ValueError, match=message):
        decode([plan], {})
