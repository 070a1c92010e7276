"""atlas experiment language and recall: the smoke presets, the stand-ins and the paper's cells."""

import json

import pytest

from atlas_memory.cli.main import main
from atlas_memory.experiments import language, load, recall
from atlas_memory.experiments.language_model import paper_recipe
from atlas_memory.family import VARIANTS
from atlas_memory.tasks.key_values import Documents

OPTIONS = ["--variants", "transformer_plus,atlas", "--threads", "1"]


@pytest.mark.parametrize("name", ["recall", "language"])
def test_smoke(name, tmp_path, capsys):
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as exit_:
        main(["experiment", name, "--preset", "smoke", "--out", str(out), *OPTIONS])
    assert not exit_.value.code
    report = json.loads((out / f"{name}.json").read_text())
    assert (out / f"{name}.png").stat().st_size > 5000
    assert len(report["results"]) == 2
    assert len(load(name).variants) == 5
    assert report["deviations"]
    first = report["table"]["rows"][0]
    assert first[0] == "transformer_plus"
    assert first[-1] == {"recall": 53.55, "language": 48.69}[name]
    if name == "language":
        for figures in (result["figures"] for result in report["results"]):
            assert len(figures["by_position"]) == 16
            assert figures["state_bytes"] > 0
    assert "deviation: " in capsys.readouterr().out


def test_models_of_a_league_are_of_one_size(tmp_path):
    """Feed-forward networks fill every variant up; what has its own width keeps it otherwise."""
    from atlas_memory.training.prepare import parameters_of

    small = language.PRESETS["small"]
    for cell in language.cells(small, ["atlas", "atlas_mal", "swa", "transformer_plus"], 1):
        found = parameters_of(language._recipe(cell, tmp_path).model.config())
        assert abs(found - 760_000) <= 3 * 128 * 2 / 2


def test_training_asks_as_the_evaluation_does():
    """Behind the document stand questions in the words of the benchmark's prompt."""
    from atlas_memory.evaluation.recall import TASKS, items

    documents = Documents(5, keys=9, values=7, seed=4)
    tokenizer = recall.word_tokenizer(documents)
    ids, labels = recall.training_batches(documents, tokenizer, 3, 2)(1)
    assert ids.shape == labels.shape == (3, 5 * 2 + 2 * 3)
    words = tokenizer.fast.convert_ids_to_tokens(ids[0].tolist())
    (item,) = items(TASKS["swde"], [documents[3]], tokenizer)
    prompt = tokenizer.fast.tokenize(item.prompt)
    assert words[:10] == prompt[:10]
    assert prompt[10] in words[:10:2]
    pairs = dict(zip(words[:10:2], words[1:10:2], strict=True))
    for n in (10, 13):
        assert [pairs[words[n]], "\n"] == words[n + 1 : n + 3]
        assert labels[0, n : n + 2].tolist() == ids[0, n + 1 : n + 3].tolist()
    assert (labels != -100).sum() == 3 * 2 * 2


def test_a_reader_of_the_prompts_scores_all():
    """An oracle that sees only the prompts is right on every document, by the metric."""
    from atlas_memory.evaluation.recall import TASKS, contains, items

    documents = Documents(32, keys=64, values=64, seed=1)
    tokenizer = recall.word_tokenizer(documents)
    for item in items(TASKS["swde"], (documents[n] for n in range(50)), tokenizer):
        *pairs, asked = item.prompt.split()
        found = dict(zip(pairs[::2], pairs[1::2], strict=True))
        assert contains(found[asked], item.answers)


def test_the_papers_cells_are_the_papers():
    (cell,) = language.cells(language.PRESETS["paper"], ["atlas"], 1)
    recipe = paper_recipe(cell.recipe, cell.variant, cell.seed)
    assert recipe.data.most_tokens == 30_000_000_000
    assert recipe.train.batch * recipe.data.length == 2**19
    assert recipe.train.steps * 2**19 == pytest.approx(30e9, rel=1e-3)
    assert recipe.train.learning_rate == 1.25e-3
    assert len(cell.tasks) == 9
    assert language.deviations(language.PRESETS["paper"]) == []
    (cell,) = recall.cells(recall.PRESETS["paper"], ["atlas"], 1)
    assert cell.tasks == ["swde", "nq", "drop", "fda", "squad", "triviaqa"]
    assert recall.deviations(recall.PRESETS["paper"]) == []


def test_published_rows_are_variants_and_average_as_printed():
    assert set(recall.PUBLISHED) | set(language.PUBLISHED) <= set(VARIANTS)
    for *scores, average in recall.PUBLISHED.values():
        assert sum(scores) / 6 == pytest.approx(average, abs=0.011)
