"""MQAR: how much is recalled for how many bytes of state. [Atlas Fig. 7]"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from atlas_memory.experiments.experiment import Experiment, Result, Seeded, Table, Workspace
from atlas_memory.family import VARIANTS
from atlas_memory.layers.shapes_only import num_parameters
from atlas_memory.tasks.mqar import IGNORED, MQAR

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

DATA_SEED = 123
PIECE = 32  # test sequences at a time

# accuracy at (T, N) = (512, 64) for d = 64, 128, 256, 512: read off DeltaNet's figure
DELTANET_FIGURE = {
    "deltanet": (1.0, 1.0, 1.0, 1.0),
    "mamba": (0.81, 1.0, 1.0, 1.0),
    "gla": (0.22, 0.95, 1.0, 1.0),
    "retnet": (0.05, 0.87, 0.96, 0.97),
}
# (state bytes, accuracy) of the published mixture: read off Zoology's figure
ZOOLOGY_FIGURE = {
    "deltanet": ((8.9e3, 0.793), (34e3, 0.963), (134e3, 0.995)),
    "gated_deltanet": ((17e3, 0.890), (67e3, 0.988), (260e3, 0.994), (1e6, 1.0)),
    "gla": ((4.8e3, 0.532), (17.9e3, 0.771), (68e3, 0.950)),
    "rwkv7": ((17e3, 0.816), (132e3, 0.914), (1.04e6, 0.980)),
    "mamba2": ((8.2e3, 0.520), (16e3, 0.689), (33e3, 0.784), (65e3, 0.832), (98e3, 0.844)),
    "mamba": ((16e3, 0.70), (24e3, 0.697), (49e3, 0.758), (98e3, 0.85)),
    "swa": ((34e3, 0.310), (67e3, 0.514), (132e3, 0.656), (262e3, 0.797), (524e3, 0.936)),
}

MIXTURE = [[100_000, 64, 4], [20_000, 128, 8], [20_000, 256, 16], [20_000, 256, 32]]
MIXTURE += [[20_000, 256, 64]]
TESTS = [[1_000, 64, 4], [1_000, 64, 8], [1_000, 64, 16], [1_000, 128, 32], [1_000, 256, 64]]
TESTS += [[1_000, 512, 128], [1_000, 1024, 256]]


@dataclass(frozen=True, kw_only=True)
class Training:
    """train, test: [examples, length, pairs] of each kind of sequence."""

    vocabulary: int = 8_192
    random_fillers: bool = True
    train: list[list[int]] = field(default_factory=lambda: MIXTURE)
    test: list[list[int]] = field(default_factory=lambda: TESTS)
    heads: int = 2
    designed_heads: str = "all"
    expansion: int = 4
    base_conv: bool = True
    decay: float = 0.1
    epochs: int = 32
    batch: int = 256
    stop_at: float | None = None
    warmup: int = 0


@dataclass(frozen=True, kw_only=True)
class Settings(Training):
    """widths: of a variant's models; "" is for all others."""

    widths: dict[str, list[int]] = field(default_factory=lambda: {"": [64, 128, 256]})
    rates: list[float] = field(default_factory=lambda: [1e-3, 3.16e-3, 1e-2, 3.16e-2])


@dataclass(frozen=True, kw_only=True)
class Cell(Seeded, Training):
    dim: int
    rate: float


PAPER = Settings()
SMALL = Settings(
    vocabulary=128,
    random_fillers=False,
    train=[[9_600, 64, 8]],
    test=[[256, 64, 8]],
    # phi_2 of a head of 16 has 153 features: their width 32 costs what the others' 128 does
    widths={"": [16, 32, 64], "omeganet": [16, 32], "atlas": [16, 32]},
    expansion=1,
    base_conv=False,
    rates=[3e-3, 1e-2],
    epochs=1,
    batch=32,
    stop_at=0.99,
    warmup=20,
)
PRESETS = {
    "smoke": replace(
        SMALL,
        vocabulary=32,
        train=[[32, 32, 4]],
        test=[[8, 32, 4], [8, 24, 2]],
        widths={"": [8]},
        rates=[1e-2],
        base_conv=True,
        batch=16,
    ),
    "small": SMALL,
    # More pairs than a head has numbers: what the hidden width is for.
    "crowded": replace(
        SMALL,
        vocabulary=256,
        train=[[16_000, 128, 32]],
        test=[[256, 128, 32]],
        widths={"": [32]},
        expansion=2,
        rates=[6e-3],
    ),
    "deltanet": Settings(
        random_fillers=False,
        train=[[100_000, 512, 64]],
        test=[[3_000, 512, 64]],
        widths={"": [64, 128, 256, 512]},
        base_conv=False,
        rates=[1e-4, 4.64e-4, 2.15e-3, 1e-2],
        epochs=64,
        batch=128,
        stop_at=0.99,
    ),
    "paper": PAPER,
}


def cells(settings: Settings, variants: Sequence[str], seeds: int) -> list[Cell]:
    """Narrow models first."""
    widths = settings.widths
    points = {(dim, v) for v in variants for dim in widths.get(v, widths.get("", []))}
    return [
        Cell.of(settings, variant=variant, dim=dim, rate=rate, seed=seed)
        for seed in range(seeds)
        for dim, variant in sorted(points, key=lambda point: (point[0], variants.index(point[1])))
        for rate in settings.rates
    ]


def run(cell: Cell, workspace: Workspace) -> dict[str, Any]:
    """Train one model, and measure what it recalls of each kind of test."""
    import torch

    from atlas_memory.experiments.fit import Rate, asked_loss, fit
    from atlas_memory.experiments.mqar_model import Recaller

    torch.manual_seed(DATA_SEED + cell.seed)
    model = workspace.place(Recaller(cell))
    batches, steps = _batches(cell)
    evaluate_every = max(1, steps // 8 if cell.epochs == 1 else steps)
    fitted = fit(
        model,
        batches,
        steps=steps * cell.epochs,
        rate=Rate(cell.rate, warmup=cell.warmup),
        workspace=workspace,
        weight_decay=cell.decay,
        betas=(0.9, 0.999),
        loss=asked_loss,
        evaluate=lambda: {"accuracy": sum(r := recalls(model, cell)) / len(r)},
        every=evaluate_every,
        stop_at=cell.stop_at,
    )
    model.eval()
    by_test = recalls(model, cell) if fitted.finite else None
    sizes = model.sizes(max(length for _, length, _ in cell.test))
    return {
        "accuracy": fitted.last.get("accuracy"),
        "by_test": by_test,
        "loss": fitted.last.get("loss"),
        "steps": fitted.steps,
        "finite": fitted.finite,
        "history": fitted.history,
        "state_bytes": sizes["state"],
        "memory_bytes": sizes["memory"],
        "parameters": num_parameters(model),
    }


def _task(cell: Cell, length: int, pairs: int) -> MQAR:
    fillers = cell.random_fillers
    return MQAR(cell.vocabulary, length, pairs, random_fillers=fillers)


def _batches(cell: Cell) -> tuple[Any, int]:
    """step -> (ids, targets), and the steps of an epoch.

    Segment by segment in a fixed order, as published: no batch mixes two of them.
    """
    import torch

    size = cell.batch
    counts = [-(-count // size) for count, _, _ in cell.train]
    ends = list(accumulate(counts))

    def batch(step: int) -> tuple[Tensor, Tensor]:
        place = step % ends[-1]
        segment = next(n for n, end in enumerate(ends) if place < end)
        count, length, pairs = cell.train[segment]
        first = (place - ends[segment] + counts[segment]) * size
        seed = (DATA_SEED, cell.seed, 0, segment)
        drawn = _task(cell, length, pairs).draws(min(size, count - first), seed, first)
        return torch.from_numpy(drawn[0]), torch.from_numpy(drawn[1])

    return batch, ends[-1]


def _tests(cell: Cell, segment: int) -> Iterator[tuple[Tensor, Tensor]]:
    import torch

    count, length, pairs = cell.test[segment]
    seed = (DATA_SEED, cell.seed, 1, segment)
    for first in range(0, count, PIECE):
        drawn = _task(cell, length, pairs).draws(min(PIECE, count - first), seed, first)
        yield torch.from_numpy(drawn[0]), torch.from_numpy(drawn[1])


def recalls(model: Any, cell: Cell) -> list[float]:
    """The share of answers that are right, for each kind of test sequence."""
    import torch

    from atlas_memory.experiments.fit import device_of, placed

    shares = []
    with torch.no_grad():
        for segment in range(len(cell.test)):
            right, count = 0, 0
            for pair in _tests(cell, segment):
                ids, targets = placed(pair, device_of(model))
                asked = targets != IGNORED
                said = model.head(model(ids)[asked]).argmax(-1)
                right, count = right + int((said == targets[asked]).sum()), count + int(asked.sum())
            shares.append(right / count)
    return shares


# ---- what is shown ------------------------------------------------------------------------------


def best(results: list[Result[Cell]]) -> dict[tuple[str, int], list[Result[Cell]]]:
    """(variant, width) -> the best rate of every seed."""
    found: dict[tuple[str, int], dict[int, Result[Cell]]] = {}
    for result in results:
        mine = found.setdefault((result.cell.variant, result.cell.dim), {})
        old = mine.get(seed := result.cell.seed)
        if old is None or _accuracy(result) > _accuracy(old):
            mine[seed] = result
    return {point: list(seeds.values()) for point, seeds in found.items()}


def _accuracy(result: Result[Cell]) -> float:
    return result.figures["accuracy"] or 0.0


def _score(seeds: list[Result[Cell]]) -> float:
    return float(np.mean([_accuracy(result) for result in seeds]))


def published(cell: Cell, size: float) -> str | None:
    """What others report for the same training: at this width, or at the nearest size."""
    variant, dims = cell.variant, [64, 128, 256, 512]
    if cell.train == PRESETS["deltanet"].train and cell.dim in dims:
        row = DELTANET_FIGURE.get(variant)
        return None if row is None else f"{row[dims.index(cell.dim)]}"
    if cell.train == MIXTURE and variant in ZOOLOGY_FIGURE:
        near, share = min(ZOOLOGY_FIGURE[variant], key=lambda point: abs(np.log(point[0] / size)))
        return f"{share} at {near / 1000:.1f} KB"
    return None


def table(results: list[Result[Cell]]) -> Table:
    columns = ["model", "width", "memory KB", "state KB", "recall", "by test", "steps", "rate"]
    columns.append("published")
    points = best(results)
    names = list(dict.fromkeys(variant for variant, _ in points))
    rows = []
    for variant, dim in sorted(points, key=lambda point: (names.index(point[0]), point[1])):
        seeds = points[variant, dim]
        first = seeds[0]
        sizes = [first.figures[name] for name in ("memory_bytes", "state_bytes")]
        each = " ".join(f"{share:.2f}" for share in first.figures["by_test"] or [])
        row = [VARIANTS[variant].title, dim, *(round(size / 1000, 1) for size in sizes)]
        row += [round(_score(seeds), 4), each, first.figures["steps"], first.cell.rate]
        row.append(published(first.cell, sizes[0]))
        rows.append(row)
    tests = ", ".join(f"T={t} N={n}" for _, t, n in results[0].cell.test)
    notes = [f"recall: mean over the test sequences ({tests}), best rate, mean over seeds."]
    notes += ["memory: matrices and momentum, or the cache, after the longest test sequence. "]
    notes[-1] += "state: with the pairs of window and open chunk and the short convolutions."
    return Table(columns, rows, notes)


def plot(results: list[Result[Cell]], figure: Figure) -> None:
    """Recall against bytes of memory and of state; dashed: what others published."""
    figure.set_size_inches(10, 4.5)
    left, right = figure.subplots(1, 2, sharey=True)
    points = best(results)
    for variant in dict.fromkeys(variant for variant, _ in points):
        mine = [seeds for (name, _), seeds in sorted(points.items()) if name == variant]
        recall = [_score(seeds) for seeds in mine]
        for axes, count in ((left, "memory_bytes"), (right, "state_bytes")):
            sizes = [seeds[0].figures[count] for seeds in mine]
            (line,) = axes.plot(sizes, recall, "o-", label=VARIANTS[variant].title)
        if mine[0][0].cell.train == MIXTURE and variant in ZOOLOGY_FIGURE:
            x, y = zip(*ZOOLOGY_FIGURE[variant], strict=True)
            left.plot(x, y, "x--", color=line.get_color(), alpha=0.5)
    left.set_xlabel("memory: matrices and momentum, or the cache (bytes)")
    right.set_xlabel("state: all that is carried on (bytes)")
    left.set_ylabel("recall")
    left.set_ylim(-0.02, 1.02)
    left.legend(fontsize=8)
    left.set_xscale("log")
    right.set_xscale("log")


def deviations(settings: Settings) -> list[str]:
    """Where the settings differ from the published protocol."""
    said = [
        "mixers are those of this package: they start as there, have their short convolutions "
        "and (attention) rotary positions; no dropout; gradients are clipped at 1",
        "Atlas gives no figures for this experiment, only a picture",
    ]
    near = PRESETS["deltanet"] if settings.train == PRESETS["deltanet"].train else PAPER
    for name, usual in vars(near).items():
        if (own := getattr(settings, name)) != usual:
            said.append(f"{name} is {own}, published {usual}")
    return said


EXPERIMENT = Experiment(
    "mqar",
    "How much does a memory recall for its size? The paper says Atlas recalls most per "
    "byte of state (Figure 7); measured: multi-query associative recall against state bytes.",
    PRESETS,
    (
        "attention",
        "linear_attention",
        "mamba2",
        "deltanet",
        "gated_deltanet",
        "titans",
        "omeganet",
        "atlas",
    ),
    *(cells, run, table, plot, deviations),
)
