"""Train and compare: the paper's experiments, by name."""

from atlas_memory.experiments.catalogue import EXPERIMENTS, load, require_experiment

__all__ = ["EXPERIMENTS", "load", "require_experiment"]
