"""BABILong and needles as experiments: models, curriculum, price, resuming, and the smoke runs."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from atlas_memory.blocks import MAC, Attention
from atlas_memory.cli.main import main
from atlas_memory.experiments import babilong, needle
from atlas_memory.experiments.experiment import Result
from atlas_memory.experiments.long_context import Price, batch_of, build, measure, short
from atlas_memory.tasks import needle_lesson
from atlas_memory.tasks.babilong import questions
from atlas_memory.tasks.background import Background

CELL = babilong.Cell.of(babilong.PRESETS["smoke"], variant="swa", seed=0)
NEEDLE = needle.Cell.of(needle.PRESETS["smoke"], variant="swa", seed=0, kind="n", signs=3)


def built(variant):
    return build(replace(CELL, variant=variant), 50)


def test_the_memory_is_context_without_persistent_tokens():
    for variant in ("atlas_mac", "titans_mac"):
        local, mixer = built(variant).config.mixer_of_layer()
        assert (local, mixer) == (Attention(window=6, conv=4), MAC(segment=64, persistent=0))
    spec = built("atlas_mac").config.memory_spec
    assert (spec.chunk, spec.window, spec.optimizer.period) == (64, 2, 64)
    assert built("titans_mac").config.memory_spec.window == 1
    assert built("swa").config.mixer_of_layer()[1].window == 32


def test_a_batch_is_a_function_of_the_step():
    def lesson(tokens, questions, random):
        return np.arange(tokens) + questions, random.integers(9, size=tokens)

    cell = replace(CELL, stages=[[10, 10, 1, 40, 2], [10, 30, 3, 60, 2]], price=0.5)
    first, second = (batch_of(cell, 0, lesson), batch_of(cell, 3, lesson))
    assert first[0].shape == (4, 10)
    assert (first[2], second[2]) == (0.0, 0.5)  # the price is asked from the second stage on
    assert 10 <= second[0].shape[1] <= 30
    assert second[0][0, 0] == 3
    assert all(
        torch.equal(a, b) for a, b in zip(batch_of(cell, 3, lesson)[:2], second[:2], strict=True)
    )
    with pytest.raises(ValueError, match="behind the last stage"):
        batch_of(cell, 4, lesson)


def test_the_price_closes_gates():
    torch.manual_seed(0)
    model = built("atlas_mac")
    price, ids = Price(model), torch.randint(50, (2, 64))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    paid = []
    for _ in range(5):
        model.model(ids, use_cache=False)
        cost = price.take()
        optimizer.zero_grad()
        cost.backward()
        optimizer.step()
        paid.append(cost.item())
    assert paid == sorted(paid, reverse=True)
    assert 0 < paid[-1] < 20  # 18 nats above a gate that is shut for good
    assert price.take() == 0.0  # what was seen is paid once
    model.train(False)
    model.model(ids, use_cache=True)
    assert price.take() == 0.0


def test_a_length_is_measured_once(tmp_path):
    calls = []

    def at_length(tokens, samples, keep):
        calls.append(tokens)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return {"tokens": tokens, "accuracy": 0.5}

    lengths = [[10, 1], [20, 1], [30, 1]]
    with pytest.raises(KeyboardInterrupt):
        measure(lengths, at_length, tmp_path, lambda text: None)
    done = measure(lengths, at_length, tmp_path, lambda text: None)
    assert calls == [10, 20, 20, 30]
    assert [figures["tokens"] for figures in done] == [10, 20, 30]


@pytest.mark.parametrize("kind", ["pk", "n", "w"])
def test_a_needle_to_learn_from_is_followed_by_its_question(kind):
    words = needle_lesson.vocabulary(buckets=8)
    book = Background.noise(words.others, np.random.default_rng(0), count=50)
    ids, labels = needle_lesson.lesson(kind, 300, 3, 4, book, words, np.random.default_rng(1))
    text = words.decode(ids)
    assert len(ids) == 300
    for answer in text.split("<gen> ")[1:]:
        value = " ".join(answer.split()[:4])
        key = text.split(answer)[0].rsplit(" for ", 1)[1].split(" ?")[0]
        assert f"for {key} is : {value} ." in text.split(answer)[0]
    (asked,) = np.nonzero(labels != -100)
    assert len(asked) == 12
    assert np.array_equal(labels[asked], ids[asked + 1])
    with pytest.raises(ValueError, match="3 needles do not fit 50 tokens"):
        needle_lesson.lesson(kind, 50, 3, 4, book, words, np.random.default_rng(1))


def test_a_needle_to_be_found_is_in_its_text():
    words = needle_lesson.vocabulary(buckets=8)
    book = Background.noise(words.others, np.random.default_rng(0), count=50)
    for seed in range(5):
        drawn = needle_lesson.sample("n", 200, 3, book, words, np.random.default_rng(seed))
        assert len(drawn.context) == 200
        assert f"is : {words.decode(drawn.value)} ." in words.decode(drawn.context.ids())


def test_a_text_of_babilong_scores_the_share_of_its_questions():
    cell = replace(CELL, corpus="noise", buckets=8)
    task = babilong.Located.of(cell, print)
    drawn = [task.sample(100, np.random.default_rng(seed)) for seed in range(2)]
    told = [questions(sample.problem) for sample in drawn]

    def first_of_each(asked, new_tokens):
        """The first question of a text is answered, the others are not."""
        assert new_tokens == 1
        known = [(row, task.words.encode(f"{told[row][0][0]} <gen>")) for row in range(2)]
        return [
            task.words.encode(told[row][0][1]) if (row, ids) in known else [0] for row, ids in asked
        ]

    found = task.score(drawn, first_of_each)
    assert found["questions"] == sum(map(len, told)) > 2
    assert found["accuracy"] == pytest.approx(np.mean([1 / len(own) for own in told]))


def test_a_needle_is_found_when_every_sign_is_right():
    task = needle.Needles.of(NEEDLE, print)
    drawn = [task.sample(100, np.random.default_rng(seed)) for seed in range(2)]

    def nearly(asked, new_tokens):
        """The last sign of the second text is wrong."""
        assert ([row for row, _ in asked], new_tokens) == ([0, 1], 3)
        return [drawn[0].value, [*drawn[1].value[:2], 0]]

    assert task.score(drawn, nearly) == {"accuracy": 0.5, "signs": pytest.approx(5 / 6)}


@pytest.mark.parametrize(("experiment", "cell"), [(babilong, CELL), (needle, NEEDLE)])
def test_the_table_and_the_figure_stand_with_missing_lengths(experiment, cell):
    from matplotlib.figure import Figure

    figures = {"tokens": 4_000, "accuracy": 0.5, "samples": 2, "questions": 3, "state_bytes": 10}
    longer = [figures, figures | {"tokens": 10_000_000}]
    results = [Result(cell, {"lengths": [figures]}), Result(cell, {"lengths": longer})]
    table = experiment.EXPERIMENT.table(results)
    assert "10M" in table.columns
    assert table.rows[0][-1] is None
    experiment.EXPERIMENT.plot(results, Figure())
    assert experiment.EXPERIMENT.deviations(experiment.PRESETS["small"])


def test_lengths_are_written_short():
    assert [short(n) for n in (200, 4_000, 1_000_000)] == ["200", "4K", "1M"]


@pytest.mark.parametrize(
    ("name", "variants"), [("babilong", "atlas_mac,swa"), ("niah", "titans_mac")]
)
def test_smoke(name, variants, tmp_path, capsys):
    command = ["experiment", name, "--preset", "smoke", "--variants", variants, "--json"]
    with pytest.raises(SystemExit) as ended:
        main([*command, "--out", str(tmp_path / "out")])
    assert ended.value.code == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["results"]) == len(variants.split(","))
    for result in report["results"]:
        assert all(0 <= m["accuracy"] <= 1 for m in result["figures"]["lengths"])
    assert (tmp_path / "out" / f"{name}.png").is_file()
