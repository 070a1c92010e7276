"""A run explains itself: what was asked, where it ran, how it went, and what came out."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from atlas_memory.training.recipe import Recipe

PACKAGES = ("atlas-memory", "torch", "transformers", "accelerate", "tokenizers", "numpy")


class _File:
    """A name in a run folder, read as the path it stands for."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: RunFolder, kind: type[RunFolder]) -> Path:
        return folder.path / self.name


@dataclass(frozen=True)
class RunFolder:
    """The files of one run."""

    path: Path
    recipe = _File("recipe.json")
    environment = _File("environment.json")
    metrics = _File("metrics.jsonl")
    curve = _File("loss.png")
    reread = _File("reread.png")
    result = _File("result.json")
    checkpoints = _File("checkpoints")
    model = _File("model")
    divergence = _File("divergence")

    def create(self, recipe: Recipe) -> None:
        """Make the folder; everything that can be wrong with a recipe has been checked before."""
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self.write_recipe(recipe)
            self.environment.write_text(json.dumps(environment(recipe.train.seed), indent=2) + "\n")
        except OSError as error:
            raise ValueError(f"cannot write to {self.path}: {error.strerror}") from error

    def write_recipe(self, recipe: Recipe) -> None:
        self.recipe.write_text(json.dumps(recipe.to_dict(), indent=2) + "\n")

    def read_recipe(self) -> Recipe:
        try:
            return Recipe.from_dict(json.loads(self.recipe.read_text()))
        except OSError as error:
            raise ValueError(f"{self.path} is no run folder: it has no recipe.json") from error

    def show_model(self) -> None:
        """Let the folder itself be loaded as `model/` is: links beside the run's own files."""
        for path in self.model.iterdir():
            link = self.path / path.name
            link.unlink(missing_ok=True)
            try:
                link.symlink_to(path.relative_to(self.path))
            except OSError:  # a file system without links
                shutil.copy2(path, link)

    def log(self, step: int, figures: dict[str, Any]) -> None:
        """One more line of metrics.jsonl."""
        with self.metrics.open("a") as file:
            file.write(json.dumps({"step": step, "time": time.time(), **figures}) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        if not self.metrics.is_file():
            return []
        lines = self.metrics.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def forget_after(self, step: int) -> None:
        """Drop the metrics of steps that will be made again."""
        kept = [entry for entry in self.read_metrics() if entry["step"] <= step]
        self.metrics.write_text("".join(json.dumps(entry) + "\n" for entry in kept))


def require_new(path: Path) -> None:
    """A run gets a folder of its own, in a place that can be written to."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"{path} exists; give another --output, or --resume to go on with it")
    parent = path.absolute()
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise ValueError(f"cannot write to {path}: {parent} is no folder that can be written to")


def environment(seed: int) -> dict[str, Any]:
    """Versions, machine, commit and seed."""
    import torch

    return {
        "command": sys.argv,
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "accelerators": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
        "seed": seed,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the source this runs from, if it runs from a checkout."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except OSError:
        return None
    return done.stdout.strip() or None


def processes() -> tuple[int, int]:
    """This process and how many there are, as torchrun says it."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
