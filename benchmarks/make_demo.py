"""Make the models of `atlas demo`: atlas_memory/demo/models.safetensors and models.json.

    python benchmarks/make_demo.py                        trains both, a few minutes each on a core
    python benchmarks/make_demo.py --atlas FILE --swa FILE    takes checkpoints of such trainings

The models are those of `atlas experiment babilong --preset small --variants atlas,swa`: two layers
of width 32, trained on texts of at most 4,000 words of enwik8.
"""

import argparse
import tempfile
from pathlib import Path

import torch

from atlas_memory.demo.models import MEMORY, WINDOW, save
from atlas_memory.experiments import babilong
from atlas_memory.experiments.experiment import Workspace
from atlas_memory.experiments.fit import CHECKPOINT
from atlas_memory.experiments.long_context import build
from atlas_memory.tasks.babilong import vocabulary

PACKAGE = Path(__file__).parents[1] / "atlas_memory" / "demo"
KEPT = ("task", "corpus", "megabytes", "buckets", "stages", "rate", "price", "seed")


def demo_cell(variant):
    return babilong.Cell.of(babilong.PRESETS["small"], lengths=[], variant=variant, seed=0)


def trained(variant):
    """The checkpoint's contents after a whole training."""
    with tempfile.TemporaryDirectory() as folder:
        babilong.run(demo_cell(variant), Workspace(Path(folder), print))
        return torch.load(Path(folder) / CHECKPOINT, weights_only=True)


def model_of(variant, checkpoint):
    cell = demo_cell(variant)
    if not checkpoint["fitted"]["finished"]:
        raise SystemExit(f"the training of {variant} is not finished")
    model = build(cell, len(vocabulary(cell.buckets)))
    model.load_state_dict(checkpoint["model"])
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for variant in (MEMORY, WINDOW):
        parser.add_argument(f"--{variant}", type=Path, help="a finished training's checkpoint")
    parser.add_argument("--out", type=Path, default=PACKAGE)
    options = parser.parse_args()
    models, made = {}, {}
    for variant in (MEMORY, WINDOW):
        file = getattr(options, variant)
        checkpoint = trained(variant) if file is None else torch.load(file, weights_only=True)
        models[variant] = model_of(variant, checkpoint)
        made[variant] = {
            "command": "python benchmarks/make_demo.py",
            "settings": {name: getattr(demo_cell(variant), name) for name in KEPT},
            "steps": checkpoint["fitted"]["steps"],
            "loss": checkpoint["fitted"]["history"][-1]["loss"],
        }
    save(models, made, options.out)
    for file in sorted(options.out.glob("models.*")):
        print(f"{file}: {file.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
