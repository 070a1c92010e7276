"""Run an experiment's cells one after another: what is finished is never run again.

OUT/cells/<digest>.json    one finished cell; written under another name, then renamed
OUT/scratch/<digest>/      what an unfinished cell keeps for itself
OUT/NAME.json, NAME.png    everything, once all cells are finished
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from atlas_memory.experiments.experiment import Experiment, Result, Table, Workspace
from atlas_memory.family import VARIANTS
from atlas_memory.files import whole, write_whole
from atlas_memory.names import suggest


class Progress(Protocol):
    """Told what happens; the command line shows it."""

    def begin(self, cell: Any) -> None: ...
    def say(self, text: str) -> None: ...
    def end(self, result: Result[Any]) -> None: ...


@dataclass(frozen=True)
class Order:
    """What was asked for, checked. `settings` are the preset's with the changes."""

    experiment: Experiment
    preset: str
    settings: Any
    variants: tuple[str, ...]
    seeds: int

    def cells(self) -> Sequence[Any]:
        return self.experiment.cells(self.settings, self.variants, self.seeds)


def order(
    experiment: Experiment,
    preset: str,
    variants: Sequence[str] | None = None,
    seeds: int = 1,
    changes: Mapping[str, Any] | None = None,
) -> Order:
    """Check what the user asked for; every mistake is one sentence."""
    if preset not in experiment.presets:
        known = suggest(preset, list(experiment.presets))
        raise ValueError(f"unknown preset {preset!r} of {experiment.name}; {known}")
    if seeds < 1:
        raise ValueError(f"--seeds {seeds}: there must be at least one")
    usual = vars(experiment.presets[preset])
    for name, value in (changes or {}).items():
        if name not in usual:
            raise ValueError(f"unknown setting {name!r}; {suggest(name, list(usual))}")
        if not _alike(value, usual[name]):
            raise ValueError(f"{name}={value!r}: it must be of the kind of {usual[name]!r}")
    settings = replace(experiment.presets[preset], **(changes or {}))
    chosen = Order(experiment, preset, settings, _variants(experiment, variants), seeds)
    if not chosen.cells():
        raise ValueError(f"these settings of {experiment.name} leave nothing to run")
    return chosen


def _alike(value: Any, usual: Any) -> bool:
    """A number for a number, a list for a list; where either is null all is well."""
    if value is None or usual is None:
        return True
    if isinstance(usual, bool) or isinstance(value, bool):
        return type(value) is type(usual)
    if isinstance(usual, int | float):
        return isinstance(value, int | float)
    kinds = [kind for kind in (str, list | tuple, Mapping) if isinstance(usual, kind)]
    return all(isinstance(value, kind) for kind in kinds)


def _variants(experiment: Experiment, given: Sequence[str] | None) -> tuple[str, ...]:
    if given is None:
        return experiment.variants
    if not experiment.variants:
        raise ValueError(f"{experiment.name} compares no variants; leave --variants out")
    choices = experiment.choices or tuple(VARIANTS)
    for name in given:
        if name not in choices:
            raise ValueError(f"unknown variant {name!r}; {suggest(name, list(choices))}")
    if not given:
        raise ValueError("--variants is empty; give names with commas between them")
    return tuple(dict.fromkeys(given))


def digest(cell: Any) -> str:
    """The name of a cell's file: a digest of its sorted JSON."""
    return sha256(json.dumps(_plain(cell), sort_keys=True).encode()).hexdigest()[:20]


@dataclass(frozen=True)
class Folder:
    """Where the results are kept."""

    path: Path

    def prepare(self) -> None:
        try:
            (self.path / "cells").mkdir(parents=True, exist_ok=True)
            trial = self.path / f".writable-{os.getpid()}"
            trial.write_text("")
            trial.unlink()
        except OSError as error:
            raise ValueError(f"cannot write to {self.path}: {error.strerror}") from error

    def result(self, cell: Any) -> Result[Any] | None:
        """The stored result; None if there is none, or if its file is damaged."""
        try:
            stored = json.loads(self._file(cell).read_text())
            found = Result(cell, stored["figures"], stored["seconds"])
            whole = isinstance(found.figures, dict) and stored["cell"] == _plain(cell)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return found if whole else None

    def keep(self, result: Result[Any]) -> None:
        write_whole(self._file(result.cell), json.dumps(asdict(result), indent=1) + "\n")
        shutil.rmtree(self.scratch(result.cell), ignore_errors=True)

    def scratch(self, cell: Any) -> Path:
        return self.path / "scratch" / digest(cell)

    def _file(self, cell: Any) -> Path:
        return self.path / "cells" / f"{digest(cell)}.json"


def missing(order: Order, folder: Folder) -> list[Any]:
    return [cell for cell in order.cells() if folder.result(cell) is None]


def run(
    order: Order,
    folder: Folder,
    progress: Progress,
    device: str = "cpu",
    precision: str | None = None,
) -> list[Result[Any]]:
    """All results, in the order of the cells; only those that are missing are made."""
    folder.prepare()
    results = []
    for cell in order.cells():
        result = folder.result(cell)
        if result is None:
            progress.begin(cell)
            workspace = Workspace(folder.scratch(cell), progress.say, device, precision)
            result = _make(order.experiment.run, cell, workspace)
            folder.keep(result)
            progress.end(result)
        results.append(result)
    return results


def finished(order: Order, folder: Folder) -> list[Result[Any]]:
    """The results there are so far."""
    found = [result for cell in order.cells() if (result := folder.result(cell)) is not None]
    if not found:
        raise ValueError(f"{folder.path} has no finished cell of {order.experiment.name} yet")
    return found


def _make(
    run: Callable[[Any, Workspace], dict[str, Any]], cell: Any, workspace: Workspace
) -> Result[Any]:
    workspace.folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    figures = run(cell, workspace)
    return Result(cell, _plain(figures), round(time.monotonic() - began, 3))


def _plain(value: Any) -> Any:
    """As it comes back from a file: tuples are lists, what is not finite is None."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return json.loads(json.dumps(value))


def report(order: Order, results: list[Result[Any]], command: str) -> dict[str, Any]:
    """Everything about a finished experiment, as plain data."""
    from atlas_memory.training.run_folder import environment

    table: Table = order.experiment.table(results)
    machine = environment(0)
    return {
        "name": order.experiment.name,
        "question": order.experiment.question,
        "preset": order.preset,
        "settings": _plain(order.settings),
        "variants": list(order.variants),
        "seeds": order.seeds,
        "command": command,
        "versions": {k: v for k, v in machine.items() if k not in ("command", "seed")},
        "deviations": order.experiment.deviations(order.settings),
        "table": _plain(asdict(table)),
        "seconds": round(sum(result.seconds for result in results), 1),
        "missing": len(order.cells()) - len(results),
        "results": [asdict(result) for result in results],
    }


def write_report(
    order: Order, results: list[Result[Any]], command: str, folder: Folder
) -> dict[str, Any]:
    """OUT/NAME.json and OUT/NAME.png; what the JSON holds is returned."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown, name = report(order, results, command), order.experiment.name
    write_whole(folder.path / f"{name}.json", json.dumps(shown, indent=1) + "\n")
    figure = Figure(layout="constrained")
    FigureCanvasAgg(figure)
    order.experiment.plot(results, figure)
    with whole(folder.path / f"{name}.png") as draft:
        figure.savefig(draft, dpi=120, format="png")
    return shown
