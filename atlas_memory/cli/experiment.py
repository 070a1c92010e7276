"""atlas experiment: the paper's experiments, each one command away."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atlas_memory.cli.options import AsJson, Device, assigned
from atlas_memory.names import suggest

if TYPE_CHECKING:
    from rich.progress import Progress

    from atlas_memory.experiments.experiment import Result

NAME = "One of the experiments; without it they are listed."
VARIANTS = "Names from `atlas list`, with commas between them."
SET = "A setting of the preset, as name=value; may be given again."
PRECISION = "float32 or bfloat16, of the training; the experiment's own if left out."
SO_FAR = "Report the finished cells; run nothing."
# The last four of some experiments.
PRESETS = ("smoke", "small", "paper", "narrow", "crowded", "deltanet", "baseline")
INTERRUPTED = 130
IN_A_FILE = 10.0  # seconds between two lines of a cell when stderr is no terminal


def run(
    name: Annotated[str | None, typer.Argument(help=NAME)] = None,
    preset: Annotated[str, typer.Option(help="smoke, small or paper.")] = "small",
    variants: Annotated[str | None, typer.Option(help=VARIANTS)] = None,
    seeds: Annotated[int, typer.Option(help="How many seeds.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Where the results go.")] = None,
    changes: Annotated[list[str] | None, typer.Option("--set", help=SET)] = None,
    threads: Annotated[int | None, typer.Option(help="Threads; all cores.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would run.")] = False,
    so_far: Annotated[bool, typer.Option("--so-far", help=SO_FAR)] = False,
    device: Device = "cpu",
    precision: Annotated[str | None, typer.Option(help=PRECISION)] = None,
    as_json: AsJson = False,
) -> None:
    """Train and compare, as the paper does, beside its figures.

    A second start runs only what is missing. Examples: atlas experiment mqar --preset smoke;
    atlas experiment mad --preset small --variants atlas,titans --seeds 2
    """
    if name is None:
        _list(as_json)
        return
    _require(name, preset, seeds)
    _require_place(device, precision)
    from atlas_memory.experiments import load
    from atlas_memory.experiments.runner import Folder, order

    chosen = order(load(name), preset, _names(variants), seeds, assigned(changes))
    _require_models(chosen, device, precision)
    folder = Folder(out or Path("runs/experiments") / _folder(name, preset, precision))
    command = _command(name, preset, variants, seeds, out, changes, (device, precision))
    if dry_run:
        _plan(chosen, folder, as_json)
        return
    _threads(threads)
    report = _report(chosen, folder, command, None if so_far else (device, precision))
    _show(chosen, folder, report, as_json)


def _require(name: str, preset: str, seeds: int) -> None:
    """What can be told without the experiment, whose module imports torch."""
    from atlas_memory.experiments import require_experiment

    require_experiment(name)
    if preset not in PRESETS:
        raise ValueError(f"unknown preset {preset!r} of {name}; {suggest(preset, list(PRESETS))}")
    if seeds < 1:
        raise ValueError(f"--seeds {seeds}: there must be at least one")


def _require_place(device: str, precision: str | None) -> None:
    from atlas_memory.reading.loading import require_device, require_there
    from atlas_memory.training.recipe import PRECISIONS

    require_device(device)
    if precision is not None and precision not in PRECISIONS:
        raise ValueError(f"unknown precision {precision!r}; choose from: {', '.join(PRECISIONS)}")
    require_there(device)


def _require_models(order: Any, device: str, precision: str | None) -> None:
    if not order.variants and (device != "cpu" or precision is not None):
        raise ValueError(
            f"{order.experiment.name} trains no model: it runs on the processor, as exact as it "
            "is written; leave --device and --precision out"
        )


def _folder(name: str, preset: str, precision: str | None) -> str:
    """A precision other than the experiment's own makes other figures."""
    return "-".join(filter(None, (name, preset, precision)))


def _list(as_json: bool) -> None:
    from atlas_memory.experiments import EXPERIMENTS, load

    shown = {}
    for name in EXPERIMENTS:
        try:
            shown[name] = load(name).question
        except ValueError as error:
            shown[name] = str(error)
    lines = [f"{name:14}{question}" for name, question in shown.items()]
    print(json.dumps(shown) if as_json else "\n".join(lines))


def _names(variants: str | None) -> list[str] | None:
    if variants is None:
        return None
    return [name.strip() for name in variants.split(",") if name.strip()]


def _command(
    name: str,
    preset: str,
    variants: str | None,
    seeds: int,
    out: Path | None,
    changes: list[str] | None,
    place: tuple[str, str | None],
) -> str:
    """The command that gives these results, and goes on with them."""
    words = ["atlas", "experiment", name, "--preset", preset]
    words += [] if variants is None else ["--variants", variants]
    words += [] if seeds == 1 else ["--seeds", str(seeds)]
    words += [] if out is None else ["--out", str(out)]
    words += [word for change in changes or [] for word in ("--set", change)]
    words += [] if place[0] == "cpu" else ["--device", place[0]]
    words += [] if place[1] is None else ["--precision", place[1]]
    return shlex.join(words)


def _threads(count: int | None) -> None:
    import os

    import torch

    from atlas_memory.processor import flush_tiny_numbers, keep_freed_memory

    flush_tiny_numbers()
    keep_freed_memory()
    if count is not None and count < 1:
        raise ValueError(f"--threads {count}: there must be at least one")
    if count is not None or "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(count or os.cpu_count() or 1)


def _plan(order: Any, folder: Any, as_json: bool) -> None:
    from atlas_memory.experiments.runner import missing

    left = missing(order, folder)
    if as_json:
        print(json.dumps({"cells": [*map(asdict, order.cells())], "missing": [*map(asdict, left)]}))
        return
    print(f"{len(order.cells())} cells, {len(left)} of them to run in {folder.path}")
    for sentence in order.experiment.deviations(order.settings):
        print(f"deviation: {sentence}")


def _report(
    order: Any, folder: Any, command: str, place: tuple[str, str | None] | None
) -> dict[str, Any]:
    """place: device and precision of what is run; None: report what is there."""
    from atlas_memory.experiments.runner import finished, missing, run, write_report

    if place is None:
        return write_report(order, finished(order, folder), command, folder)
    folder.prepare()
    try:
        with _Shown(order.cells(), missing(order, folder)) as shown:
            results = run(order, folder, shown, *place)
        return write_report(order, results, command, folder)
    except KeyboardInterrupt:
        print(f"stopped; go on with: {command}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    except OSError as error:
        print(f"atlas: {error}; repair it, then go on with: {command}", file=sys.stderr)
        raise typer.Exit(1) from error


def _show(order: Any, folder: Any, report: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(report))
        return
    _print(report)
    if report["missing"]:
        print(f"\n{report['missing']} of {len(order.cells())} cells are missing")
    print(f"\n{folder.path / order.experiment.name}.json, .png")


def _print(report: dict[str, Any]) -> None:
    """The table, its notes and the deviations."""
    table = report["table"]
    rows = [list(map(str, table["columns"])), *([_word(x) for x in row] for row in table["rows"])]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print(report["question"], end="\n\n")
    for row in rows:
        cells = [word.ljust(width) for word, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip())
    for note in table["notes"]:
        print(f"\n{note}")
    for sentence in report["deviations"]:
        print(f"\ndeviation: {sentence}")


def _word(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _time_left(mean: float | None, cells: int) -> str:
    """Nothing before the first cell is done, and nothing where it is less than a second."""
    if mean is None or mean * cells < 1:
        return ""
    from atlas_memory.training.callbacks import clock

    return f"about {clock(mean * cells)} left  "


class _Shown:
    """Cells done, time left and what runs now, on stderr: a bar, or lines in a file."""

    def __init__(self, cells: Sequence[Any], left: Sequence[Any]) -> None:
        self.all, self.done, self.left = len(cells), len(cells) - len(left), len(left)
        self.seconds: list[float] = []
        self.said = time.monotonic()
        self.now = ""
        self.bar: Progress | None = None

    def __enter__(self) -> _Shown:
        if sys.stderr.isatty():
            self._open_bar()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def _open_bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
        self.bar = Progress(*columns, console=Console(stderr=True))
        self.task = self.bar.add_task("", total=self.all, completed=self.done)
        self.bar.start()

    def begin(self, cell: Any) -> None:
        plain = [f"{k}={v}" for k, v in vars(cell).items() if isinstance(v, str | int | float)]
        self.now = " ".join(plain[:6])
        self._show("", force=self.bar is not None)

    def say(self, text: str) -> None:
        self._show(text, force=self.bar is not None)

    def end(self, result: Result[Any]) -> None:
        self.done, self.left = self.done + 1, self.left - 1
        self.seconds.append(result.seconds)
        self._show(f"done in {result.seconds:.1f} s", force=self.bar is not None or not self.left)

    def _show(self, text: str, force: bool) -> None:
        if not force and time.monotonic() - self.said < IN_A_FILE:
            return
        self.said = time.monotonic()
        mean = sum(self.seconds) / len(self.seconds) if self.seconds else None
        time_left = _time_left(mean, self.left)
        if self.bar is not None:
            self.bar.update(
                self.task, completed=self.done, description=f"{time_left}{self.now} {text}"
            )
        else:
            line = f"{self.done}/{self.all} cells  {time_left}{self.now}  {text}"
            print(line, file=sys.stderr, flush=True)
