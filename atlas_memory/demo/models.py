"""The two trained models of the package, and how they are written: one file of weights, one of
configs and settings.
"""

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from atlas_memory.config import AtlasConfig
from atlas_memory.model import AtlasForCausalLM

WEIGHTS, ABOUT = "models.safetensors", "models.json"
MEMORY, WINDOW = "atlas", "swa"


def load() -> dict[str, AtlasForCausalLM]:
    """The models by their names, ready to read."""
    here = files("atlas_memory.demo")
    about = json.loads(here.joinpath(ABOUT).read_text(encoding="utf-8"))
    tensors = safetensors.torch.load(here.joinpath(WEIGHTS).read_bytes())
    return {name: _model(made["config"], _of(tensors, name)) for name, made in about.items()}


def save(
    models: Mapping[str, AtlasForCausalLM], made: Mapping[str, Mapping[str, Any]], folder: Path
) -> None:
    """made: what to keep of each model beside its config, such as the settings of its training."""
    tensors = {
        f"{name}.{key}": tensor.detach().float().contiguous().clone()
        for name, model in models.items()
        for key, tensor in model.state_dict().items()
    }
    about = {
        name: {**made[name], "config": model.config.to_diff_dict()}
        for name, model in models.items()
    }
    safetensors.torch.save_file(tensors, folder / WEIGHTS)
    text = json.dumps(about, indent=1, sort_keys=True)
    (folder / ABOUT).write_text(f"{text}\n", encoding="utf-8")


def _of(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    return {k.removeprefix(f"{name}."): v for k, v in tensors.items() if k.startswith(f"{name}.")}


def _model(config: dict[str, Any], weights: dict[str, Tensor]) -> AtlasForCausalLM:
    model = AtlasForCausalLM(AtlasConfig.from_dict(config))
    model.load_state_dict(weights)
    model.train(False)
    return model
