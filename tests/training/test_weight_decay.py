"""One function says what decays: for `atlas train`, the experiments and the benchmarks."""

import pytest
import torch
from models import build

from atlas_memory.experiments.fit import fit
from atlas_memory.training.trainer import AtlasTrainer
from atlas_memory.training.weight_decay import decay_groups, decayed_names


def test_rules():
    model = build("atlas")
    every = dict(model.named_parameters())
    matrices, linear = decayed_names(model), decayed_names(model, "linear")
    assert all(every[name].ndim >= 2 for name in matrices)
    assert set(linear) < set(matrices) < set(every)
    assert not any("norm" in name or "bias" in name for name in matrices)
    assert any(name.endswith("log_coefficients") for name in every.keys() - {*matrices})
    assert decayed_names(model, "all") == list(every)
    with pytest.raises(ValueError, match="unknown rule of weight decay 'some'; choose from: matr"):
        decayed_names(model, "some")


def test_groups_hold_every_parameter_once():
    model = build("atlas")
    some, others = decay_groups(model, 0.1, "linear")
    assert (some["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    held = [id(p) for group in (some, others) for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters())
    (one,) = decay_groups(model, 0.1, "all")
    assert len(one["params"]) == len(held)


def test_the_trainer_decays_matrices():
    model = build("omeganet")
    assert AtlasTrainer.get_decay_parameter_names(None, model) == decayed_names(model, "matrices")


@pytest.mark.parametrize(("rule", "moved"), [("linear", [True, False]), ("all", [True, True])])
def test_a_fit_decays_what_it_is_told_to(rule, moved):
    """Without a gradient nothing but decay moves a parameter."""
    model = torch.nn.Linear(2, 2)
    before = [p.clone() for p in model.parameters()]
    options = {"weight_decay": 0.5, "decayed": rule, "schedule": "constant"}

    def nothing(model, batch):
        return 0 * sum(p.sum() for p in model.parameters())

    fit(model, range, steps=1, learning_rate=0.1, loss=nothing, **options)
    after = list(model.parameters())
    assert [not torch.equal(a, b) for a, b in zip(before, after, strict=True)] == moved
