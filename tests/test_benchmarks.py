"""The scripts behind the figures still run: all of them are read, and the engine's is run small."""

import importlib
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def on_path(monkeypatch):
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])


@pytest.mark.parametrize("script", sorted(path.stem for path in FOLDER.glob("*.py")))
def test_a_script_can_be_read(script):
    assert importlib.import_module(script).__doc__


def test_the_engine_is_timed_forward_and_backward():
    engine = importlib.import_module("engine")
    engine.engine(tokens=70, dim=8)()
    engine.engine(tokens=70, dim=8, window=3)()


def test_starts_ask_every_task_for_what_it_has():
    starts = importlib.import_module("starts")
    assert callable(starts.babilong.EXPERIMENT.run)
    assert callable(starts.ablation.EXPERIMENT.run)
