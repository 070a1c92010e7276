"""Learnability: five functions, four learners, any inner rule.   [Atlas Fig. 6]"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from atlas_memory.experiments.experiment import Experiment, Piece, Result, Table, Workspace
from atlas_memory.experiments.online_learning import (
    MAPPINGS,
    RULES,
    Sizes,
    draw_pairs,
    learn,
    learner,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

BINS = 32  # points of a curve
STANDARD = ("SGD", "RMSprop", "Adam")
OURS = ("Omega 4", "Omega 16", "Muon", "Omega 16 + Muon")

# A group of learners, [hidden layers, expansion], that share a length, rules and rates.
_RATES = {
    "SGD": [0.03, 0.1],
    "RMSprop": [1e-4, 3e-4],
    "Adam": [3e-4, 1e-3],
}
_OUR_RATES = {
    "Omega 4": [0.03, 0.1],
    "Omega 16": [0.01, 0.03],
    "Muon": [0.03, 0.1],
    "Omega 16 + Muon": [0.03, 0.1],
}
_SWEEP = [1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1]


@dataclass(frozen=True, kw_only=True)
class Sequences:
    dim: int = 256
    rank: int = 32
    window: int = 512


@dataclass(frozen=True, kw_only=True)
class Settings(Sequences):
    groups: list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Cell(Piece, Sequences):
    mapping: str
    learner: list[int]
    rule: str
    rates: list[float]
    length: int
    seed: int


PRESETS = {
    "smoke": Settings(
        dim=16,
        rank=4,
        window=24,
        groups=[
            {
                "learners": [[2, 1], [2, 4]],
                "length": 64,
                "rates": {"SGD": [0.03], "Adam": [1e-3], "Omega 16 + Muon": [0.03]},
            }
        ],
    ),
    "small": Settings(
        groups=[
            {"learners": [[2, 1], [3, 1]], "length": 1024, "rates": _RATES},
            {
                "learners": [[2, 4], [3, 4]],
                "length": 768,
                "rates": {"SGD": [0.01, 0.03], "RMSprop": [1e-4], "Adam": [3e-4]},
            },
            {"learners": [[2, 1]], "length": 1024, "rates": _OUR_RATES},
        ],
    ),
    "paper": Settings(
        groups=[
            {
                "learners": [[2, 1], [3, 1], [2, 4], [3, 4]],
                "length": 16_384,
                "rates": dict.fromkeys((*STANDARD, *OURS), _SWEEP),
            }
        ],
    ),
}


def cells(settings: Settings, variants: Sequence[str], seeds: int) -> list[Cell]:
    return [
        Cell.of(
            settings,
            mapping=mapping,
            learner=list(learner_),
            rule=rule,
            rates=list(rates),
            length=group["length"],
            seed=seed,
        )
        for seed in range(seeds)
        for group in settings.groups
        for rule, rates in group["rates"].items()
        for learner_, mapping in product(group["learners"], MAPPINGS)
    ]


def run(cell: Cell, workspace: Workspace) -> dict[str, Any]:
    """Every rate of the sweep; the curve is that of the rate with the least final loss."""
    sizes = Sizes(cell.length, cell.dim, cell.rank, cell.window)
    pairs = draw_pairs(cell.mapping, sizes, cell.seed)
    hidden_layers, expansion = cell.learner
    finals, curves = [], []
    for rate in cell.rates:
        weights = learner(cell.dim, hidden_layers, expansion, cell.seed)
        losses = learn(pairs, weights, RULES[cell.rule], rate)
        finals.append(final(losses))
        curves.append(binned(losses))
        workspace.say(f"rate {rate:g}: final loss {finals[-1]:.4f}")
    best = min(range(len(finals)), key=lambda n: finals[n])
    return {
        "rate": cell.rates[best],
        "final": finals[best],
        "finals": finals,
        "curve": curves[best],
        "log_norm": binned(pairs[1].norm(dim=-1).log10()),
    }


def final(losses: Tensor) -> float:
    """Mean of the last tenth."""
    return float(losses[-max(1, len(losses) // 10) :].mean())


def binned(values: Tensor) -> list[float]:
    """Means over BINS stretches of equal length, in four digits."""
    return [float(f"{part.mean():.4g}") for part in values.tensor_split(min(BINS, len(values)))]


def title(shape: Sequence[int]) -> str:
    return f"{shape[0]} hidden layers, {'no expansion' if shape[1] == 1 else f'{shape[1]}x'}"


# ---- the table and the picture -------------------------------------------------------------------


def table(results: list[Result[Cell]]) -> Table:
    """One row for each learner and rule, one column for each function: final losses."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for r in results:
        row = found.setdefault((title(r.cell.learner), r.cell.rule), {})
        loss = r.figures["final"]
        row.setdefault(r.cell.mapping, []).append(math.inf if loss is None else loss)
    rows = [
        [name, rule, *(_mean(by_mapping.get(mapping)) for mapping in MAPPINGS)]
        for (name, rule), by_mapping in found.items()
    ]
    return Table(
        ("learner", "rule", *MAPPINGS),
        rows,
        (
            "Loss ||M(i) - o||^2 / ||o||^2 before the step, mean of the last tenth of positions, "
            "at the best rate of the sweep; 1 is what answering zero gives.",
            "Paper (no numbers): all below 1; 1 is learned best; 4 faster than 2; 3 and 5 worst, "
            "5 worse than 3.",
        ),
    )


def _mean(losses: list[float] | None) -> str | None:
    return None if not losses else f"{sum(losses) / len(losses):.3f}"


def plot(results: list[Result[Cell]], figure: Figure) -> None:
    """Learners across, functions down; one curve for each rule."""
    learners = list(dict.fromkeys(tuple(r.cell.learner) for r in results))
    figure.set_size_inches(3.6 * max(1, len(learners)), 2.3 * len(MAPPINGS))
    axes = figure.subplots(len(MAPPINGS), max(1, len(learners)), squeeze=False)
    for (row, mapping), (column, shape) in product(enumerate(MAPPINGS), enumerate(learners)):
        ax = axes[row, column]
        mine = [r for r in results if r.cell.mapping == mapping and r.cell.seed == 0]
        mine = [r for r in mine if tuple(r.cell.learner) == shape]
        for r in mine:
            _curve(ax, r, r.figures["curve"], {"label": r.cell.rule, "lw": 1})
        if mine:
            norms = [10**x for x in mine[0].figures["log_norm"]]
            _curve(ax, mine[0], norms, {"label": "||o||", "color": "k", "ls": ":", "lw": 1})
        ax.axhline(1, color="0.7", lw=0.8)
        ax.set(yscale="log", ylim=(0.02, 5))
        if row == 0:
            ax.set_title(title(shape), fontsize=9)
        if column == 0:
            ax.set_ylabel(mapping, fontsize=8)
        if row == len(MAPPINGS) - 1:
            ax.set_xlabel("position")
    if learners:
        axes[0, 0].legend(fontsize=6)


def _curve(
    ax: Any, result: Result[Cell], values: list[float | None], style: dict[str, Any]
) -> None:
    width = result.cell.length / len(values)
    xs = [(n + 0.5) * width for n in range(len(values))]
    ax.plot(xs, [math.nan if y is None else y for y in values], **style)


def deviations(settings: Settings) -> list[str]:
    lengths = sorted({group["length"] for group in settings.groups})
    return [
        "four slips of the text are corrected: the loss compares M(i_j) with o_j, v_j uses W_V, "
        "setting 3 maps o'_j, and the network that makes the data is not the learner",
        "not published, and chosen here: the length, the rank of setting 1, the rates, the "
        "weights' scale 1/sqrt(fan in), no biases, no residual",
        f"positions {' and '.join(map(str, lengths))}; rank {settings.rank}; the wide learners "
        "may have fewer rates and positions, see the settings",
        "Omega windows and Muon (a step every 8th pair) are ours, the paper has none of them here",
    ]


EXPERIMENT = Experiment(
    "learnability",
    (
        "Which functions does a small MLP learn online, pair by pair: low rank best, attention's "
        "outputs as inputs faster than an MLP, attention itself worst?"
    ),
    *(PRESETS, (), cells, run, table, plot, deviations),
)
