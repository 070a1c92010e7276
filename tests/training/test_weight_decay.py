"""One rule says what decays: for `atlas train`, the experiments and the benchmarks."""

import pytest
import torch
from models import build
from torch import nn

from atlas_memory.experiments.fit import Rate, fit
from atlas_memory.retrofitting.beside import LowRank
from atlas_memory.training.trainer import AtlasTrainer
from atlas_memory.training.weight_decay import decay_groups, decayed_names

MAPS = {"q_proj", "k_proj", "v_proj", "gate_proj", "out_proj", "up_proj", "down_proj"}


def test_linear_maps_decay_and_nothing_else():
    model = build("atlas")
    names = decayed_names(model)
    assert {name.split(".")[-2] for name in names} == MAPS
    assert all(name.endswith(".weight") for name in names)
    others = {name for name, p in model.named_parameters() if p.ndim >= 2} - {*names}
    spared = ("embed_tokens.weight", "conv.weight", "gates.weight", "log_coefficients")
    assert all(name.endswith(spared) or ".mixer.weights." in name for name in others)
    assert len(others) == 1 + (len(spared) - 1 + 2) * len(model.model.layers)


def test_a_head_of_its_own_decays_and_a_tied_one_is_the_embedding():
    assert model_decays_its_head(tied=False)
    assert not model_decays_its_head(tied=True)


def model_decays_its_head(tied):
    model = build("atlas", tie_word_embeddings=tied)
    (decayed, _), head = decay_groups(model, 0.1), model.lm_head.weight
    return any(p is head for p in decayed["params"])


def test_a_map_of_low_rank_is_a_linear_map():
    assert decayed_names(LowRank(nn.Linear(3, 3), rank=2)) == ["weight", "down", "up"]


def test_groups_hold_every_parameter_once():
    model = build("atlas")
    some, others = decay_groups(model, 0.1)
    assert (some["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    held = [id(p) for group in (some, others) for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in model.parameters())


def test_the_trainer_has_the_same_rule():
    model = build("omeganet")
    assert AtlasTrainer.get_decay_parameter_names(None, model) == decayed_names(model)


@pytest.mark.parametrize(("own", "moved"), [(False, [True, False]), (True, [True, True])])
def test_a_fit_decays_by_the_rule_or_has_groups_of_its_own(own, moved):
    """Without a gradient nothing but decay moves a parameter."""
    model = nn.Linear(2, 2)
    before = [p.clone() for p in model.parameters()]
    groups = [{"params": list(model.parameters()), "weight_decay": 0.5}] if own else None
    options = {"weight_decay": 0.5, "groups": groups}

    def nothing(model, batch):
        return 0 * sum(p.sum() for p in model.parameters())

    fit(model, range, steps=1, rate=Rate(0.1, "constant"), loss=nothing, **options)
    after = list(model.parameters())
    assert [not torch.equal(a, b) for a, b in zip(before, after, strict=True)] == moved
