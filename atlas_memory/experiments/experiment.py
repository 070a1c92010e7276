"""What an experiment is: a question, its settings, and independent pieces of work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = dict[str, Any]
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Result:
    """A cell, its figures (plain JSON; what is not finite is None), and how long it took."""

    cell: Cell
    figures: dict[str, Any]
    seconds: float = 0.0


@dataclass(frozen=True)
class Table:
    """Rows of text and numbers; None is shown as a dash. Notes are sentences below it."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Workspace:
    """say: progress inside a cell. folder: the cell's own, kept until the cell is finished."""

    folder: Path
    say: Callable[[str], None]


def _none(settings: Settings) -> list[str]:
    return []


@dataclass(frozen=True)
class Experiment:
    """One command: what is asked, what is run for it, and how it is shown.

    presets: settings by name, plain JSON. variants: the default of --variants; `choices` are the
    names it may have (empty: every variant of the package). cells(settings, variants, seeds)
    gives the pieces of work; run(cell, workspace) makes one, and is pure: same cell, same
    figures. deviations(settings): sentences on how the settings differ from what was published.
    """

    name: str
    question: str
    presets: Mapping[str, Settings]
    variants: tuple[str, ...]
    cells: Callable[[Settings, Sequence[str], int], list[Cell]]
    run: Callable[[Cell, Workspace], dict[str, Any]]
    table: Callable[[list[Result]], Table]
    plot: Callable[[list[Result], Figure], None]
    deviations: Callable[[Settings], list[str]] = field(default=_none)
    choices: tuple[str, ...] = ()
