"""How heads should start: all designed, half of them or none, on four tasks, three seeds each.

    python benchmarks/starts.py --out docs/results/starts.json

Text: `atlas experiment ablation --preset narrow`, bits per byte and the second reading behind 256
tokens. Copy: `copy_task.py`, the loss at step 200. MQAR: 32 pairs in 128 tokens through
AtlasForCausalLM, recall after 250 steps. BABILong: the loss behind the first stage of the
curriculum. Every run is written at once, and a second call goes on where the first one stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from copy_task import SHAPE, run as copied
from torch import Tensor

from atlas_memory.config import AtlasConfig
from atlas_memory.experiments import ablation, babilong
from atlas_memory.experiments.experiment import Workspace
from atlas_memory.experiments.fit import IGNORED, Rate, fit
from atlas_memory.model import AtlasForCausalLM
from atlas_memory.tasks.mqar import MQAR

STARTS = ("all", "half", "none")
ROW, VARIANT = "Titans--", "titans_minus"  # the plainest memory with an exact output
Figures = dict[str, float]


def text(start: str, seed: int, workspace: Workspace) -> Figures:
    settings = ablation.PRESETS["narrow"]
    settings = replace(settings, changes={**settings.changes, "designed_heads": start})
    (cell,) = (c for c in ablation.cells(settings, [ROW], seed + 1) if c.seed == seed)
    found = ablation.EXPERIMENT.run(cell, workspace)
    return {"bits": found["bits"], "second reading": found["reread"]["gap_256"]}


def copy(start: str, seed: int, workspace: Workspace) -> Figures:
    return {"loss": copied(_config(start, **SHAPE), seed, steps=200).losses[200]}


def mqar(start: str, seed: int, workspace: Workspace) -> Figures:
    task, batch = MQAR(256, 128, 32, random_fillers=False), 32

    def drawn(step: int, part: int = 0) -> tuple[Tensor, Tensor]:
        ids, targets = task.draws(batch, (seed, part), step * batch)
        return torch.from_numpy(ids), torch.from_numpy(targets)

    torch.manual_seed(seed)
    config = _config(
        start,
        vocab_size=256,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    model = AtlasForCausalLM(config)
    fit(model, drawn, steps=250, rate=Rate(6e-3, warmup=20), workspace=workspace)
    model.eval()
    right = []
    with torch.no_grad():
        for step in range(8):
            ids, targets = drawn(step, part=1)
            asked = targets != IGNORED
            right.append((model(ids).logits[asked].argmax(-1) == targets[asked]).float())
    return {"recall": torch.cat(right).mean().item()}


def stage(start: str, seed: int, workspace: Workspace) -> Figures:
    settings = babilong.PRESETS["small"]
    stages = settings.stages[:1]
    settings = replace(settings, designed_heads=start, stages=stages, lengths=[])
    cell = babilong.Cell.of(settings, variant=VARIANT, seed=seed)
    return {"loss": babilong.EXPERIMENT.run(cell, workspace)["training"]["loss"]}


TASKS: dict[str, Callable[[str, int, Workspace], Figures]] = {
    "copy": copy,
    "mqar": mqar,
    "babilong": stage,
    "text": text,
}


def _config(start: str, **shape: int) -> AtlasConfig:
    return AtlasConfig.from_variant(VARIANT, "tiny", designed_heads=start, **shape)


def table(runs: list[dict[str, Any]]) -> str:
    """One line per figure: the mean of the seeds and their range."""
    lines = ["| | " + " | ".join(STARTS) + " |", "|---|" + "---|" * len(STARTS)]
    names = dict.fromkeys((r["task"], f) for r in runs for f in r["figures"])
    for task, figure in names:
        shown = []
        for start in STARTS:
            mine = [r for r in runs if (r["task"], r["start"]) == (task, start)]
            found = [r["figures"][figure] for r in mine if figure in r["figures"]]
            span = f"{mean(found):.3f} ({min(found):.3f} to {max(found):.3f})" if found else "-"
            shown.append(span)
        lines.append(f"| {task}, {figure} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    runs = json.loads(args.out.read_text()) if args.out.exists() else []
    done = {(r["task"], r["start"], r["seed"]) for r in runs}
    for task in args.tasks:
        for seed in range(args.seeds):
            for start in STARTS:
                if (task, start, seed) in done:
                    continue
                print(task, start, seed, file=sys.stderr, flush=True)
                with tempfile.TemporaryDirectory() as folder:
                    workspace = Workspace(Path(folder), lambda line: None)
                    figures = TASKS[task](start, seed, workspace)
                runs.append({"task": task, "start": start, "seed": seed, "figures": figures})
                args.out.write_text(json.dumps(runs, indent=1) + "\n")
    print(table(runs))


if __name__ == "__main__":
    main()
