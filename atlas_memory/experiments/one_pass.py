"""What one reading leaves of the pairs, by every rule, at equal bytes.   [Atlas Sec. 3.2]

P numbers hold at most P / dv values. Memories of about as many numbers read a share of that bound,
or more, every pair once, and are then asked for all of them: what the window, momentum, Muon and
exact writing buy is seen in one picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import mean
from typing import TYPE_CHECKING, Any

import torch

from atlas_memory.experiments.associations import (
    Pass,
    Step,
    as_rows,
    asked,
    draw,
    num_parameters,
    online,
)
from atlas_memory.experiments.experiment import Experiment, Piece, Result, Table, Workspace
from atlas_memory.memory.architectures import MLP, Matrix
from atlas_memory.memory.attentional_bias import L2
from atlas_memory.memory.feature_maps import Identity, Polynomial
from atlas_memory.memory.mesa import mesa
from atlas_memory.memory.optimizers import GradientDescent, Implicit, Momentum, Muon
from atlas_memory.memory.retention import NoRetention
from atlas_memory.memory.spec import MemorySpec

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from atlas_memory.memory.architectures import MemoryArchitecture
    from atlas_memory.memory.feature_maps import Features
    from atlas_memory.memory.optimizers import Optimizer

MEMORIES: dict[str, tuple[Features, MemoryArchitecture]] = {
    "matrix on phi_2": (Polynomial(2), Matrix()),
    "MLP": (Identity(), MLP(expansion=5, residual=False, normalize=True)),
}
OPTIMIZERS: dict[str, Optimizer] = {
    "gradient": GradientDescent(),
    "momentum": Momentum(),
    "Muon": Muon(),
    "implicit": Implicit(),
}
LEAST_SQUARES = "Mesa"  # it has no steps: all pairs are fitted together, whenever it is asked
RIDGES = (1e-4, 1e-3, 1e-2, 1e-1)


@dataclass(frozen=True, kw_only=True)
class Sequences:
    """Keys and values of d numbers. chunk: tokens whose gradients share one point."""

    d: int = 16
    sequences: int = 4
    chunk: int = 16
    etas: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 3.0, 10.0)
    thetas: tuple[float, ...] = (0.5, 0.9)
    hiddens: tuple[float, ...] = (0.0, 0.01, 0.1)


@dataclass(frozen=True, kw_only=True)
class Settings(Sequences):
    loads: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
    windows: tuple[int, ...] = (1, 4, 16)


@dataclass(frozen=True, kw_only=True)
class Cell(Piece, Sequences):
    """load: pairs as a share of the bound."""

    memory: str
    optimizer: str
    window: int
    output: str
    load: float
    seed: int

    @property
    def name(self) -> str:
        window = f", c = {self.window}" if self.window > 1 else ""
        return f"{self.optimizer}{window}"


PRESETS = {
    "smoke": Settings(
        d=4, sequences=2, chunk=4, etas=(0.1, 0.5), hiddens=(0.0,), loads=(0.5, 1.0), windows=(1, 3)
    ),
    "small": Settings(),
}
# The paper has no such experiment; its heads have 64 numbers.
PRESETS["paper"] = Settings(d=64)


def cells(settings: Settings, variants: Sequence[str], seeds: int) -> list[Cell]:
    return [
        Cell.of(settings, load=load, seed=seed, **rule)
        for seed in range(seeds)
        for rule in _rules(settings.windows)
        for load in settings.loads
    ]


def _rules(windows: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Every memory with what can write it: Muon has no exact step for a matrix, and the implicit
    step and least squares are exact by themselves, for one matrix."""
    for memory, optimizer in product(MEMORIES, ("gradient", "momentum", "Muon")):
        for window, output in product(windows, ("chunk", "online")):
            exact = memory == "MLP" or optimizer != "Muon"
            if output == "chunk" or exact:
                yield _rule(memory, optimizer, window, output)
    for optimizer in ("implicit", LEAST_SQUARES):
        yield _rule("matrix on phi_2", optimizer, 1, "online")


def _rule(memory: str, optimizer: str, window: int, output: str) -> dict[str, Any]:
    return {"memory": memory, "optimizer": optimizer, "window": window, "output": output}


def run(cell: Cell, workspace: Workspace) -> dict[str, Any]:
    features, architecture = MEMORIES[cell.memory]
    size = num_parameters(architecture.shapes(features.dim(cell.d), cell.d))
    m = max(1, round(cell.load * size / cell.d))
    done = _read(cell, m)
    best = max(range(len(done.recalls)), key=lambda i: done.recalls[i])
    return {
        "pairs": m,
        "recall": done.recalls[best],
        "step": list(_tried(cell)[best]),
        "bytes": 4 * done.numbers,
    }


def _tried(cell: Cell) -> list[tuple[float, ...]]:
    if cell.optimizer == LEAST_SQUARES:
        return [(ridge,) for ridge in RIDGES]
    spec = _spec(cell)
    thetas = cell.thetas if spec.optimizer.momentum else (0.0,)
    return [
        Step(eta, theta, hidden)
        for eta, theta, hidden in product(
            cell.etas, thetas, cell.hiddens if spec.online else (0.0,)
        )
    ]


def _read(cell: Cell, m: int) -> Pass:
    """One pass over m pairs with every step that is tried."""
    first = cell.seed * cell.sequences
    pairs = [draw(m, cell.d, cell.d, unit=True, seed=first + row) for row in range(cell.sequences)]
    tried = _tried(cell)
    if cell.optimizer == LEAST_SQUARES:
        return _least_squares(MEMORIES[cell.memory][0], pairs, [ridge for (ridge,) in tried])
    return online(_spec(cell), pairs, [Step(*step) for step in tried], cell.seed)


def _spec(cell: Cell) -> MemorySpec:
    features, architecture = MEMORIES[cell.memory]
    optimizer = OPTIMIZERS[cell.optimizer]
    return MemorySpec(
        *(features, architecture, L2(), optimizer, NoRetention(), cell.window),
        chunk=1 if optimizer.implicit else cell.chunk,
        output="chunk" if optimizer.implicit else cell.output,
    )


def _least_squares(
    features: Features, pairs: Sequence[tuple[Tensor, Tensor]], ridges: Sequence[float]
) -> Pass:
    K, V = as_rows(pairs, len(ridges))
    phi = features(K, features.constants(K.shape[-1]))
    alpha = torch.ones_like(K[..., 0])
    _, state = mesa(phi, phi, V, alpha, torch.tensor(ridges, dtype=K.dtype))
    return asked(phi @ state.weights[0].mT, V, state.num_bytes)


# ---- the table and the picture -------------------------------------------------------------------


def table(results: list[Result[Cell]]) -> Table:
    loads = sorted({r.cell.load for r in results})
    rows = [
        [memory, name, "yes" if output == "online" else "no", f"{group[0].figures['bytes']:,}"]
        + [_shown([r.figures["recall"] for r in group if r.cell.load == load]) for load in loads]
        for (memory, name, output), group in _rules_of(results).items()
    ]
    return Table(
        ("memory", "rule", "exact", "state bytes", *(f"{load:g} of the bound" for load in loads)),
        rows,
        (
            "Recall of all pairs after one reading, at the best of the steps that were tried.",
            "The bound: P / dv pairs, P the numbers of its matrices.",
            "exact: every token's step starts where the last one ended. Otherwise the steps of a "
            "chunk share its start, and what of an open chunk has to be carried counts as state.",
        ),
    )


def _rules_of(results: list[Result[Cell]]) -> dict[tuple[str, str, str], list[Result[Cell]]]:
    found: dict[tuple[str, str, str], list[Result[Cell]]] = {}
    for r in results:
        found.setdefault((r.cell.memory, r.cell.name, r.cell.output), []).append(r)
    return found


def _shown(recalls: list[float]) -> str:
    """The mean, and how far seeds are apart."""
    spread = max(recalls, default=0.0) - min(recalls, default=0.0)
    several = f" ({spread:.2f})" if len(recalls) > 1 else ""
    return f"{mean(recalls):.2f}{several}" if recalls else ""


def plot(results: list[Result[Cell]], figure: Figure) -> None:
    """Memories side by side, every rule in its colour."""
    figure.set_size_inches(12, 5)
    memories = list(dict.fromkeys(r.cell.memory for r in results))
    panels = figure.subplots(1, len(memories), sharey=True, squeeze=False)[0]
    names = list(dict.fromkeys(r.cell.name for r in results))
    for (memory, name, output), group in _rules_of(results).items():
        by_load: dict[float, list[float]] = {}
        for r in group:
            by_load.setdefault(r.cell.load, []).append(r.figures["recall"])
        points = [(load, mean(by_load[load])) for load in sorted(by_load)]
        colour = f"C{names.index(name)}" if name != LEAST_SQUARES else "black"
        exact = output == "online"
        panels[memories.index(memory)].plot(
            *zip(*points, strict=True),
            "o-" if exact else "s:",
            color=colour,
            label=name if exact else f"{name}, not exact",
            ms=3,
        )
    for ax, memory in zip(panels, memories, strict=True):
        ax.set(xlabel="pairs / (P / dv)", title=memory, ylim=(0, 1.02))
        ax.legend(fontsize=6, ncols=2)
    panels[0].set_ylabel("recall after one reading")


def deviations(settings: Settings) -> list[str]:
    return [
        "the paper has no such experiment: every size here is our choice",
        "steps are the same at every token and chosen on the sequences that are asked for; an MLP "
        "that is written exactly has one more of them, that of its hidden matrix",
        "equal are the numbers of the matrices; momentum doubles them, and Mesa carries a second, "
        "larger matrix: the table has the bytes of the whole state",
    ]


EXPERIMENT = Experiment(
    "one-pass",
    (
        "What is left of pairs that were read once: what do the window, momentum, Muon and writing "
        "exactly buy, from a quarter to twice of what the memory's numbers could hold?"
    ),
    *(PRESETS, (), cells, run, table, plot, deviations),
)
