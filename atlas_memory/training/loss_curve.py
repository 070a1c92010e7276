"""The loss curve of a run, as a picture."""

from pathlib import Path
from typing import Any

Metrics = list[dict[str, Any]]


def draw(curves: dict[str, Metrics], path: Path) -> None:
    """Training loss as a line and validation as points, both in bits per token, for each run."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for i, (name, metrics) in enumerate(curves.items()):
        train = [(m["step"], m["bits_per_token"]) for m in metrics if "bits_per_token" in m]
        kept = [(m["step"], m["eval_bits_per_token"]) for m in metrics if "eval_loss" in m]
        if train:
            axes.plot(*zip(*train, strict=True), color=f"C{i}", alpha=0.6, label=name)
        if kept:
            label = f"{name}, validation"
            axes.plot(*zip(*kept, strict=True), "o--", color=f"C{i}", markersize=4, label=label)
    axes.set_xlabel("step")
    axes.set_ylabel("bits per token")
    axes.grid(alpha=0.3)
    if axes.has_data():
        axes.legend()
    figure.savefig(path, dpi=120)
