"""Learnability: the five functions are what the text describes, and the rules what they say."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from atlas_memory.experiments.experiment import Result, Workspace
from atlas_memory.experiments.learnability import EXPERIMENT, binned
from atlas_memory.experiments.online_learning import (
    MAPPINGS,
    RULES,
    Muon,
    Sizes,
    answer,
    attend,
    draw_pairs,
    learn,
    learner,
)
from atlas_memory.experiments.runner import order
from atlas_memory.memory.optimizers import newton_schulz

SIZES = Sizes(length=300, dim=12, rank=3, window=40)


@pytest.mark.parametrize("window", [None, 1, 40, 300])
def test_attention_in_blocks_is_attention(window):
    q, k, v = torch.randn(3, 300, 12, generator=torch.Generator().manual_seed(0)).double()
    age = torch.arange(300)[:, None] - torch.arange(300)
    seen = (age >= 0) & (age < (300 if window is None else window))
    expected = scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=seen)[0]
    torch.testing.assert_close(attend(q, k, v, window), expected)


def test_the_low_rank_map_has_its_rank():
    i, o = draw_pairs("1 low rank", SIZES, 0)
    W = torch.linalg.lstsq(i.double(), o.double()).solution
    assert torch.linalg.matrix_rank(W, rtol=1e-4) == SIZES.rank


def test_settings_three_and_four_share_outputs_and_five_forgets():
    """4 gets as input what 3 has to find; 5 equals 3 until the window is full."""
    three, four, five = (
        draw_pairs(name, SIZES, 1)
        for name in ("3 attention + MLP", "4 attention as input", "5 sliding attention + MLP")
    )
    torch.testing.assert_close(three[1], four[1])
    assert not torch.allclose(three[0], four[0])
    torch.testing.assert_close(three[1][:40], five[1][:40])
    assert not torch.allclose(three[1][41:], five[1][41:])


def test_outputs_of_attention_shrink_as_more_values_are_averaged():
    wide = replace(SIZES, dim=64)
    norms = draw_pairs("3 attention + MLP", wide, 0)[1].norm(dim=-1)
    sliding = draw_pairs("5 sliding attention + MLP", wide, 0)[1].norm(dim=-1)
    assert norms[-50:].mean() < 0.5 * norms[:10].mean()
    assert norms[-50:].mean() < 0.7 * sliding[-50:].mean()


def test_a_step_follows_the_gradient_of_the_window():
    i, o = draw_pairs("2 MLP", SIZES, 0)
    pairs, rate = (i[:3], o[:3]), 0.01
    weights = learner(12, 2, 1, 0)
    losses = learn(pairs, weights, RULES["Omega 4"], rate)
    mine = learner(12, 2, 1, 0)
    for j in range(3):
        e = ((answer(mine, i[: j + 1]) - o[: j + 1]) ** 2).sum(-1) / (o[: j + 1] ** 2).sum(-1)
        torch.testing.assert_close(losses[j], e[-1].detach())
        gradients = torch.autograd.grad(e.sum(), mine)
        steps = zip(mine, gradients, strict=True)
        mine = [(W - rate * g).detach().requires_grad_() for W, g in steps]
    for got, expected in zip(weights, mine, strict=True):
        torch.testing.assert_close(got, expected)


def test_muon_steps_every_period_and_its_momentum_every_pair():
    W = torch.zeros(4, 6, requires_grad=True)
    optimizer = Muon([W], lr=0.5, period=2)
    gradients = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(0))
    W.grad = gradients[0]
    optimizer.step()
    assert not W.any()
    W.grad = gradients[1]
    optimizer.step()
    torch.testing.assert_close(
        W.detach(), -0.5 * newton_schulz(0.9 * gradients[0] + gradients[1], 5)
    )


def test_a_diverged_learner_has_infinite_loss():
    losses = learn(draw_pairs("2 MLP", SIZES, 0), learner(12, 2, 1, 0), RULES["SGD"], 1e3)
    assert math.isinf(losses[-1])
    assert math.isfinite(losses[0])


def test_curves_are_short():
    assert binned(torch.ones(1000)) == [1.0] * 32
    assert binned(torch.ones(5)) == [1.0] * 5


def test_smoke(tmp_path):
    from matplotlib.figure import Figure

    room = Workspace(tmp_path, lambda text: None)
    chosen = order(EXPERIMENT, "smoke").cells()[:10]
    results = [Result(cell, EXPERIMENT.run(cell, room)) for cell in chosen]
    assert EXPERIMENT.run(chosen[0], room) == results[0].figures
    table = EXPERIMENT.table(results)
    assert table.columns[2:] == tuple(MAPPINGS)
    assert len(table.rows) == 2
    EXPERIMENT.plot(results, Figure())
