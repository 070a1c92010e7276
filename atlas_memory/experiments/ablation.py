"""Ablation: every part of Atlas taken away or replaced, on language.   [Atlas Table 6]"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from atlas_memory.experiments.experiment import Experiment, Result, Table
from atlas_memory.experiments.language_model import SMOKE_TEXT, Text, published_text
from atlas_memory.experiments.text_models import SECOND, TextCell, fitting, second, train_and_score

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Row -> variant, and the one change of its configuration that the row is about.
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "Atlas": ("atlas", {}),
    "+ gated MLP memory": ("atlas_plus", {}),
    "+ attention (MAG)": ("atlas_mag", {}),
    "+ attention (MAL)": ("atlas_mal", {}),
    # Muon orthogonalizes hidden matrices, and a linear memory has none.
    "linear memory": (
        "atlas",
        {
            "memory.architecture": {"name": "matrix"},
            "memory.optimizer": {"name": "gradient_descent"},
        },
    ),
    # This is OmegaNet.
    "w/o Muon": ("atlas", {"memory.optimizer": {"name": "gradient_descent"}}),
    "c = 1": ("atlas", {"memory.window": 1}),
    "w/o polynomial mapping": ("atlas", {"memory.features": {"name": "identity"}}),
    # What the paper's table does not have: the output matrix written from the chunk's start, and
    # models to stand beside.
    "w/o exact output": (
        "atlas",
        {
            "memory.output": "chunk",
            "memory.bias": {"name": "huber"},
            "memory.architecture.normalize": False,
        },
    ),
    # Mamba-2's D x: what the token itself says, whatever the memory answers.
    "+ value path": ("atlas", {"value_path": True}),
    "Titans": ("titans", {}),
    "Titans--": ("titans_minus", {}),
    "Gated DeltaNet": ("gated_deltanet", {}),
    "Gated DeltaNet + value path": ("gated_deltanet", {"value_path": True}),
    "Transformer++": ("transformer_plus", {}),
}
# Perplexity (the mean of WikiText's and LAMBADA's) and common-sense accuracy at 760M.
PUBLISHED = {
    "Atlas": (19.97, 52.77),
    "+ gated MLP memory": (19.53, 53.09),
    "+ attention (MAG)": (19.90, 53.08),
    "+ attention (MAL)": (20.26, 52.63),
    "linear memory": (21.03, 49.74),
    "w/o Muon": (19.65, 52.56),
    "c = 1": (21.98, 49.26),
    "w/o polynomial mapping": (22.14, 50.57),
}


@dataclass(frozen=True, kw_only=True)
class Settings(Text):
    length: int
    batch: int


@dataclass(frozen=True, kw_only=True)
class Cell(TextCell):
    row: str


def _shape(width: int, layers: int, heads: int) -> dict[str, Any]:
    return {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}


PRESETS = {
    "smoke": Settings(
        **SMOKE_TEXT,
        changes=_shape(16, 1, 2) | {"memory.architecture.expansion": 1},
        length=32,
        batch=2,
    ),
    # Heads of 8 hold eight pairs: at this width it is the feed-forward networks that are compared.
    "narrow": Settings(
        changes=_shape(64, 2, 8)
        | {
            "memory.architecture.expansion": 1,
            "memory.chunk": 64,
            "memory.optimizer.period": 64,
        },
        length=256,
        batch=8,
    ),
    "small": Settings(changes=_shape(64, 2, 2), parameters=250_000, length=512, batch=4),
    # The paper's Muon steps at every token.
    "paper": Settings(**published_text("760m"), changes={"memory.optimizer.period": 1}),
}


def cells(settings: Settings, variants: Sequence[str], seeds: int) -> list[Cell]:
    found = []
    for seed, row in product(range(seeds), variants):
        variant, own = ROWS[row]
        changes = {**fitting(variant, settings.changes), **own}
        found.append(Cell.of(settings, row=row, variant=variant, changes=changes, seed=seed))
    return found


def bits_by_row(results: list[Result[Cell]]) -> dict[str, list[float]]:
    """Bits of every seed that stayed finite."""
    found: dict[str, list[float]] = {}
    for r in results:
        bits = found.setdefault(r.cell.row, [])
        if r.figures["bits"] is not None:
            bits.append(r.figures["bits"])
    return found


def _published(row: str) -> list[str | None]:
    if row not in PUBLISHED:
        return [None, None, None]
    perplexity, accuracy = PUBLISHED[row]
    return [f"{perplexity:.2f}", f"{perplexity - PUBLISHED['Atlas'][0]:+.2f}", f"{accuracy:.2f}"]


def table(results: list[Result[Cell]]) -> Table:
    found = bits_by_row(results)
    atlas = mean(found["Atlas"]) if found.get("Atlas") else None
    rows = []
    for row, bits in found.items():
        average = mean(bits) if bits else None
        behind = None if average is None or atlas is None else f"{average - atlas:+.3f}"
        spread = f"{stdev(bits):.3f}" if len(bits) > 1 else None
        own = [r for r in results if r.cell.row == row]
        again = second(own)
        rows.append(
            [
                row,
                None if average is None else f"{average:.3f}",
                spread,
                behind,
                None if again is None else f"{again:.3f}",
                own[0].figures["parameters"],
                *_published(row),
            ]
        )
    return Table(
        (
            "row",
            "bits per byte",
            "spread of seeds",
            "to Atlas",
            SECOND,
            "parameters",
            "paper: ppl",
            "paper: to Atlas",
            "paper: acc",
        ),
        rows,
        ("The paper's perplexity is the mean of WikiText's and LAMBADA's at 760M.",),
    )


def plot(results: list[Result[Cell]], figure: Figure) -> None:
    """Differences to Atlas: ours in bits per byte, the paper's in perplexity."""
    figure.set_size_inches(10, 4)
    ours, theirs = figure.subplots(1, 2, sharey=True)
    found = {row: mean(bits) for row, bits in bits_by_row(results).items() if bits}
    names = list(found)
    if "Atlas" in found:
        ours.barh(names, [found[row] - found["Atlas"] for row in names], color="C0")
    known = [row for row in names if row in PUBLISHED]
    theirs.barh(known, [PUBLISHED[r][0] - PUBLISHED["Atlas"][0] for r in known], color="C1")
    ours.set(xlabel="bits per byte more than Atlas", title="here")
    theirs.set(xlabel="perplexity more than Atlas", title="paper, 760M")
    ours.invert_yaxis()


def deviations(settings: Settings) -> list[str]:
    tokens = settings.steps * settings.batch * settings.length
    return [
        f"{settings.size} models of about {settings.parameters or 760_000_000:,} parameters, "
        f"{tokens:,} tokens of {settings.data} at length {settings.length}; "
        "the paper: 760M, 30B tokens of FineWeb at length 4096",
        f"tokenizer {settings.tokenizer} and bits per byte instead of T5's 32K vocabulary and "
        "perplexity; no common-sense tasks",
        "Muon steps once a chunk unless memory.optimizer.period is 1",
    ]


EXPERIMENT = Experiment(
    "ablation",
    (
        "Does every part of Atlas contribute: gated MLP and attention help, a linear memory, "
        "c = 1 and no polynomial hurt?"
    ),
    *(PRESETS, tuple(ROWS), cells, train_and_score, table, plot, deviations),
    choices=tuple(ROWS),
)
