"""The command line: what is printed, and one sentence for every mistake with nothing written."""

import json
from pathlib import Path

import pytest
import small_runs as runs
from typer.testing import CliRunner

from atlas_memory.cli.main import app, main


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("ATLAS_HOME", str(tmp_path / "home"))
    # read from the environment when the libraries are imported, so it is too late for that here
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


@pytest.fixture
def text(tmp_path):
    return runs.write_text(tmp_path / "text")


def call(capsys, *arguments):
    """Exit code, stdout and stderr of `atlas`."""
    with pytest.raises(SystemExit) as caught:
        main([str(a) for a in arguments])
    out, err = capsys.readouterr()
    return caught.value.code, out, err


def test_a_folder_a_trained_vocabulary_and_a_variant(tmp_path, text, capsys):
    code, out, _ = call(
        capsys, "tokenizer", "train", "--data", text, "--output", "t.json", "--vocab-size", 300
    )
    assert code == 0
    assert out.startswith("t.json: ")
    options = runs.set_options(text, model__variant="omeganet", train__steps=2)
    options = [o.replace("model.memory.optimizer.period=8", "train.seed=3") for o in options]
    code, out, err = call(capsys, "train", "--tokenizer", "t.json", *options)
    assert code == 0, err
    assert "perplexity per byte" in out
    assert "runs/run" in out
    assert "step 2/2" in err
    assert "step" not in out
    assert (tmp_path / "runs" / "run" / "model" / "tokenizer.json").is_file()


def test_two_models_are_compared_and_drawn_together(tmp_path, text, capsys):
    options = runs.set_options(text, compare="transformer_plus", train__steps=2)
    code, out, _ = call(capsys, "train", "--output", "both", "--json", *options)
    assert code == 0
    result = json.loads(out)
    one, two = result["atlas"], result["transformer_plus"]
    assert abs(one["parameters"] - two["parameters"]) <= 3 * 16
    assert one["tokens"] == two["tokens"] == 2 * 4 * 16
    assert isinstance(result["sample"], str)
    assert (tmp_path / "both" / "transformer_plus" / "loss.png").is_file()
    code, out, _ = call(capsys, "train", "both", "--resume", "--json")
    assert code == 0
    assert json.loads(out) == result


@pytest.mark.parametrize("name", ["170m", "340m", "760m", "1.3b"])
def test_a_dry_run_counts_without_training(name, capsys):
    code, out, _ = call(capsys, "train", name, "--dry-run", "--json")
    assert code == 0
    plan = json.loads(out)
    budget = {"170m": 170e6, "340m": 340e6, "760m": 760e6, "1.3b": 1.3e9}[name]
    assert plan["parameters"] == pytest.approx(budget, rel=0.02)
    tokens = {"170m": 15e9, "340m": 15e9, "760m": 30e9, "1.3b": 100e9}[name]
    assert plan["tokens"] == pytest.approx(tokens, rel=1e-3)
    assert plan["steps"] * plan["tokens per step"] == plan["tokens"]
    assert float(plan["FLOPs"]) > 6 * plan["parameters"] * plan["tokens"] * 0.8
    assert not Path("runs").exists()


def test_a_dry_run_counts_the_ids_of_the_recipes_own_tokenizer(capsys):
    plans = []
    for tokenizer in ("bytes", "enwik8-2048"):
        change = ("--tokenizer", tokenizer)
        code, out, _ = call(capsys, "train", "quickstart", "--dry-run", "--json", *change)
        assert code == 0
        plans.append(json.loads(out)["parameters"])
    width = 128
    assert plans[1] - plans[0] == (2048 - 256) * width


MISTAKES = {
    "missing file": (["--data", "missing.txt"], "no file, folder or pattern missing.txt"),
    "missing data set": (["--data", "no/such"], "no data set of that name"),
    "empty corpus": (["--data", "empty.txt"], "text is empty"),
    "short corpus": (["--data", "short.txt"], "data.length is 16"),
    "binary garbage": (["--data", "binary.txt"], "not UTF-8 text"),
    "vocabulary": (["--set", "model.vocab_size=100"], "less than the 256 ids"),
    "no tokenizer": (["--tokenizer", "missing.json"], "is neither bytes"),
    "window": (["--length", "3"], "shorter than the memory's window of 4"),
    "unknown key": (["--set", "train.step=1"], "did you mean 'steps'"),
    "unknown variant": (["--variant", "atlass"], "did you mean 'atlas'"),
    "unwritable": (["--output", "file/run"], "cannot write to file/run"),
    "exists": (["--output", "text"], "text exists"),
    "nothing to resume": (["--resume"], "is no run folder"),
    "batch": (["--set", "train.micro_batch=3"], "does not divide the 4"),
    "tracker": (["--set", "train.report_to=nobody"], "nobody"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_one_sentence_and_leave_nothing(tmp_path, text, capsys, mistake):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "binary.txt").write_bytes(bytes(range(256)) * 50)
    (tmp_path / "short.txt").write_text("too short")
    (tmp_path / "file").write_text("x")
    lines = [a.partition("=") for a in runs.assignments(text)]
    (tmp_path / "small.toml").write_text("".join(f"{k} = {v}\n" for k, _, v in lines))
    before = sorted(p for p in tmp_path.rglob("*") if "home" not in p.parts)
    arguments, message = MISTAKES[mistake]
    code, out, err = call(capsys, "train", "small.toml", *arguments)
    assert code == 2, err
    assert message in err
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    assert sorted(p for p in tmp_path.rglob("*") if "home" not in p.parts) == before


def test_help_is_there_without_heavy_imports():
    shown = CliRunner().invoke(app, ["train", "--help"])
    assert shown.exit_code == 0
    assert "--dry-run" in shown.output


def test_train_alone_is_help(capsys, tmp_path):
    code, out, _ = call(capsys, "train")
    assert code == 0
    assert "Usage" in out
    assert "quickstart" in out
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_recipe_lists_those_there_are(capsys, tmp_path):
    code, out, err = call(capsys, "train", "quikstart")
    assert code == 2
    assert out == ""
    assert "did you mean 'quickstart'? choose from: quickstart, 1.3b, 170m" in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
