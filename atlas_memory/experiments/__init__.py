"""Train and compare: the paper's experiments, by name. Each module has one value, EXPERIMENT."""

from __future__ import annotations

from importlib import import_module

from atlas_memory.experiments.experiment import Experiment
from atlas_memory.names import suggest

EXPERIMENTS = {
    "mad": "mad",
    "mqar": "mqar",
    "niah": "needle",
    "babilong": "babilong",
    "recall": "recall",
    "language": "language",
    "learnability": "learnability",
    "capacity": "capacity",
    "one-pass": "one_pass",
    "ablation": "ablation",
    "window": "window",
    "scaling": "scaling",
}


def require_experiment(name: str) -> None:
    if name not in EXPERIMENTS:
        raise ValueError(f"unknown experiment {name!r}; {suggest(name, list(EXPERIMENTS))}")


def load(name: str) -> Experiment:
    """The experiment of that name; only its own module is imported."""
    require_experiment(name)
    path = f"atlas_memory.experiments.{EXPERIMENTS[name]}"
    try:
        found: Experiment = import_module(path).EXPERIMENT
    except ModuleNotFoundError as error:
        if error.name != path:
            raise
        raise ValueError(f"experiment {name!r} is not part of this installation") from error
    return found
