"""Capacity: the figures that the propositions predict, and the engine's one online pass."""

import math

import pytest
import torch

from atlas_memory.experiments import associations as pairs
from atlas_memory.experiments.capacity import EXPERIMENT, Deep, _largest
from atlas_memory.experiments.experiment import Result, Workspace
from atlas_memory.experiments.runner import order
from atlas_memory.memory import L2, GradientDescent, Identity, Matrix, MemorySpec, NoRetention


@pytest.mark.parametrize(
    ("features", "d", "degree", "unit", "dimension"),
    [
        ("polynomial", 8, 2, False, 45),
        ("polynomial", 8, 3, False, 165),
        ("polynomial", 16, 2, False, 153),
        # sum_j x_j^2 = 1 makes the constant a combination of squares
        ("polynomial", 8, 2, True, 44),
        ("polynomial", 8, 3, True, 156),
        ("polynomial", 16, 2, True, 152),
        ("elementwise", 8, 3, False, 1 + 3 * 8),
        ("elementwise", 16, 2, False, 1 + 2 * 16),
        ("elementwise", 16, 2, True, 2 * 16),
    ],
)
def test_rank(features, d, degree, unit, dimension):
    constant = features == "elementwise"
    chosen = pairs.make_features(features, degree)
    K, _ = pairs.draw(dimension + 30, d, 1, unit=unit, seed=3)
    assert pairs.rank(pairs.lift(K, chosen, constant=constant)) == dimension
    assert pairs.expected_rank(features, degree, d, unit=unit, constant=constant) == dimension


@pytest.mark.parametrize(("d", "degree", "m"), [(9, 1, 69), (8, 2, 105), (8, 3, 225), (16, 2, 213)])
def test_least_squares_leaves_what_the_rank_does_not_reach(d, degree, m):
    features = pairs.make_features("identity" if degree == 1 else "polynomial", degree)
    errors = []
    for seed in range(3):
        K, V = pairs.draw(m, d, 8, unit=False, seed=seed)
        errors.append(pairs.error(pairs.least_squares(pairs.lift(K, features), V), V))
    assert sum(errors) / 3 == pytest.approx(1 - features.dim(d) / m, abs=0.04)


def test_gradient_descent_from_zero_tends_to_least_squares():
    K, V = pairs.draw(12, 8, 4, unit=True, seed=0)
    W = torch.zeros(4, 8, dtype=K.dtype)
    for _ in range(20_000):
        W -= 0.1 * (W @ K.mT - V.mT) @ K
    torch.testing.assert_close(K @ W.mT, pairs.least_squares(K, V), rtol=0, atol=1e-9)


def test_as_many_pairs_as_features_are_stored_and_recalled():
    K, V = pairs.draw(45, 8, 8, unit=False, seed=1)
    answers = pairs.least_squares(pairs.lift(K, pairs.make_features("polynomial", 2)), V)
    assert pairs.error(answers, V) < 1e-12
    assert pairs.recall(answers, V) == 1.0


def test_a_deep_memory_stores_pairs_up_to_its_parameters():
    d, width = 4, 16
    size = pairs.num_parameters(pairs.matrices(d, d, 2, width))
    assert size == 2 * d * width
    below, above = round(0.7 * size / d), round(1.5 * size / d)
    assert below > d
    for m, stored in ((below, True), (above, False)):
        K, V = pairs.draw(m, d, d, unit=False, seed=0)
        found = pairs.error(pairs.fit_deep(K, V, 2, width, 60, seed=0), V)
        assert (found < 1e-3) is stored, (m, found)


def test_delta_rule_stores_orthonormal_keys_in_one_pass():
    """With eta = 1 each step puts its own pair right and touches no other."""
    spec = MemorySpec(
        Identity(), Matrix(), L2(), GradientDescent(), NoRetention(), window=1, chunk=1
    )
    K = torch.linalg.qr(torch.randn(8, 8, generator=torch.Generator().manual_seed(0)).double())[0]
    _, V = pairs.draw(8, 8, 5, unit=False, seed=0)
    done = pairs.online(spec, [(K, V)], [pairs.Step(1.0), pairs.Step(0.25)], seed=0)
    assert done.errors[0] < 1e-20
    assert done.recalls[0] == 1.0
    assert done.errors[1] == pytest.approx(0.75**2)


def test_divergence_is_an_infinite_error():
    spec = MemorySpec(
        Identity(), Matrix(), L2(), GradientDescent(), NoRetention(), window=16, chunk=1
    )
    done = pairs.online(
        spec, [pairs.draw(2000, 4, 4, unit=True, seed=0)], [pairs.Step(1.0)], seed=0
    )
    assert done.errors == [math.inf]


def test_m_star_is_the_largest_that_holds_for_every_seed():
    def one(m, error):
        return Result(Deep(d=2, layers=1, width=1, m=m, steps=1, seed=0), {"error": error})

    group = [one(4, 0.0), one(4, 0.0), one(8, 0.0), one(8, 1.0), one(16, 1.0)]
    assert _largest(group, lambda r: r.figures["error"] < 1e-3) == 4


def test_cells_are_pure_and_the_table_and_picture_hold_them(tmp_path):
    from matplotlib.figure import Figure

    chosen = order(EXPERIMENT, "smoke", seeds=1)
    room = Workspace(tmp_path, lambda text: None)
    results = [Result(cell, EXPERIMENT.run(cell, room)) for cell in chosen.cells()]
    assert EXPERIMENT.run(chosen.cells()[-1], room) == results[-1].figures
    rows = EXPERIMENT.table(results).rows
    ranks = [row for row in rows if row[0] == "Prop. 2, rank"]
    assert all(str(predicted) == found for _, _, predicted, found in ranks)
    assert len(ranks) == 8
    figure = Figure()
    EXPERIMENT.plot(results, figure)
    assert len(figure.axes) == 6
    for some in (results[:1], results[-1:]):
        EXPERIMENT.plot(some, Figure())
        assert len(EXPERIMENT.table(some).rows) == 1
