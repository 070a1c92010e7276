"""Six pictures of what was measured, from the figures that lie in docs/results.

    python benchmarks/summary.py [--out docs/images/summary.png]

Nothing is run: each picture is a file of docs/results, and docs/summary.md says which command made
it. Lines and bars are means over seeds, dots are seeds.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

RESULTS = Path(__file__).parents[1] / "docs/results"
NAMES = {
    "atlas": "Atlas",
    "atlas_mac": "Atlas (MAC)",
    "omeganet": "OmegaNet",
    "titans": "Titans",
    "gated_deltanet": "Gated DeltaNet",
    "deltanet": "DeltaNet",
    "transformer_plus": "Transformer++",
    "swa": "sliding window of 32",
}
COLOURS = {name: f"C{n}" for n, name in enumerate(NAMES.values())}
Grouped = dict[str, list[Any]]


def load(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def by(results: list[Any], key: str) -> Grouped:
    """Results of all seeds, by one field of their cell."""
    found: Grouped = defaultdict(list)
    for result in results:
        found[result["cell"][key]].append(result)
    return found


def babilong(ax: Any) -> None:
    drawn: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    seen = set()
    for file in ("babilong", "babilong-others", "babilong-seeds"):
        for result in load(file)["results"]:
            name, seed = result["cell"]["variant"], result["cell"]["seed"]
            for length in result["figures"]["lengths"]:
                if (name, seed, length["tokens"]) not in seen:
                    seen.add((name, seed, length["tokens"]))
                    drawn[NAMES.get(name, name)][length["tokens"]].append(length["accuracy"])
    for n, (name, points) in enumerate(drawn.items()):
        tokens = sorted(points)
        shown = [mean(points[t]) - 0.015 * n for t in tokens]  # or they would hide each other
        ax.plot(tokens, shown, "o-", ms=4, color=COLOURS.get(name), label=name)
    published = {4e3: 1.0, 16e3: 1.0, 128e3: 0.94, 1e6: 0.84, 1e7: 0.66}
    ax.plot(list(published), list(published.values()), "x--", color="0.5", label="RMT, published")
    ax.axhline(1 / 6, color="0.7", ls=":", lw=1)
    ax.set(xscale="log", ylim=(0, 1.05), xlabel="tokens read", ylabel="right answers")
    ax.set_title("Where is Mary? Trained at 4K tokens")
    ax.legend(fontsize=7)


def bars(ax: Any, rows: dict[str, list[float]], notes: dict[str, str] | None = None) -> None:
    for n, (name, values) in enumerate(rows.items()):
        ax.barh(n, mean(values), color=COLOURS.get(name, "C0"), alpha=0.6)
        ax.plot(values, [n] * len(values), "k.", ms=4)
        if notes:
            ax.text(0.02, n, notes[name], va="center", fontsize=8)
    ax.set_yticks(range(len(rows)), list(rows))
    ax.invert_yaxis()


def mqar(ax: Any) -> None:
    found = by(load("mqar-crowded")["results"], "variant")
    rows = {NAMES[v]: [r["figures"]["accuracy"] for r in own] for v, own in found.items()}
    sizes = {
        NAMES[v]: f"{own[0]['figures']['state_bytes'] / 1e3:.0f} KB" for v, own in found.items()
    }
    bars(ax, rows, sizes)
    ax.set(xlim=(0, 1), xlabel="recall")
    ax.set_title("32 pairs in heads of 16, 500 steps")


def text(ax: Any) -> None:
    found = by(load("ablation")["results"], "row")
    rows = {row: [r["figures"]["bits"] for r in own] for row, own in found.items()}
    rows = dict(sorted(rows.items(), key=lambda pair: mean(pair[1])))
    bars(ax, rows)
    low = min(min(bits) for bits in rows.values())
    ax.set(xlim=(low - 0.1, None), xlabel="bits per byte, enwik8")
    ax.tick_params(axis="y", labelsize=7)
    ax.set_title("200,000 parameters, 1.2 MB of text")


def copy(ax: Any) -> None:
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    for file in ("copy", "copy-mac"):
        for run in load(file)["runs"]:
            found[NAMES[run["variant"]]].append(run["losses"])
    for name, losses in found.items():
        steps = list(losses[0])
        means = [mean(own[step] for own in losses) for step in steps]
        ax.plot([int(step) for step in steps], means, "o-", ms=3, color=COLOURS[name], label=name)
    ax.set(yscale="log", xlabel="training steps", ylabel="loss")
    ax.set_title("Copying 32 random tokens")
    ax.legend(fontsize=7)


def second_reading(ax: Any) -> None:
    for model in load("quickstart")["models"]:
        shares = model["reread"]
        gaps = [name for name in shares if name.startswith("gap_")]
        labels = [f"{int(name[4:]):,}" for name in gaps]
        name = NAMES[model["variant"]]
        ax.plot(labels, [shares[gap] for gap in gaps], "o-", color=COLOURS[name], label=name)
    ax.axhline(1, color="0.7", ls=":", lw=1)
    ax.set(xlabel="other tokens in between", ylabel="cost, as a share of the first reading")
    ax.set_title("A passage read again, quickstart")
    ax.legend(fontsize=7)


ONE_PASS = {
    ("Mesa", "online"): "least squares, in 10 times the bytes",
    ("gradient, c = 16", "online"): "window of 16, exact",
    ("gradient, c = 4", "online"): "window of 4, exact",
    ("Muon", "chunk"): "Muon from the start of a chunk",
    ("gradient", "online"): "one pair, exact",
    ("gradient", "chunk"): "one pair from the start of a chunk",
}


def one_pass(ax: Any) -> None:
    found: dict[tuple[str, str], dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for result in load("one-pass")["results"]:
        cell = result["cell"]
        if cell["memory"] == "matrix on phi_2":
            window = f", c = {cell['window']}" if cell["window"] > 1 else ""
            rule = found[cell["optimizer"] + window, cell["output"]]
            rule[cell["load"]].append(result["figures"]["recall"])
    for rule, label in ONE_PASS.items():
        points = [(x, mean(recalls)) for x, recalls in sorted(found[rule].items())]
        ax.plot(*zip(*points, strict=True), "o-", ms=3, label=label)
    ax.set(xlabel="pairs / pairs that the matrix could hold", ylabel="recall", ylim=(0, 1.05))
    ax.set_title("What one reading leaves: a matrix on phi_2")
    ax.legend(fontsize=7)


PANELS = (babilong, second_reading, mqar, copy, text, one_pass)


def main() -> None:
    from matplotlib.figure import Figure

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=RESULTS.parent / "images/summary.png")
    given = parser.parse_args()
    figure = Figure(figsize=(15, 8.5), layout="constrained")
    for draw, ax in zip(PANELS, figure.subplots(2, 3).flat, strict=True):
        draw(ax)
    figure.savefig(given.out, dpi=80)
    print(given.out)


if __name__ == "__main__":
    main()
