"""The picture of the capacity experiment: predicted lines, measured points."""

from __future__ import annotations

from collections import defaultdict
from statistics import mean
from typing import TYPE_CHECKING, Any

from atlas_memory.experiments.experiment import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot(results: list[Result[Any]], figure: Figure) -> None:
    figure.set_size_inches(14, 8)
    axes = figure.subplots(2, 3)
    panels = {"rank": _ranks, "residual": _residuals, "deep": _deep}
    for ax, (kind, draw) in zip(axes[0], panels.items(), strict=True):
        if some := of_kind(results, kind):
            draw(ax, some)
    passes = of_kind(results, "online")
    memories = dict.fromkeys(r.cell.memory for r in passes)
    # An unfinished experiment has fewer memories than axes.
    for ax, memory in zip(axes[1], memories, strict=False):
        _online(ax, [r for r in passes if r.cell.memory == memory], memory)


def of_kind(results: list[Result[Any]], kind: str) -> list[Result[Any]]:
    return [r for r in results if r.cell.kind == kind]


def _ranks(ax: Axes, results: list[Result[Any]]) -> None:
    for features, marker in (("polynomial", "o"), ("elementwise", "s")):
        for unit in (False, True):
            mine = [
                r.figures for r in results if (r.cell.features, r.cell.unit) == (features, unit)
            ]
            label = f"{features}, {'unit' if unit else 'Gaussian'} keys"
            style: dict[str, Any] = {"fillstyle": "none" if unit else "full", "label": label}
            ax.plot([f["expected"] for f in mine], [f["rank"] for f in mine], marker, **style)
    reach = max(r.figures["expected"] for r in results)
    ax.plot([1, reach], [1, reach], "k:", lw=1)
    ax.set(xscale="log", yscale="log", xlabel="predicted rank", ylabel="measured rank")
    ax.set_title("Prop. 2: features that are independent")
    ax.legend(fontsize=7)


def _mean_line(ax: Axes, points: list[tuple[float, float]], style: str, label: str) -> None:
    by_x: dict[float, list[float]] = defaultdict(list)
    for x, y in points:
        by_x[x].append(y)
    xs = sorted(by_x)
    ax.plot(xs, [mean(by_x[x]) for x in xs], style, label=label, ms=4)


def _residuals(ax: Axes, results: list[Result[Any]]) -> None:
    for degree in sorted({r.cell.degree for r in results}):
        some = [r for r in results if r.cell.degree == degree]
        loads = [(r.cell.m / r.figures["features"], r) for r in some]
        name = f"{some[0].figures['features']} features (p = {degree})"
        _mean_line(ax, [(x, r.figures["error"]) for x, r in loads], "o", f"error, {name}")
        _mean_line(ax, [(x, r.figures["recall"]) for x, r in loads], "--", f"recall, {name}")
    xs = [i / 20 for i in range(5, 81)]
    ax.plot(xs, [max(0.0, 1 - 1 / x) for x in xs], "k:", lw=1, label="max(0, 1 - D/m)")
    ax.set(xlabel="m / D", ylabel="error, recall", title="Prop. 1 and 2: least squares")
    ax.legend(fontsize=7)


def _deep(ax: Axes, results: list[Result[Any]]) -> None:
    for layers, width in dict.fromkeys((r.cell.layers, r.cell.width) for r in results):
        some = [r for r in results if (r.cell.layers, r.cell.width) == (layers, width)]
        points = [(r.figures["load"], max(r.figures["error"], 1e-12)) for r in some]
        label = f"L = {layers}, h = {width}" if layers > 1 else "matrix"
        _mean_line(ax, points, "o-", label)
    ax.axvline(1, color="k", ls=":", lw=1)
    ax.axhline(1e-3, color="k", ls=":", lw=1)
    ax.set(yscale="log", xlabel="m dv / P", ylabel="error")
    ax.set_title("Thm. 1: a deep memory stops at its parameters")
    ax.legend(fontsize=7)


def _online(ax: Axes, results: list[Result[Any]], memory: str) -> None:
    for rule in dict.fromkeys(r.cell.rule for r in results):
        points = [(r.cell.m, r.figures["recall"]) for r in results if r.cell.rule == rule]
        _mean_line(ax, points, "o-", rule)
    ax.axvline(results[0].cell.d, color="k", ls=":", lw=1)
    ax.set_xscale("log", base=2)
    ax.set(xlabel="pairs m (dotted: d)", ylabel="recall", title=f"one online pass: {memory}")
    ax.legend(fontsize=7)
