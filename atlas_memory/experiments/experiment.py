"""What an experiment is: a question, its settings, and independent pieces of work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A cell, whose fields are plain JSON."""

    @classmethod
    def of(cls, settings: Any, /, **own: Any) -> Self:
        """With values of its own, and for its other fields those of the settings."""
        shared = {f.name: getattr(settings, f.name) for f in fields(cls) if f.name not in own}
        return cls(**shared, **own)


@dataclass(frozen=True, kw_only=True)
class Seeded(Piece):
    """What most cells are: a variant, and the seed of its numbers."""

    variant: str
    seed: int


Cell = TypeVar("Cell")
Model = TypeVar("Model", bound="nn.Module")


@dataclass(frozen=True)
class Result(Generic[Cell]):
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
    """say: progress inside a cell. folder: the cell's own, kept until the cell is finished.

    device: where models are trained. precision: of their arithmetic under autocast; None: as the
    experiment has it.
    """

    folder: Path
    say: Callable[[str], None]
    device: str = "cpu"
    precision: str | None = None

    def place(self, model: Model) -> Model:
        return model.to(self.device)


def _none(settings: Any) -> list[str]:
    return []


@dataclass(frozen=True)
class Experiment:
    """One command: what is asked, what is run for it, and how it is shown.

    presets: settings by name. variants: the default of --variants; `choices` are the names it may
    have (empty: every variant of the package). cells(settings, variants, seeds) gives the pieces
    of work; run(cell, workspace) makes one, and is pure: same cell, same figures. Settings and
    cells are frozen dataclasses of plain JSON; the names and values of a cell's fields are what
    it is known by. deviations(settings): how the settings differ from what was published.
    """

    name: str
    question: str
    presets: Mapping[str, Any]
    variants: tuple[str, ...]
    cells: Callable[[Any, Sequence[str], int], Sequence[Any]]
    run: Callable[[Any, Workspace], dict[str, Any]]
    table: Callable[[list[Any]], Table]
    plot: Callable[[list[Any], Figure], None]
    deviations: Callable[[Any], list[str]] = field(default=_none)
    choices: tuple[str, ...] = ()
