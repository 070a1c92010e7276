"""MQAR as an experiment: the published protocols, sizes of states, and the smoke run."""

import json
from dataclasses import replace

import pytest
import torch

from atlas_memory.cli.main import main
from atlas_memory.experiments import mqar as module
from atlas_memory.experiments.experiment import Result, Workspace
from atlas_memory.experiments.mqar import EXPERIMENT, PRESETS
from atlas_memory.experiments.mqar_model import BaseConv, Recaller


def recaller(variant, base_conv):
    (cell,) = EXPERIMENT.cells(PRESETS["smoke"], (variant,), 1)
    return Recaller(replace(cell, dim=16, base_conv=base_conv))


def test_the_published_protocols():
    cells = EXPERIMENT.cells(PRESETS["paper"], ("deltanet", "atlas"), 1)
    assert len(cells) == 2 * 3 * 4
    batch, steps = module._batches(cells[0])
    # 100k sequences of 64 tokens first, then four segments of 20k; no batch mixes two
    assert steps == 391 + 4 * 79
    assert [tuple(batch(n)[0].shape) for n in (0, 390, 391, steps - 1, steps)] == [
        (256, 64),
        (100_000 - 390 * 256, 64),
        (256, 128),
        (20_000 - 78 * 256, 256),
        (256, 64),
    ]
    assert torch.equal(batch(0)[0], batch(steps)[0])
    hard = EXPERIMENT.cells(PRESETS["deltanet"], ("deltanet",), 1)
    assert {(c.dim, c.rate) for c in hard} == {
        (d, r) for d in (64, 128, 256, 512) for r in (1e-4, 4.64e-4, 2.15e-3, 1e-2)
    }
    assert hard[0].train == [[100_000, 512, 64]]


def test_a_state_counts_what_zoology_counts():
    """DeltaNet: H dk dv numbers a layer; attention: 2 d T; both are what `memory` says."""
    delta = recaller("deltanet", base_conv=False).sizes(32)
    assert delta["memory"] == 4 * 2 * 2 * 8 * 8
    assert delta["state"] > delta["memory"]
    attention = recaller("attention", base_conv=True)
    assert attention.sizes(32)["memory"] >= 4 * 2 * 16 * 32
    assert attention.sizes(64)["memory"] > attention.sizes(32)["memory"]
    assert recaller("deltanet", base_conv=True).sizes(64)["memory"] == delta["memory"] // 2


def test_base_conv_is_causal():
    torch.manual_seed(0)
    layer, x = BaseConv(8), torch.randn(2, 9, 8)
    y = layer(x)
    assert y.shape == x.shape
    torch.testing.assert_close(layer(x[:, :5]), y[:, :5])
    changed = x.clone()
    changed[:, 4] += 1
    assert (layer(changed)[:, 4:7] != y[:, 4:7]).any(-1).all()
    torch.testing.assert_close(layer(changed)[:, 7:], y[:, 7:])


def test_recall_is_learned(tmp_path):
    settings = replace(
        PRESETS["smoke"],
        vocabulary=16,
        train=[[6_400, 16, 2]],
        test=[[64, 16, 2]],
        widths={"": [16]},
        base_conv=False,
        batch=32,
    )
    (cell,) = EXPERIMENT.cells(settings, ("deltanet",), 1)
    figures = EXPERIMENT.run(cell, Workspace(tmp_path, print))
    assert figures["accuracy"] > 0.9
    assert figures["by_test"] == [figures["accuracy"]]


def test_the_best_rate_of_each_seed_counts():
    def result(rate, seed, accuracy):
        cell = EXPERIMENT.cells(PRESETS["smoke"], ("deltanet",), 1)[0]
        sizes = {"state_bytes": 2000, "memory_bytes": 1000, "steps": 1, "by_test": None}
        return Result(replace(cell, rate=rate, seed=seed), sizes | {"accuracy": accuracy})

    points = [(1, 0, 0.2), (2, 0, 0.8), (1, 1, 0.4), (2, 1, None)]
    (row,) = module.table([result(*point) for point in points]).rows
    assert row[:5] == ["DeltaNet", 8, 1.0, 2.0, 0.6]


def test_published_figures_stand_beside_the_same_training_only():
    cell = EXPERIMENT.cells(PRESETS["deltanet"], ("gla",), 1)[0]
    assert module.published(cell, 1e4) == "0.22"
    cell = EXPERIMENT.cells(PRESETS["paper"], ("gla",), 1)[0]
    assert module.published(cell, 2e4) == "0.771 at 17.9 KB"
    assert module.published(EXPERIMENT.cells(PRESETS["small"], ("gla",), 1)[0], 2e4) is None


def test_smoke(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["experiment", "mqar", "--preset", "smoke", "--out", str(tmp_path), "--json"])
    assert ended.value.code == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["table"]["rows"]) == 8
    assert (tmp_path / "mqar.png").stat().st_size > 1000
