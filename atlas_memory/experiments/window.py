"""Effect of the window c of OmegaNet, for several lengths of the context.   [Atlas Fig. 5]"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import mean
from typing import TYPE_CHECKING, Any

from atlas_memory.experiments.experiment import Experiment, Result, Table
from atlas_memory.experiments.language_model import SMOKE_TEXT, Text, published_text
from atlas_memory.experiments.text_models import SECOND, TextCell, second, train_and_score

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Heads of 8 would hold eight pairs, and it is their feed-forward networks that are compared.
_SHAPE = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "memory.architecture.expansion": 2,
}


@dataclass(frozen=True, kw_only=True)
class Settings(Text):
    windows: list[int]
    lengths: list[int]
    tokens_a_step: int


@dataclass(frozen=True, kw_only=True)
class Cell(TextCell):
    window: int


def _paper() -> Settings:
    published = published_text("340m")
    lengths = [1024, 2048, 4096, 8192]
    tokens = published.pop("batch") * published.pop("length")
    return Settings(
        **published, windows=[1, 2, 4, 8, 16, 32, 64], lengths=lengths, tokens_a_step=tokens
    )


PRESETS = {
    "smoke": Settings(
        **SMOKE_TEXT,
        windows=[1, 4],
        lengths=[16, 32],
        changes={**_SHAPE, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
        tokens_a_step=64,
    ),
    "small": Settings(
        windows=[1, 2, 4, 8, 16],
        lengths=[512, 1024],
        changes={**_SHAPE, "memory.chunk": 64},
        tokens_a_step=2048,
        steps=200,
    ),
    "paper": _paper(),
}


def cells(settings: Settings, variants: Sequence[str], seeds: int) -> list[Cell]:
    sweep = product(range(seeds), variants, settings.lengths, settings.windows)
    return [
        Cell.of(
            settings,
            variant=variant,
            window=window,
            length=length,
            changes={**settings.changes, "memory.window": window},
            batch=max(1, settings.tokens_a_step // length),
            seed=seed,
        )
        for seed, variant, length, window in sweep
    ]


def grouped(results: list[Result[Cell]]) -> dict[tuple[str, int], dict[int, list[Result[Cell]]]]:
    """(variant, length) -> window -> results whose training stayed finite."""
    found: dict[tuple[str, int], dict[int, list[Result[Cell]]]] = {}
    for r in results:
        by_window = found.setdefault((r.cell.variant, r.cell.length), {})
        if r.figures["bits"] is not None:
            by_window.setdefault(r.cell.window, []).append(r)
    return found


def table(results: list[Result[Cell]]) -> Table:
    windows = sorted({r.cell.window for r in results})
    rows: list[list[Any]] = []
    for (variant, length), by_window in grouped(results).items():
        bits = {c: mean(r.figures["bits"] for r in group) for c, group in by_window.items()}
        ends = {c: mean(r.figures["by_position"][-1] for r in g) for c, g in by_window.items()}
        again = {c: share for c, group in by_window.items() if (share := second(group)) is not None}
        rows.append([variant, length, "all positions", *(_shown(bits, c) for c in windows)])
        rows.append([variant, length, "last positions", *(_shown(ends, c) for c in windows)])
        rows.append([variant, length, SECOND, *(_shown(again, c) for c in windows)])
    return Table(
        ("variant", "context", "bits per byte at", *(f"c = {c}" for c in windows)),
        rows,
        ("Paper (a figure without numbers): the larger c, the better, at every context length.",),
    )


def _shown(bits: dict[int, float], c: int) -> str | None:
    return f"{bits[c]:.3f}" if c in bits else None


def plot(results: list[Result[Cell]], figure: Figure) -> None:
    figure.set_size_inches(6, 4)
    ax = figure.subplots()
    for (variant, length), by_window in grouped(results).items():
        points = sorted((c, r.figures["bits"]) for c, group in by_window.items() for r in group)
        ax.plot([c for c, _ in points], [b for _, b in points], ".", color="0.7", ms=3)
        xs = sorted(by_window)
        ys = [mean(r.figures["bits"] for r in by_window[c]) for c in xs]
        ax.plot(xs, ys, "o-", label=f"{variant}, context {length}")
    ax.set_xscale("log", base=2)
    ax.set(xlabel="local context c", ylabel="validation bits per byte")
    ax.legend(fontsize=8)


def deviations(settings: Settings) -> list[str]:
    tokens = settings.steps * settings.tokens_a_step
    return [
        "not published, and chosen here: the model's size, the windows and the context lengths",
        f"{settings.size} models of about {settings.parameters or 340_000_000:,} parameters, "
        f"{tokens:,} tokens of {settings.data} each, whatever the context length",
    ]


EXPERIMENT = Experiment(
    "window",
    "Does a larger local context c of the Omega rule help, at every context length?",
    *(PRESETS, ("omeganet",), cells, train_and_score, table, plot, deviations),
    choices=("omeganet", "atlas", "atlas_plus", "swla", "titans_minus", "titans"),
)
