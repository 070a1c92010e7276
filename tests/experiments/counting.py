"""An experiment that counts, for the tests of the runner. As a script: run it into a folder.

A file OUT/slow makes the second cell take a minute.
"""

import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from atlas_memory.experiments.experiment import Experiment, Result, Seeded, Table
from atlas_memory.experiments.runner import Folder, order, run


@dataclass(frozen=True, kw_only=True)
class Settings:
    numbers: list[int] = field(default_factory=lambda: [1, 2, 3])
    sleep: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Cell(Seeded):
    n: int
    sleep: float


def cells(settings, variants, seeds):
    return [
        Cell.of(settings, variant=v, n=n, seed=s)
        for v in variants
        for n in settings.numbers
        for s in range(seeds)
    ]


def count(cell, workspace):
    """Appends to a log beside the results, so that a test sees what was run."""
    log = workspace.folder.parents[1] / "log"
    with log.open("a") as file:
        file.write(f"{cell.n}\n")
    begun = workspace.folder / "begun"
    figures = {"square": cell.n**2, "resumed": begun.exists(), "bad": float("nan")}
    begun.touch()
    workspace.say("counting")
    slow = cell.n == 2 and log.with_name("slow").exists()
    time.sleep(60 if slow else cell.sleep)
    return figures


def table(results: list[Result[Cell]]) -> Table:
    rows = [[r.cell.n, r.figures["square"], r.figures["bad"]] for r in results]
    return Table(["n", "square", "bad"], rows, ["a note"])


def plot(results, figure):
    figure.subplots().plot([r.figures["square"] for r in results])


PRESETS = {"smoke": Settings()}
COUNTING = Experiment(
    "counting",
    "How far does it count?",
    *(
        PRESETS,
        ("atlas",),
        cells,
        count,
        table,
        plot,
        lambda settings: [f"counts to {max(settings.numbers)}"],
    ),
)


class Silent:
    """Nothing to see."""

    def begin(self, cell):
        pass

    def say(self, text):
        pass

    def end(self, result):
        pass


if __name__ == "__main__":
    run(order(COUNTING, "smoke"), Folder(Path(sys.argv[1])), Silent())
