"""The runner: what is finished stays finished, whatever happens to the process."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from experiments.counting import COUNTING, Silent

from atlas_memory import experiments
from atlas_memory.cli.main import main
from atlas_memory.experiments import EXPERIMENTS, load
from atlas_memory.experiments.runner import Folder, digest, missing, order, run

SCRIPT = Path(__file__).with_name("counting.py")


@pytest.fixture
def command(monkeypatch, capsys):
    """`atlas experiment counting ...`: exit code, stdout, stderr."""
    monkeypatch.setitem(EXPERIMENTS, "counting", "counting")
    monkeypatch.setattr(
        experiments, "import_module", lambda path: sys.modules["experiments.counting"]
    )
    monkeypatch.setattr(sys.modules["experiments.counting"], "EXPERIMENT", COUNTING, raising=False)

    def call(*arguments):
        with pytest.raises(SystemExit) as caught:
            main(["experiment", "counting", *map(str, arguments)])
        out, err = capsys.readouterr()
        return caught.value.code, out, err

    return call


def log(folder):
    return (folder / "log").read_text().split()


def test_results_table_json_and_picture(command, tmp_path):
    code, out, err = command("--preset", "smoke", "--out", tmp_path / "out", "--seeds", 2)
    assert code == 0, err
    assert "How far does it count?" in out
    assert "3  9       -" in out
    assert "deviation: counts to 3" in out
    assert "6/6 cells" in err
    stored = json.loads((tmp_path / "out/counting.json").read_text())
    assert stored["deviations"] == ["counts to 3"]
    assert [r["figures"]["square"] for r in stored["results"]] == [1, 1, 4, 4, 9, 9]
    assert stored["command"].startswith("atlas experiment counting --preset smoke --seeds 2")
    assert (tmp_path / "out/counting.png").read_bytes().startswith(b"\x89PNG")


def test_a_second_start_runs_only_what_is_missing(command, tmp_path):
    code, out, _ = command("--preset", "smoke", "--out", tmp_path, "--json")
    assert code == 0
    assert json.loads(out)["table"]["rows"][1] == [2, 4, None]
    (tmp_path / "cells" / f"{digest(order(COUNTING, 'smoke').cells()[1])}.json").unlink()
    code, out, err = command("--preset", "smoke", "--out", tmp_path)
    assert code == 0, err
    assert log(tmp_path) == ["1", "2", "3", "2"]
    assert "3/3 cells" in err


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", '{"cell": 1}', '{"cell": {}, "figures": {}, "seconds": 0}']
)
def test_a_damaged_cell_is_run_again(tmp_path, damage):
    chosen, folder = order(COUNTING, "smoke"), Folder(tmp_path)
    before = run(chosen, folder, Silent())
    (tmp_path / "cells" / f"{digest(chosen.cells()[2])}.json").write_text(damage)
    assert missing(chosen, folder) == [chosen.cells()[2]]
    after = run(chosen, folder, Silent())
    assert [r.figures for r in after] == [r.figures for r in before]
    assert log(tmp_path) == ["1", "2", "3", "3"]


def start(out):
    """The script in another process."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.Popen([sys.executable, str(SCRIPT), str(out)], cwd=root, env=environment)


def test_it_goes_on_after_kill_9_in_the_middle(tmp_path):
    """Cell 1 is kept, cell 2 finds its scratch folder again, cell 3 is run."""
    chosen, folder = order(COUNTING, "smoke"), Folder(tmp_path)
    begun = folder.scratch(chosen.cells()[1]) / "begun"
    (tmp_path / "slow").touch()
    with start(tmp_path) as process:
        while not begun.exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    (tmp_path / "slow").unlink()
    assert missing(chosen, folder) == chosen.cells()[1:]
    results = run(chosen, folder, Silent())
    assert [r.figures["square"] for r in results] == [1, 4, 9]
    assert [r.figures["resumed"] for r in results] == [False, True, False]
    assert log(tmp_path) == ["1", "2", "2", "3"]
    assert not begun.exists()


def test_ctrl_c_says_how_to_go_on(command, tmp_path, monkeypatch):
    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupt)
    code, out, err = command("--preset", "smoke", "--out", tmp_path, "--set", "sleep=0.5")
    assert code == 130
    assert out == ""
    last = err.strip().splitlines()[-1]
    assert last == (
        f"stopped; go on with: atlas experiment counting --preset smoke --out {tmp_path} "
        "--set sleep=0.5"
    )
    monkeypatch.undo()
    assert len(missing(order(COUNTING, "smoke"), Folder(tmp_path))) == 3


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--preset", "smok"], "unknown preset 'smok' of counting; did you mean 'smoke'?"),
        (["--preset", "smoke", "--variants", "atals"], "did you mean 'atlas'?"),
        (["--preset", "smoke", "--variants", ","], "--variants is empty"),
        (["--preset", "smoke", "--seeds", "0"], "--seeds 0: there must be at least one"),
        (["--preset", "smoke", "--threads", "0"], "--threads 0: there must be at least one"),
        (["--preset", "smoke", "--set", "numers=3"], "unknown setting 'numers'; did you mean"),
        (
            ["--preset", "smoke", "--set", "sleep=long"],
            "sleep='long': it must be of the kind of 0.0",
        ),
        (["--preset", "smoke", "--set", "numbers=3"], "numbers=3: it must be of the kind of [1, 2"),
        (["--preset", "smoke", "--set", "numbers=[]"], "leave nothing to run"),
        (["--preset", "smoke", "--set", "sleep"], "--set 'sleep': write name=value"),
        (["--preset", "smoke", "--device", "gpu"], "unknown device 'gpu'; choose from: cpu, cuda"),
        (["--preset", "smoke", "--precision", "fp8"], "unknown precision 'fp8'; choose from"),
    ],
)
def test_a_mistake_is_one_sentence(command, arguments, sentence, tmp_path):
    code, out, err = command(*arguments, "--out", tmp_path / "out")
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_place_that_cannot_be_written_to(command, tmp_path):
    (tmp_path / "file").touch()
    code, out, err = command("--preset", "smoke", "--out", tmp_path / "file" / "out")
    assert (code, out) == (2, "")
    assert f"cannot write to {tmp_path}/file/out: Not a directory" in err
    assert len(err.splitlines()) == 1


def test_unknown_names_and_the_list(capsys):
    with pytest.raises(ValueError, match="unknown experiment 'mqra'; did you mean 'mqar'"):
        load("mqra")
    with pytest.raises(SystemExit):
        main(["experiment"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(EXPERIMENTS)


def test_every_preset_can_be_asked_for():
    """The names that are told before an experiment is imported are those of the experiments."""
    from atlas_memory.cli.experiment import PRESETS

    assert {name for e in EXPERIMENTS for name in experiments.load(e).presets} == set(PRESETS)


def test_a_plan_runs_nothing(command, tmp_path):
    code, out, _ = command("--preset", "smoke", "--out", tmp_path / "out", "--dry-run")
    assert code == 0
    assert out.startswith("3 cells, 3 of them to run")
    assert not (tmp_path / "out").exists()


def test_what_is_finished_so_far_is_reported(command, tmp_path):
    code, _, err = command("--preset", "smoke", "--out", tmp_path, "--so-far")
    assert code == 2
    assert f"{tmp_path} has no finished cell of counting yet" in err
    assert command("--preset", "smoke", "--out", tmp_path)[0] == 0
    (tmp_path / "cells" / f"{digest(order(COUNTING, 'smoke').cells()[1])}.json").unlink()
    code, out, err = command("--preset", "smoke", "--out", tmp_path, "--so-far")
    assert (code, err) == (0, "")
    assert "1 of 3 cells are missing" in out
    assert log(tmp_path) == ["1", "2", "3"]
    assert json.loads((tmp_path / "counting.json").read_text())["missing"] == 1


def test_many_quick_cells_are_one_line_in_a_file(command, tmp_path):
    """Nothing is said of minutes that do not pass."""
    code, _, err = command("--preset", "smoke", "--out", tmp_path, "--seeds", 18)
    assert code == 0
    (line,) = err.splitlines()
    assert line.startswith("54/54 cells")
    assert "left" not in line
