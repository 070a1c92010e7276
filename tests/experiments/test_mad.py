"""MAD as an experiment: the skeleton, the two accuracies, the published grid, and the smoke run."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from atlas_memory.cli.main import main
from atlas_memory.experiments import mad as module
from atlas_memory.experiments.experiment import Result, Workspace
from atlas_memory.experiments.mad import EXPERIMENT, macro_accuracy
from atlas_memory.experiments.mad_skeleton import AutoEncoder, LanguageModel, Shape, sinusoids
from atlas_memory.experiments.runner import digest
from atlas_memory.tasks import mad


def test_the_published_protocol_has_396_runs_for_each_model():
    cells = EXPERIMENT.cells(EXPERIMENT.presets["paper"], ("atlas", "titans"), 1)
    assert len(cells) == 2 * 396
    assert len({digest(cell) for cell in cells}) == len(cells)
    assert {cell.train for cell in cells if cell.task == "memorization"} == {256}
    assert {cell.train for cell in cells if cell.task == "compression"} == {
        12_800,
        *mad.FEWER,
    }


@pytest.mark.parametrize(
    ("difficulties", "sentence"),
    [
        ({"memorisation": [{}]}, "unknown task 'memorisation' of MAD; choose from: in_context"),
        ({"memorization": [{"vocab": 3}]}, "memorization has no 'vocab'; choose from: vocabulary"),
    ],
)
def test_an_unknown_difficulty_is_one_sentence(difficulties, sentence):
    settings = replace(EXPERIMENT.presets["smoke"], difficulties=difficulties)
    with pytest.raises(ValueError, match=sentence):
        EXPERIMENT.cells(settings, ("atlas",), 1)


def test_the_skeleton_has_the_published_size():
    """Transformer: 2 x (4 x 128^2 + 3 x 128 x 352 + 2 x 128) + 128, embedding, head and bias."""
    model = LanguageModel("transformer_plus", 16, Shape())
    blocks = 2 * (4 * 128**2 + 3 * 128 * 352 + 2 * 128) + 128
    assert sum(p.numel() for p in model.parameters()) == blocks + 2 * 16 * 128 + 16
    assert model.embedding.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert model.head.bias.abs().max() == 0
    assert model.head.weight is not model.embedding.weight
    assert {m.eps for m in model.modules() if type(m).__name__ == "RMSNorm"} == {1e-5}


def test_a_linear_memory_keeps_the_iso_state_rule():
    """8 heads of 16 x 16 in two layers are 4096 numbers; short convolutions come on top."""
    small = LanguageModel("gated_deltanet", 16, Shape()).state_bytes(32)
    assert small == LanguageModel("gated_deltanet", 16, Shape()).state_bytes(64)
    assert 4 * 4096 <= small < 4 * 4096 + 2 * 4 * 3 * 3 * 128 + 64


def test_the_autoencoder_decodes_one_vector():
    torch.manual_seed(0)
    model = AutoEncoder("transformer_plus", 16, Shape(layers=1))
    ids = torch.randint(0, 16, (3, 20))
    y = model(ids)
    assert y.shape == (3, 20, 128)
    last = model.embedding(ids)
    for block in model.blocks:
        last, _ = block(last)
    expected = model.norm(model.decoder(last[:, -1] + sinusoids(20, 128)[7]))
    torch.testing.assert_close(y[:, 7], expected)
    for linear in (model.head, model.decoder[1], model.blocks[0].mlp.up_proj):
        assert linear.weight.std().item() == pytest.approx(0.02, rel=0.15)


@pytest.mark.parametrize(
    ("said", "truth", "expected"),
    [
        ([0, 0, 1], [0, 0, 1], 1.0),
        ([0, 0, 0], [0, 0, 1], 0.5),  # class 0 all right, class 1 all wrong
        ([0, 2, 1], [0, 0, 1], 0.5),  # 2 was said and never asked for: it counts as 0
        ([5], [0], 0.0),
    ],
)
def test_macro_accuracy(said, truth, expected):
    assert macro_accuracy(np.array(said), np.array(truth)) == pytest.approx(expected)


def test_the_score_is_the_mean_of_the_best_of_each_grid():
    def result(vocabulary, rate, accuracy):
        cell = EXPERIMENT.cells(EXPERIMENT.presets["small"], ("atlas",), 1)[0]
        cell = replace(cell, rate=rate, changes={"vocabulary": vocabulary})
        figures = {"accuracy": accuracy, "token_accuracy": accuracy, "ceiling": 1.0}
        return Result(cell, figures | {"state_bytes": 1024, "parameters": 7})

    grid = [(256, 1, 0.2), (256, 2, 0.9), (512, 1, 0.5), (512, 2, None)]
    table = module.table([result(*point) for point in grid])
    assert table.rows[0][:3] == ["memorization", "Atlas", 70.0]
    assert table.rows[0][-1] == 91.4


def test_batches_cover_an_epoch_and_change_with_it():
    data = np.arange(10)[:, None], np.arange(10)[:, None]
    batch = module._batches(data, 4, 0)
    epochs = [torch.cat([batch(3 * e + n)[0] for n in range(3)]).flatten() for e in range(2)]
    assert [sorted(epoch.tolist()) for epoch in epochs] == [list(range(10))] * 2
    assert epochs[0].tolist() != epochs[1].tolist()


def test_memorization_is_learned(tmp_path):
    """A tiny map, learned to its end: accuracy 1, stopped early."""
    settings = replace(
        EXPERIMENT.presets["smoke"],
        difficulties={"memorization": [{"vocabulary": 16, "length": 8}]},
        train=64,
        test=32,
        batch=32,
        epochs=150,
        rates=[1e-2],
        evaluate_every=10,
    )
    (cell,) = EXPERIMENT.cells(settings, ("gated_deltanet",), 1)
    figures = EXPERIMENT.run(cell, Workspace(tmp_path, print))
    assert figures["accuracy"] == 1.0
    assert figures["steps"] < 300
    assert figures["ceiling"] == 1.0


def test_smoke(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["experiment", "mad", "--preset", "smoke", "--out", str(tmp_path), "--json"])
    assert ended.value.code == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["table"]["rows"]) == 6 * 5
    assert any("cosine" in sentence for sentence in report["deviations"])
    assert (tmp_path / "mad.png").stat().st_size > 1000
