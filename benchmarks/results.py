"""Run what docs/results lacks, cheapest first, for so many hours.

    make results HOURS=2
    python benchmarks/results.py --hours 2 --only babilong mqar-crowded
    python benchmarks/results.py --plan

Every line of RUNS is an experiment whose figures belong to docs/results/NAME.json. Cells that are
in that file are never run again, wherever it was made; those that are missing run through `atlas
experiment` in runs/results/NAME, and what was reached is written back when a run ends or the time
is over. A cell that the clock cuts short goes on at the next call.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from atlas_memory.experiments import load
from atlas_memory.experiments.experiment import Result
from atlas_memory.experiments.runner import Folder, Order, missing, order
from atlas_memory.names import suggest

ROOT = Path(__file__).parents[1]
KEPT, WORK = ROOT / "docs/results", ROOT / "runs/results"
PATIENCE = 60  # seconds in which an experiment that is told to stop must have stopped
LONG = "--set 'lengths=[[4000,32],[16000,16],[128000,8],[1000000,8]]'"
LONGEST = "--set 'lengths=[[4000,32],[16000,16],[128000,8],[1000000,8],[10000000,8]]'"
OTHERS = "--set 'lengths=[[4000,32],[16000,16],[128000,8],[1000000,8],[10000000,4]]'"
FURTHEST = "--set 'lengths=[[4000,32],[50000000,2]]'"
LEAGUE = (
    "atlas,omeganet,titans,titans_minus,ttt_mlp,atlas_mag,atlas_mal,"
    "gated_deltanet,deltanet,mamba2,swa,transformer_plus"
)

MAD = "transformer_plus,gated_deltanet,deltanet,mamba2,titans,omeganet,ttt_mlp,atlas"


@dataclass(frozen=True)
class Run:
    """options: as `atlas experiment` takes them. minutes: of one core for a cell, about."""

    name: str
    options: str
    minutes: float

    def words(self) -> list[str]:
        return shlex.split(self.options)

    def order(self) -> Order:
        name, *words = self.words()
        parser = argparse.ArgumentParser()
        parser.add_argument("--preset", default="small")
        parser.add_argument("--variants")
        parser.add_argument("--seeds", type=int, default=1)
        parser.add_argument("--set", action="append", default=[])
        given = parser.parse_args(words)
        variants = given.variants.split(",") if given.variants else None
        changes = dict(change.split("=", 1) for change in given.set)
        settings = {key: _value(text) for key, text in changes.items()}
        return order(load(name), given.preset, variants, given.seeds, settings)

    @property
    def folder(self) -> Folder:
        return Folder(WORK / self.name)

    @property
    def out(self) -> str:
        """From the root: a report tells its command, and not where it was run."""
        return os.path.relpath(self.folder.path, ROOT)

    def unpack(self) -> None:
        """Cells that docs/results has are there."""
        self.folder.prepare()
        kept = KEPT / f"{self.name}.json"
        for result in json.loads(kept.read_text())["results"] if kept.exists() else ():
            self.folder.keep(Result(result["cell"], result["figures"], result["seconds"]))

    def bring_back(self) -> None:
        """What is finished becomes the report of docs/results."""
        command = [sys.executable, "-m", "atlas_memory.cli", "experiment", *self.words()]
        command += ["--out", self.out, "--so-far", "--json"]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
        if done.returncode == 0:
            for suffix in (".json", ".png"):
                made = self.folder.path / f"{self.words()[0]}{suffix}"
                shutil.copyfile(made, KEPT / f"{self.name}{suffix}")


RUNS = (
    Run("mqar", "mqar --seeds 3", 0.5),
    Run(
        "mqar-crowded",
        "mqar --preset crowded --variants atlas,titans,omeganet,gated_deltanet --seeds 3",
        2,
    ),
    Run("babilong", f"babilong --variants atlas,atlas_mac {LONGEST}", 60),
    Run(
        "babilong-seeds",
        f"babilong --variants atlas,atlas_mac,titans,omeganet,gated_deltanet,swa --seeds 3 {LONG}",
        14,
    ),
    Run("babilong-50m", f"babilong --variants atlas {FURTHEST}", 45),
    Run("babilong-others", f"babilong --variants gated_deltanet,titans {OTHERS}", 35),
    Run("babilong-qa2", f"babilong --variants atlas,atlas_mac --set task=qa2 {LONG}", 14),
    Run("babilong-qa3", f"babilong --variants atlas,atlas_mac --set task=qa3 {LONG}", 14),
    Run("ablation", "ablation --preset narrow --seeds 3", 5),
    Run("ablation-wide", "ablation --preset small --seeds 3", 9),
    # As long as Atlas takes for 600 steps of that shape, which are 1.62 times as dear.
    Run(
        "ablation-equal-time",
        'ablation --preset narrow --variants "Gated DeltaNet" --set steps=974',
        9,
    ),
    Run("window", "window --seeds 3", 6),
    Run("language", f"language --variants {LEAGUE}", 8),
    Run("niah", "niah --variants atlas,titans,gated_deltanet,swa", 5),
    Run("scaling", "scaling", 1),
    Run("in-context-recall", "recall", 2),
    Run("mad", f"mad --variants {MAD} --set 'difficulties={{\"memorization\":[{{}}]}}'", 2),
    Run("mad-tasks", f"mad --preset baseline --variants {MAD}", 3),
    Run("capacity", "capacity", 0.2),
    Run("one-pass", "one-pass --seeds 3", 0.1),
    Run("learnability", "learnability", 0.2),
)


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def execute(run: Run, threads: int, deadline: float) -> None:
    """Run the missing cells of an experiment until they are finished or the time is over."""
    command = [sys.executable, "-m", "atlas_memory.cli", "experiment", *run.words()]
    command += ["--out", run.out, "--threads", str(threads)]
    print("$", shlex.join(["atlas", *command[3:]]), flush=True)
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE)
    run.bring_back()


def chosen(names: list[str] | None) -> list[tuple[float, Run]]:
    """What is missing of every run, in minutes, cheapest first."""
    known = {run.name: run for run in RUNS}
    for name in names or ():
        if name not in known:
            raise SystemExit(f"unknown run {name!r}; {suggest(name, list(known))}")
    found = []
    for run in [known[name] for name in names] if names else RUNS:
        run.unpack()
        found.append((run.minutes * len(missing(run.order(), run.folder)), run))
    return sorted(((cost, run) for cost, run in found if cost), key=lambda pair: pair[0])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--plan", action="store_true", help="say what is missing; run nothing")
    given = parser.parse_args()
    deadline = time.monotonic() + 3600 * given.hours
    for cost, run in chosen(given.only):
        if given.plan:
            print(f"{run.name:16} {cost:6.0f} minutes of a core   atlas experiment {run.options}")
        elif time.monotonic() < deadline:
            execute(run, given.threads, deadline)


if __name__ == "__main__":
    main()
