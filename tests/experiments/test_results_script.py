"""`make results`: what docs/results has is not run again, what it lacks is, until time is over."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks/results.py"


@pytest.fixture
def script(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("results", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "results", module)
    spec.loader.exec_module(module)
    (tmp_path / "kept").mkdir()
    monkeypatch.setattr(module, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(module, "WORK", tmp_path / "work")
    small = module.Run("few", "mqar --preset smoke --variants deltanet", 1)
    more = module.Run("more", "mqar --preset smoke --variants deltanet,gla", 1)
    monkeypatch.setattr(module, "RUNS", (more, small))
    return module


def call(script, monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["results.py", *words])
    script.main()


def test_the_cheapest_comes_first_and_nothing_runs_twice(script, monkeypatch, tmp_path, capsys):
    call(script, monkeypatch, "--plan")
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["few", "more"]
    call(script, monkeypatch, "--threads", "1", "--only", "few")
    kept = json.loads((tmp_path / "kept/few.json").read_text())
    assert kept["missing"] == 0
    assert [cell["cell"]["variant"] for cell in kept["results"]] == ["deltanet"]
    assert (tmp_path / "kept/few.png").exists()
    monkeypatch.setattr(script, "WORK", tmp_path / "another machine")
    capsys.readouterr()
    call(script, monkeypatch, "--plan")
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["more"]


def test_no_time_runs_nothing(script, monkeypatch, tmp_path):
    call(script, monkeypatch, "--hours", "0")
    assert not list((tmp_path / "kept").iterdir())


def test_an_unknown_run_is_one_sentence(script, monkeypatch):
    with pytest.raises(SystemExit, match="unknown run 'mor'; did you mean 'more'"):
        call(script, monkeypatch, "--only", "mor")


def test_every_run_of_the_list_is_one_that_can_be_asked_for():
    spec = importlib.util.spec_from_file_location("all_results", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["all_results"] = module
    spec.loader.exec_module(module)
    names = [run.name for run in module.RUNS]
    assert len(set(names)) == len(names)
    assert all(run.order().cells() for run in module.RUNS)
