"""What one reading leaves: rules in the order that theory has, and a report of what is finished."""

import pytest

from atlas_memory.experiments.experiment import Result, Workspace
from atlas_memory.experiments.one_pass import EXPERIMENT, OPTIMIZERS, PRESETS, Cell, run
from atlas_memory.experiments.runner import order
from atlas_memory.memory.optimizers import Muon


def recall(load=0.25, **rule):
    chosen = {"memory": "matrix on phi_2", "optimizer": "gradient", "window": 1, "output": "online"}
    return run(Cell.of(PRESETS["small"], load=load, seed=0, **(chosen | rule)), None)


def test_least_squares_reaches_the_bound_and_a_single_step_does_not():
    assert recall(optimizer="Mesa", load=1.0)["recall"] == 1.0
    assert recall(optimizer="Mesa", load=2.0)["recall"] < 0.6
    assert recall(load=1.0)["recall"] < 0.2


@pytest.mark.parametrize("memory", ["matrix on phi_2", "MLP"])
def test_exact_writing_and_the_window_keep_more(memory):
    stale, exact, window = (
        recall(memory=memory, **rule)["recall"]
        for rule in ({"output": "chunk"}, {}, {"window": 16})
    )
    assert stale < exact < window


def test_more_steps_of_newton_schulz_memorize_better(monkeypatch):
    """Up to about three; beyond them nothing is gained (docs/results/one-pass.md)."""
    found = []
    for steps in (0, 1, 3):
        monkeypatch.setitem(OPTIMIZERS, "Muon", Muon(steps=steps))
        found.append(recall(0.5, optimizer="Muon", window=4, output="chunk")["recall"])
    assert found[0] + 0.05 < found[1] < found[2] - 0.05


def test_memories_have_about_as_many_numbers_and_state_is_counted_whole():
    matrix, mlp = recall(), recall(memory="MLP")
    assert (matrix["pairs"], mlp["pairs"]) == (38, 40)  # a quarter of 2,448 / 16 and of 2,560 / 16
    assert matrix["bytes"] == 4 * 153 * 16
    assert recall(optimizer="momentum")["bytes"] == 2 * matrix["bytes"]
    assert recall(window=4)["bytes"] == matrix["bytes"] + 4 * 3 * (16 + 16)  # three pairs


def test_smoke_and_its_table_and_picture(tmp_path):
    from matplotlib.figure import Figure

    chosen = order(EXPERIMENT, "smoke", seeds=1)
    room = Workspace(tmp_path, lambda text: None)
    results = [Result(cell, EXPERIMENT.run(cell, room)) for cell in chosen.cells()]
    assert len(results) == 2 * (10 + 12 + 2)
    assert all(0 <= r.figures["recall"] <= 1 for r in results)
    table = EXPERIMENT.table(results)
    assert len(table.rows) == 24
    assert all(len(row) == len(table.columns) for row in table.rows)
    for some in (results, results[:1]):
        figure = Figure()
        EXPERIMENT.plot(some, figure)
        assert len(figure.axes) == len({r.cell.memory for r in some})
