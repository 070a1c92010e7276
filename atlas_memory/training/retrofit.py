"""A run that starts from a pretrained model: what is added to it, and what of it is trained."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from atlas_memory.data.tokenizer import Tokenizer
    from atlas_memory.memory.spec import MemorySpec
    from atlas_memory.retrofitting.config import RetrofitConfig
    from atlas_memory.retrofitting.model import RetrofittedForCausalLM
    from atlas_memory.training.recipe import Recipe

TRAINED = {"memory": ("gate", "memory"), "lora": ("gate", "memory", "lora")}
TRAINED["everything"] = ("gate", "memory", "lora", "base")


@dataclass(frozen=True)
class Retrofit:
    """base: what `atlas retrofit` takes, or its result; none: the model starts from nothing.

    layers: that get a memory; none given: three of the upper half. head: the largest head of a
    memory. lora: rank of what attention may learn. train: "memory" and its gates, these and
    "lora", or "everything". gate_rate, base_rate: of train.learning_rate, which is the memories'
    and LoRA's; one rate for all explodes the memories or leaves the gates shut. distil: so many
    steps first learn to say what the base says with full attention. calibrate: so many tokens of
    the training text give the memories their first maps; 0: copies of the attention's.
    """

    base: str | None = None
    layers: tuple[int, ...] = ()
    window: int | None = 1024
    sinks: int = 4
    head: int = 64
    lora: int = 0
    train: str = "memory"
    gate_rate: float = 10.0
    base_rate: float = 0.1
    distil: int = 0
    calibrate: int = 0


@dataclass(frozen=True)
class Start:
    """The model that a run starts from, with its tokenizer."""

    model: RetrofittedForCausalLM
    tokenizer: Tokenizer


def load_start(recipe: Recipe) -> Start:
    """The base with its memories, or what a retrofit or a run before has made of it."""
    import torch

    from atlas_memory.data.tokenizer import Tokenizer
    from atlas_memory.retrofitting.build import retrofit
    from atlas_memory.retrofitting.model import RetrofittedForCausalLM
    from atlas_memory.retrofitting.pretrained import load_pretrained

    chosen, train = recipe.retrofit, recipe.train
    assert chosen.base is not None
    # What is frozen needs no more digits than it computes with; FSDP wants one type for all.
    frozen = chosen.train != "everything" and train.parallel != "fsdp"
    found = load_pretrained(chosen.base, train.precision if frozen else "float32")
    model = found.model
    if not isinstance(model, RetrofittedForCausalLM):
        with torch.random.fork_rng():
            torch.manual_seed(train.seed)  # every process draws the same first weights
            model = retrofit(model, recipe.model.variant, chosen.layers or None, **_shape(recipe))
    elif chosen.lora and not model.config.lora:
        model.model.add_low_rank(chosen.lora)
    choose_trained(model, chosen.train)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return Start(model, Tokenizer(chosen.base, found.tokenizer))


def config_of(recipe: Recipe) -> RetrofitConfig:
    """The model that a run would train, without its weights."""
    from atlas_memory.retrofitting.build import retrofit_config
    from atlas_memory.retrofitting.config import RetrofitConfig
    from atlas_memory.retrofitting.pretrained import load_config

    chosen = recipe.retrofit
    assert chosen.base is not None
    base = load_config(chosen.base)
    if isinstance(base, RetrofitConfig):
        return base
    return retrofit_config(base, recipe.model.variant, chosen.layers or None, **_shape(recipe))


def _shape(recipe: Recipe) -> dict[str, Any]:
    """What is added, in the words of `retrofit`."""
    chosen = recipe.retrofit
    shape = {name: getattr(chosen, name) for name in ("window", "sinks", "lora", "head")}
    return {**shape, "memory": _memory(recipe)}


def _memory(recipe: Recipe) -> MemorySpec:
    """The variant's, with what the recipe changes in it."""
    from atlas_memory.config import set_field
    from atlas_memory.memory.spec import MemorySpec
    from atlas_memory.retrofitting.build import variant_memory

    memory = variant_memory(recipe.model.variant).to_dict()
    for name, value in recipe.model.changes.items():
        section, _, path = name.partition(".")
        if section != "memory":
            raise ValueError(f"model.{name}={value!r}: the base decides it; leave it out")
        set_field(memory, path.split("."), value)
    return MemorySpec.from_dict(memory)


def is_retrofitted(folder: Path) -> bool:
    """Whether a folder, or a run in it, holds a retrofitted model."""
    return _config_in(folder) is not None


def _config_in(folder: Path) -> dict[str, Any] | None:
    """The config of a retrofitted model as it was saved; None where there is none."""
    for place in (folder / "model", folder):
        try:
            plain = json.loads((place / "config.json").read_text())
        except (OSError, ValueError):
            continue
        if isinstance(plain, dict) and plain.get("model_type") == "atlas_retrofit":
            return plain
    return None


def further(folder: Path) -> dict[str, Any]:
    """The recipe that trains a retrofitted model where nothing else is said."""
    return {
        "name": f"{folder.name}-trained",
        "model": {"variant": (_config_in(folder) or {}).get("variant", "atlas")},
        "retrofit": {"base": str(folder)},
        "data": {"length": 4096},
        "train": {"batch": 8, "micro_batch": 1, "warmup": 20, "precision": "bfloat16"},
    }


def part_of(name: str) -> str:
    """Which part of a retrofitted model a parameter belongs to: gate, memory, lora or base."""
    if name.endswith(".self_attn.gate"):
        return "gate"
    if ".self_attn.memory." in name:
        return "memory"
    return "lora" if name.endswith(("_proj.down", "_proj.up")) else "base"


def choose_trained(model: nn.Module, train: str) -> None:
    """Freeze what is not to be trained."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(part_of(name) in TRAINED[train])
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(
            f"retrofit.train={train!r}: this model has no memory; give retrofit.layers"
        )


def rate_of(part: str, chosen: Retrofit) -> float:
    """The learning rate of a part, in units of train.learning_rate."""
    return {"gate": chosen.gate_rate, "base": chosen.base_rate}.get(part, 1.0)
