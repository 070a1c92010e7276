"""Scaling with the training context and with compute, L = a C^-b.   [Atlas Fig. 8]"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import linear_regression, mean
from typing import TYPE_CHECKING, Any

from atlas_memory.experiments.experiment import Experiment, Result, Table
from atlas_memory.experiments.language_model import published_text
from atlas_memory.experiments.text_models import TextCell, train_and_score
from atlas_memory.family import VARIANTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _tiny(hidden: int, heads: int, layers: int, parameters: int, steps: int) -> dict[str, Any]:
    return {
        "size": "tiny",
        "model": {
            "hidden_size": hidden,
            "num_attention_heads": heads,
            "num_hidden_layers": layers,
            "expansion": 1,
        },
        "parameters": parameters,
        "steps": steps,
        "learning_rate": 4e-3,
    }


def _published(size: str) -> dict[str, Any]:
    own = ("size", "parameters", "steps", "learning_rate")
    return {"model": {}, **{name: published_text(size)[name] for name in own}}


SHARED = ("length", "data", "tokenizer", "warmup", "validation_tokens")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """context: lengths at one shape. compute: shapes at one length."""

    lengths: list[int]
    shape: dict[str, Any]
    length: int
    shapes: list[dict[str, Any]]
    tokens_a_step: int
    data: str
    warmup: int
    validation_tokens: int
    tokenizer: str = "bytes"


@dataclass(frozen=True, kw_only=True)
class Cell(TextCell):
    kind: str


PRESETS = {
    "smoke": Settings(
        lengths=[16, 32],
        shape=_tiny(16, 2, 1, 20_000, 2),
        length=32,
        shapes=[_tiny(16, 2, 1, 20_000, 2), _tiny(32, 4, 1, 60_000, 3)],
        data="python",
        tokens_a_step=64,
        warmup=1,
        validation_tokens=256,
    ),
    "small": Settings(
        lengths=[256, 1024, 4096],
        shape=_tiny(64, 2, 2, 200_000, 100),
        length=512,
        shapes=[
            _tiny(32, 1, 2, 60_000, 60),
            _tiny(64, 2, 2, 200_000, 120),
            _tiny(96, 3, 2, 400_000, 200),
        ],
        data="enwik8",
        tokens_a_step=2048,
        warmup=20,
        validation_tokens=65_536,
    ),
    "paper": Settings(
        lengths=[2048, 4096, 8192, 16_384, 32_768],
        shape=_published("760m"),
        shapes=[_published(size) for size in ("170m", "340m", "760m", "1.3b")],
        tokens_a_step=524_288,
        **{name: published_text("760m")[name] for name in SHARED},
    ),
}


def cells(settings: Settings, variants: Sequence[str], seeds: int) -> list[Cell]:
    return [
        Cell.of(
            settings,
            kind=kind,
            variant=variant,
            length=length,
            batch=max(1, settings.tokens_a_step // length),
            **{name: value for name, value in shape.items() if name != "model"},
            changes=_changes(variant, shape["model"]),
            seed=seed,
        )
        for seed, variant in product(range(seeds), variants)
        for kind, length, shape in _runs(settings)
    ]


def _runs(settings: Settings) -> Iterator[tuple[str, int, dict[str, Any]]]:
    for length in settings.lengths:
        yield "context", length, settings.shape
    for shape in settings.shapes:
        yield "compute", settings.length, shape


def _changes(variant: str, model: dict[str, Any]) -> dict[str, Any]:
    """The outer shape, and the expansion of the memory where it has a hidden layer."""
    changes = {name: value for name, value in model.items() if name != "expansion"}
    memory = VARIANTS[variant].memory
    if "expansion" in model and memory is not None and memory.architecture.deep:
        changes["memory.architecture.expansion"] = model["expansion"]
    return changes


def fit_power(points: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """(a, b) of L = a C^-b by least squares of the logarithms; None for less than two points."""
    if len({c for c, _ in points}) < 2:
        return None
    slope, intercept = linear_regression(
        [math.log(c) for c, _ in points], [math.log(loss) for _, loss in points]
    )
    return math.exp(intercept), -slope


def finite(results: list[Result[Cell]], kind: str, variant: str) -> list[Result[Cell]]:
    mine = [r for r in results if r.cell.kind == kind and r.cell.variant == variant]
    return [r for r in mine if r.figures["bits"] is not None]


def table(results: list[Result[Cell]]) -> Table:
    rows = [*_rows(results)]
    return Table(
        ("variant", "against", "bits per byte", "fit"),
        rows,
        ("Paper (figures, no numbers): Atlas and OmegaNet below the baselines at every scale.",),
    )


def _rows(results: list[Result[Cell]]) -> Iterator[list[Any]]:
    for variant in dict.fromkeys(r.cell.variant for r in results):
        by_length: dict[int, list[float]] = {}
        for r in finite(results, "context", variant):
            by_length.setdefault(r.cell.length, []).append(r.figures["bits"])
        shown = [f"{n}: {mean(bits):.3f}" for n, bits in by_length.items()]
        yield [variant, "context length", ", ".join(shown), None]
        points = [
            (r.figures["flops"], r.figures["bits"]) for r in finite(results, "compute", variant)
        ]
        power = fit_power(points)
        shown = [f"{flops:.1e}: {bits:.3f}" for flops, bits in sorted(points)]
        law = None if power is None else f"L = {power[0]:.3g} C^-{power[1]:.3f}"
        yield [variant, "FLOPs", ", ".join(shown), law]


def plot(results: list[Result[Cell]], figure: Figure) -> None:
    figure.set_size_inches(10, 4)
    context, compute = figure.subplots(1, 2)
    for n, variant in enumerate(dict.fromkeys(r.cell.variant for r in results)):
        style = {"color": f"C{n}", "label": variant}
        mine = finite(results, "context", variant)
        points = sorted((r.cell.length, r.figures["bits"]) for r in mine)
        context.plot([x for x, _ in points], [y for _, y in points], "o-", **style)
        mine = finite(results, "compute", variant)
        points = sorted((r.figures["flops"], r.figures["bits"]) for r in mine)
        compute.plot([x for x, _ in points], [y for _, y in points], "o", **style)
        if power := fit_power(points):
            xs = [points[0][0], points[-1][0]]
            compute.plot(xs, [power[0] * x ** -power[1] for x in xs], "--", color=f"C{n}", lw=1)
    context.set_xscale("log", base=2)
    context.set(xlabel="training context", ylabel="validation bits per byte")
    compute.set(xlabel="training FLOPs of matrix products")
    if any(r.cell.kind == "compute" for r in results):  # nothing has no logarithm
        compute.set(xscale="log", yscale="log")
    context.legend(fontsize=8)


def deviations(settings: Settings) -> list[str]:
    largest = [settings.shape, *settings.shapes][-1]
    return [
        f"models up to {largest['parameters'] or largest['size']} parameters on "
        f"{settings.data}; the paper: up to 1.3B on FineWeb, and no numbers",
        "FLOPs are those of the matrix products that were run, counted in one training step",
        "every point is a run of its own, with a schedule of its own length",
    ]


EXPERIMENT = Experiment(
    "scaling",
    (
        "Do Atlas and OmegaNet stay below the baselines as the training context and the compute "
        "grow?"
    ),
    PRESETS,
    ("atlas", "omeganet", "titans", "gated_deltanet", "transformer_plus"),
    *(cells, train_and_score, table, plot, deviations),
)
