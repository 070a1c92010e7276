"""Ablation, window and scaling: every run is a value of the configuration, and can be repeated."""

import math
from dataclasses import replace

import pytest
import torch

from atlas_memory.config import AtlasConfig
from atlas_memory.data.corpus import require_length
from atlas_memory.data.tokenizer import load_tokenizer
from atlas_memory.data.windows import InOrder
from atlas_memory.experiments import load
from atlas_memory.experiments.ablation import PUBLISHED, ROWS
from atlas_memory.experiments.experiment import Result, Workspace
from atlas_memory.experiments.runner import order
from atlas_memory.experiments.scaling import fit_power
from atlas_memory.experiments.text_models import (
    flops_of_a_step,
    load_text,
    make_config,
    score,
    train_and_score,
)
from atlas_memory.model import AtlasForCausalLM
from atlas_memory.training.prepare import parameters_of

NAMES = ("ablation", "window", "scaling")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.getbasetemp() / "text-cache"
    monkeypatch.setenv("ATLAS_HOME", str(folder))


def room(tmp_path):
    return Workspace(tmp_path, lambda text: None)


def test_rows_of_the_ablation_are_the_published_ones():
    """Mean of WikiText and LAMBADA perplexities of the 760M rows, as the paper's tables have it."""
    assert PUBLISHED["Atlas"][0] == pytest.approx((18.92 + 21.01) / 2, abs=0.006)
    assert PUBLISHED["w/o Muon"][0] == pytest.approx((19.16 + 20.14) / 2, abs=0.006)
    assert list(ROWS)[: len(PUBLISHED)] == list(PUBLISHED)  # ours stand behind them


def test_without_muon_atlas_is_omeganet():
    variant, changes = ROWS["w/o Muon"]
    ours = AtlasConfig.from_variant(variant, size="tiny", **changes)
    assert ours.memory_spec == AtlasConfig.from_variant("omeganet", size="tiny").memory_spec


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("preset", ["smoke", "small"])
def test_models_of_one_experiment_have_equal_size(name, preset):
    for cell in order(load(name), preset).cells():
        assert parameters_of(make_config(cell, 256)) == pytest.approx(cell.parameters, rel=0.02)


@pytest.mark.parametrize("name", NAMES)
def test_cells_of_the_paper_are_models(name):
    for cell in order(load(name), "paper").cells():
        AtlasConfig.from_variant(cell.variant, size=cell.size, **cell.changes)


@pytest.mark.parametrize("name", NAMES)
def test_smoke(name, tmp_path):
    from matplotlib.figure import Figure

    experiment = load(name)
    chosen = order(experiment, "smoke", experiment.variants[:2]).cells()
    results = [
        Result(cell, experiment.run(cell, room(tmp_path / str(n)))) for n, cell in enumerate(chosen)
    ]
    assert all(math.isfinite(r.figures["bits"]) for r in results)
    assert experiment.table(results).rows
    experiment.plot(results, Figure())
    broken = [Result(r.cell, {**r.figures, "bits": None}) for r in results]
    experiment.table(broken)
    experiment.plot(broken, Figure())


def test_same_cell_same_figures(tmp_path):
    cell = order(load("window"), "smoke").cells()[0]
    first = train_and_score(cell, room(tmp_path / "a"))
    again = train_and_score(cell, room(tmp_path / "b"))
    assert first == again


def test_score_is_the_models_own_loss_in_bits():
    cell = order(load("window"), "smoke").cells()[0]
    model = AtlasForCausalLM(make_config(cell, 256)).eval()
    corpus = load_text("python", load_tokenizer("bytes"), lambda text: None)
    require_length(corpus.validation, 33, "validation")
    examples = InOrder(corpus.validation, 33, 3)
    ids = torch.stack([examples[n]["input_ids"] for n in range(3)])
    expected = model(ids, labels=ids).loss.item() / math.log(2)
    found = score(model, examples, batch=2)
    assert len(found) == 16
    assert sum(found) / 16 == pytest.approx(expected, rel=1e-5)


def test_flops_of_a_linear_layer():
    class Model(torch.nn.Module):
        """6 multiply-adds a weight and token, without the gradient of the input."""

        def __init__(self):
            super().__init__()
            self.lm_head = torch.nn.Linear(8, 16, bias=False)

        def model(self, ids, use_cache):
            from types import SimpleNamespace

            return SimpleNamespace(last_hidden_state=torch.ones(*ids.shape, 8))

    ids = torch.zeros(2, 5, dtype=torch.long)
    assert flops_of_a_step(Model(), (ids, ids)) == 2 * 2 * 10 * 8 * 16


def test_power_law():
    a, b = fit_power([(c, 3.0 * c**-0.25) for c in (1e3, 1e5, 1e6)])
    assert (a, b) == pytest.approx((3.0, 0.25))
    assert fit_power([(1e3, 2.0)]) is None


def test_data_that_does_not_exist_is_one_sentence(tmp_path):
    cell = replace(order(load("window"), "smoke").cells()[0], data="/no/such/file.txt")
    with pytest.raises(ValueError, match="no data"):
        train_and_score(cell, room(tmp_path))
