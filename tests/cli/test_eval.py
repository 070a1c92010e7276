"""atlas eval: figures on stdout, the same as JSON and in a file; mistakes in a sentence."""

import json
from functools import partial

import pytest
from commands import command_line
from evaluation.benchmark_items import plain_and_native, write
from saved import byte_model, save_model

from atlas_memory.evaluation.suite import NAMES, mean_accuracy


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    return str(save_model(tmp_path_factory.mktemp("run"), byte_model("deltanet")))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for task in ("lambada_openai", "piqa", "arc_easy"):
        write(folder, task, [plain for plain, _ in plain_and_native(task, 6)])
    row = {"text": "Year: 1984. Colour: red.", "key": "colour", "value": "red"}
    write(folder, "fda", [row, row])
    return folder


@pytest.fixture
def atlas(capsys):
    return partial(command_line, capsys, "eval")


def test_three_tasks_from_local_files(run_folder, data, atlas, tmp_path):
    tasks = "lambada_openai,piqa,arc_easy,fda"
    out = tmp_path / "report.json"
    options = ("--task", tasks, "--limit", 4, "--data", data)
    code, printed, _ = atlas(run_folder, *options, "--json", "--out", out)
    assert code == 0
    report = json.loads(printed)
    assert report == json.loads(out.read_text())
    assert list(report["tasks"]) == tasks.split(",")
    assert report["tasks"]["piqa"]["items"] == 4
    assert report["tasks"]["fda"]["items"] == 2
    assert report["deviations"][0] == "only the first 4 items of every task"
    assert "average" not in report
    code, table, _ = atlas(run_folder, *options)
    assert code == 0
    lines = {tuple(line.split()[:2]): line.split() for line in table.splitlines()}
    accuracy = report["tasks"]["piqa"]["acc"]
    assert float(lines["piqa", "*acc"][2]) == pytest.approx(accuracy, abs=1e-3)
    assert ("piqa", "acc_norm") in lines
    assert "note: only the first 4 items of every task" in table


def test_the_stand_in_needs_no_data(run_folder, atlas):
    code, printed, errors = atlas(run_folder, "--task", "key_value", "--limit", 3, "--json")
    assert code == 0
    figures = json.loads(printed)["tasks"]["key_value"]
    assert figures["items"] == 3
    assert figures["source"] == "generated"
    assert "3 of 3 answered" in errors


def test_long_texts_need_no_data(run_folder, atlas):
    options = ("--lengths", "600", "--corpus", "noise", "--limit", 1, "--json")
    code, printed, errors = atlas(run_folder, "--task", "niah,babilong", *options)
    assert code == 0, errors
    report = json.loads(printed)
    assert list(report["tasks"]) == ["niah", "babilong"]
    assert {"accuracy", "pk_600", "n_600", "items"} <= set(report["tasks"]["niah"])
    assert {"accuracy", "qa1_600", "qa5_600"} <= set(report["tasks"]["babilong"])
    assert any("niah: the haystack" in sentence for sentence in report["deviations"])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--task", "niah", "--lengths", "2k"], "--lengths 2k: give numbers of tokens"),
        (["--task", "piqa,qipa"], "unknown task 'qipa'; choose from: wikitext"),
        (["--task", ","], "unknown task ','; choose from: wikitext"),
        (["--data", "nowhere"], "--data nowhere is no folder"),
        (["--out", "nowhere/report.json"], "its folder does not exist"),
        (["--out", "."], "is a folder; give a file"),
    ],
)
def test_mistakes(options, sentence, run_folder, atlas):
    code, printed, errors = atlas(run_folder, *options)
    assert code == 2
    assert printed == ""
    assert sentence in errors
    assert len(errors.strip().splitlines()) == 1


def test_the_average_is_the_papers():
    """Eight accuracies; acc_norm for HellaSwag and ARC-challenge, and no perplexity."""
    tasks = {name: {"acc": 0.5, "acc_norm": 0.1, "perplexity": 9.0} for name in NAMES[1:9]}
    assert mean_accuracy(tasks) == pytest.approx((6 * 0.5 + 2 * 0.1) / 8)
    del tasks["boolq"]
    assert mean_accuracy(tasks) is None
