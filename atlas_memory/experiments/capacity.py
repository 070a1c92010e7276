"""Capacity: Propositions 1 and 2 and Theorem 1, measured.   [Atlas Sec. 3.1] [Atlas App. C]"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import mean
from typing import TYPE_CHECKING, Any

from atlas_memory.experiments.associations import (
    Step,
    draw,
    error,
    expected_rank,
    fit_deep,
    least_squares,
    lift,
    make_features,
    matrices,
    num_parameters,
    online,
    rank,
    recall,
)
from atlas_memory.experiments.capacity_plot import plot
from atlas_memory.experiments.experiment import Experiment, Result, Table, Workspace
from atlas_memory.memory.architectures import MLP, Matrix
from atlas_memory.memory.attentional_bias import L2
from atlas_memory.memory.feature_maps import Identity, Polynomial
from atlas_memory.memory.optimizers import GradientDescent, Momentum, Muon
from atlas_memory.memory.retention import NoRetention
from atlas_memory.memory.spec import MemorySpec

if TYPE_CHECKING:
    from torch import Tensor

    from atlas_memory.memory.architectures import MemoryArchitecture
    from atlas_memory.memory.feature_maps import Features
    from atlas_memory.memory.optimizers import Optimizer

STORED = 1e-3  # a pair set is stored exactly when its error is below this
SPARE = 24  # keys beyond the expected rank, so that a larger rank would show

MEMORIES: dict[str, tuple[Features, MemoryArchitecture]] = {
    "matrix": (Identity(), Matrix()),
    "matrix on phi_2": (Polynomial(2), Matrix()),
    "MLP": (Identity(), MLP(expansion=4, residual=False)),
}
# Name -> optimizer, window, momenta to try.
RULES: dict[str, tuple[Optimizer, int, tuple[float, ...]]] = {
    "delta": (GradientDescent(), 1, (0.0,)),
    "omega 4": (GradientDescent(), 4, (0.0,)),
    "omega 16": (GradientDescent(), 16, (0.0,)),
    "momentum": (Momentum(), 1, (0.5, 0.9)),
    "muon": (Muon(), 1, (0.0, 0.9)),
    "omega 16 + muon": (Muon(), 16, (0.0, 0.9)),
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """ranks: [d, degree]. The others: the sizes that are run, of least squares, of deep memories
    fitted to all pairs, and of memories that see every pair once.
    """

    ranks: list[list[int]]
    residual: dict[str, Any]
    deep: dict[str, Any]
    online: dict[str, Any]


PRESETS = {
    "smoke": Settings(
        ranks=[[4, 2], [4, 3]],
        residual={"d": 8, "dv": 8, "degrees": [1, 2], "ratios": [0.5, 2.0]},
        deep={"d": 4, "shapes": [[1, 1], [2, 1]], "ratios": [0.5, 2.0], "steps": 20},
        online={"d": 8, "pairs": [4, 8], "sequences": 2, "etas": [0.01, 0.1, 0.5]},
    ),
    "small": Settings(
        ranks=[[8, 2], [8, 3], [16, 2], [16, 3], [32, 2]],
        residual={
            "d": 16,
            "dv": 16,
            "degrees": [1, 2],
            "ratios": [0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 3.0, 4.0],
        },
        deep={
            "d": 8,
            "shapes": [[1, 1], [2, 1], [2, 2], [2, 4], [3, 1], [3, 2]],
            "ratios": [0.5, 0.7, 0.8, 0.9, 1.0, 1.25, 2.0],
            "steps": 60,
        },
        online={
            "d": 32,
            "pairs": [8, 16, 32, 48, 64, 96, 128],
            "sequences": 4,
            "etas": [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 0.5, 1.0],
        },
    ),
}
# The paper proves and does not measure; its own sizes are those of a head of its 340M model.
PRESETS["paper"] = Settings(
    ranks=[[8, 2], [8, 3], [16, 2], [16, 3], [32, 2], [64, 2]],
    residual={**PRESETS["small"].residual, "d": 64, "dv": 64},
    deep={
        "d": 16,
        "shapes": [[1, 1], *([layers, width] for layers in (2, 3) for width in (1, 2, 4))],
        "ratios": [0.5, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 2.0],
        "steps": 300,
    },
    online={**PRESETS["small"].online, "d": 64, "pairs": [16, 32, 64, 128, 256, 512, 1024]},
)


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Keys of d numbers, m of them with values."""

    d: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class Pairs(Drawn):
    m: int


@dataclass(frozen=True, kw_only=True)
class Rank(Drawn):
    """How many features of random keys are independent."""

    kind: str = "rank"
    degree: int
    features: str
    unit: bool
    constant: bool

    def run(self) -> dict[str, Any]:
        features = make_features(self.features, self.degree)
        K, _ = draw(features.dim(self.d) + SPARE, self.d, 1, unit=self.unit, seed=self.seed)
        size = self.features, self.degree, self.d
        return {
            "rank": rank(lift(K, features, constant=self.constant)),
            "expected": expected_rank(*size, unit=self.unit, constant=self.constant),
        }


@dataclass(frozen=True, kw_only=True)
class Residual(Pairs):
    """What least squares leaves of m pairs."""

    kind: str = "residual"
    dv: int
    degree: int
    features: str

    def run(self) -> dict[str, Any]:
        K, V = draw(self.m, self.d, self.dv, unit=False, seed=self.seed)
        phi = lift(K, make_features(self.features, self.degree))
        known = {"features": phi.shape[-1], "expected": max(0.0, 1 - phi.shape[-1] / self.m)}
        return known | _compared(least_squares(phi, V), V)


@dataclass(frozen=True, kw_only=True)
class Deep(Pairs):
    """What a deep memory holds that is fitted to all of its m pairs."""

    kind: str = "deep"
    layers: int
    width: int
    steps: int

    def run(self) -> dict[str, Any]:
        d = self.d
        K, V = draw(self.m, d, d, unit=False, seed=self.seed)
        answers = fit_deep(K, V, self.layers, self.width, self.steps, self.seed)
        size = num_parameters(matrices(d, d, self.layers, self.width))
        return {"parameters": size, "load": self.m * d / size} | _compared(answers, V)


@dataclass(frozen=True, kw_only=True)
class Online(Pairs):
    """What one pass over m pairs leaves of them, at the best of the steps."""

    kind: str = "online"
    memory: str
    rule: str
    sequences: int
    etas: list[float]

    def run(self) -> dict[str, Any]:
        features, architecture = MEMORIES[self.memory]
        optimizer, window, momenta = RULES[self.rule]
        spec = MemorySpec(features, architecture, L2(), optimizer, NoRetention(), window, chunk=1)
        first = self.seed * self.sequences
        pairs = [
            draw(self.m, self.d, self.d, unit=True, seed=first + i) for i in range(self.sequences)
        ]
        steps = [Step(eta, theta) for eta, theta in product(self.etas, momenta)]
        done = online(spec, pairs, steps, self.seed)
        best = max(range(len(steps)), key=lambda i: done.recalls[i])
        exact = min(range(len(steps)), key=lambda i: done.errors[i])
        return {
            "recall": done.recalls[best],
            "eta": steps[best].eta,
            "theta": steps[best].theta,
            "error": done.errors[exact],
        }


def _compared(answers: Tensor, V: Tensor) -> dict[str, Any]:
    return {"error": error(answers, V), "recall": recall(answers, V)}


Cell = Rank | Residual | Deep | Online


def cells(settings: Settings, variants: Sequence[str], seeds: int) -> list[Cell]:
    found: list[Cell] = []
    for seed in range(seeds):
        found += _rank_cells(settings.ranks, seed)
        found += _residual_cells(settings.residual, seed)
        found += _deep_cells(settings.deep, seed)
        found += _online_cells(settings.online, seed)
    return found


def _rank_cells(sizes: Sequence[Sequence[int]], seed: int) -> Iterator[Rank]:
    for (d, degree), features, unit in product(sizes, ("polynomial", "elementwise"), (False, True)):
        constant = features == "elementwise"
        yield Rank(d=d, degree=degree, features=features, unit=unit, constant=constant, seed=seed)


def _residual_cells(s: dict[str, Any], seed: int) -> Iterator[Residual]:
    for degree, ratio in product(s["degrees"], s["ratios"]):
        features = "identity" if degree == 1 else "polynomial"
        m = max(1, round(ratio * expected_rank(features, degree, s["d"], unit=False)))
        yield Residual(d=s["d"], dv=s["dv"], degree=degree, features=features, m=m, seed=seed)


def _deep_cells(s: dict[str, Any], seed: int) -> Iterator[Deep]:
    d = s["d"]
    for (layers, width), ratio in product(s["shapes"], s["ratios"]):
        size = num_parameters(matrices(d, d, layers, width * d))
        m = max(1, round(ratio * size / d))
        yield Deep(d=d, layers=layers, width=width * d, m=m, steps=s["steps"], seed=seed)


def _online_cells(s: dict[str, Any], seed: int) -> Iterator[Online]:
    shared = {"d": s["d"], "sequences": s["sequences"], "etas": list(s["etas"]), "seed": seed}
    for memory, rule, m in product(MEMORIES, RULES, s["pairs"]):
        yield Online(memory=memory, rule=rule, m=m, **shared)


def run(cell: Cell, workspace: Workspace) -> dict[str, Any]:
    return cell.run()


# ---- the table ---------------------------------------------------------------------------------


def table(results: list[Result[Any]]) -> Table:
    rows = [*_rank_rows(results), *_residual_rows(results), *_deep_rows(results)]
    return Table(
        ("claim", "memory", "predicted", "measured"),
        [*rows, *_online_rows(results)],
        (
            "An error is ||M(K) - V||^2 / ||V||^2; recall counts answers nearest to their value.",
            f"m* is the largest number of pairs tried whose error is below {STORED}.",
            "Online: one pass, every pair seen once, recall of all m pairs afterwards; the step "
            "size (and momentum) with the best recall of those tried.",
        ),
    )


def grouped(
    results: list[Result[Any]], kind: str, names: Sequence[str]
) -> dict[tuple[Any, ...], list[Result[Any]]]:
    """Results of one kind by the values of some fields of their cells."""
    groups: dict[tuple[Any, ...], list[Result[Any]]] = {}
    for result in results:
        if result.cell.kind == kind:
            groups.setdefault(tuple(getattr(result.cell, n) for n in names), []).append(result)
    return groups


def average(group: list[Result[Any]], figure: str) -> float:
    return mean(r.figures[figure] for r in group)


def _rank_rows(results: list[Result[Any]]) -> Iterator[list[Any]]:
    names = ("d", "degree", "features", "unit")
    for (d, degree, features, unit), group in grouped(results, "rank", names).items():
        what = "all monomials" if features == "polynomial" else "1 and powers"
        keys = "unit keys" if unit else "Gaussian keys"
        ranks = sorted({r.figures["rank"] for r in group})
        memory = f"{what} of degree {degree}, d = {d}, {keys}"
        yield ["Prop. 2, rank", memory, group[0].figures["expected"], ", ".join(map(str, ranks))]


def _residual_rows(results: list[Result[Any]]) -> Iterator[list[Any]]:
    for (degree, m), group in grouped(results, "residual", ("degree", "m")).items():
        claim = f"Prop. {1 if degree == 1 else 2}, error"
        memory = f"{group[0].figures['features']} features, m = {m}"
        found = f"{average(group, 'error'):.3f} (recall {average(group, 'recall'):.2f})"
        yield [claim, memory, f"{group[0].figures['expected']:.3f}", found]


def _deep_rows(results: list[Result[Any]]) -> Iterator[list[Any]]:
    for (layers, width, d), group in grouped(results, "deep", ("layers", "width", "d")).items():
        size = group[0].figures["parameters"]
        memory = f"{layers} matrices, width {width}, d = {d}" if layers > 1 else f"matrix, d = {d}"
        recalled = _largest(group, lambda r: r.figures["recall"] >= 0.99)
        stored = _largest(group, lambda r: r.figures["error"] < STORED)
        found = f"m* = {stored}, 99% recall up to {recalled}"
        yield ["Thm. 1, pairs", memory, f"P/dv = {size / d:.0f}, dk dv = {d * d}", found]


def _largest(group: list[Result[Any]], holds: Any) -> int:
    """The largest m that holds for every seed."""
    fails = {r.cell.m for r in group if not holds(r)}
    return max((r.cell.m for r in group if r.cell.m not in fails), default=0)


def _online_rows(results: list[Result[Any]]) -> Iterator[list[Any]]:
    for (memory, rule, d), group in grouped(results, "online", ("memory", "rule", "d")).items():
        by_m = {m: average(g, "recall") for (m,), g in grouped(group, "online", ("m",)).items()}
        shown = [f"{m}: {by_m[m]:.2f}" for m in sorted(by_m) if m >= d // 2]
        yield ["one online pass", f"{memory}, {rule}, d = {d}", None, ", ".join(shown)]


def deviations(settings: Settings) -> list[str]:
    return [
        "the paper proves capacity and measures none: every size here is our choice",
        "keys are in general position, not linearly independent, which would stop at m = d",
        "deep memories are fitted to all pairs by Levenberg-Marquardt, not by gradient descent, "
        "so that what is measured is the memory and not the optimizer",
    ]


EXPERIMENT = Experiment(
    "capacity",
    (
        "How many pairs does a memory hold: d for a matrix (Prop. 1), binom(d+p, p) on phi_p "
        "(Prop. 2), more when it is deep (Thm. 1), and what does one online pass leave of it?"
    ),
    *(PRESETS, (), cells, run, table, plot, deviations),
)
