"""A run that starts from a pretrained model: what is added to it, and what of it is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from atlas_memory.data.tokenizer import Tokenizer

if TYPE_CHECKING:
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
    steps first learn to say what the base says with full attention.
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


@dataclass(frozen=True)
class Start:
    """The model that a run starts from, with its tokenizer."""

    model: RetrofittedForCausalLM
    tokenizer: Tokenizer


def load_start(recipe: Recipe) -> Start:
    """The base with its memories, or what a retrofit or a run before has made of it."""
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
            model = _retrofit(model, recipe)
    elif chosen.lora and not model.config.lora:
        model.model.add_low_rank(chosen.lora)
    choose_trained(model, chosen.train)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return Start(model, Tokenizer(chosen.base, found.tokenizer))


def _retrofit(base: Any, recipe: Recipe) -> RetrofittedForCausalLM:
    from atlas_memory.config import set_field
    from atlas_memory.memory.spec import MemorySpec
    from atlas_memory.retrofitting.build import head_size, retrofit, variant_memory

    chosen, variant = recipe.retrofit, recipe.model.variant
    memory = variant_memory(variant, head_size(base.config, chosen.head)).to_dict()
    for name, value in recipe.model.changes.items():
        section, _, path = name.partition(".")
        if section != "memory":
            raise ValueError(f"model.{name}={value!r}: the base decides it; leave it out")
        set_field(memory, path.split("."), value)
    return retrofit(
        base,
        variant,
        chosen.layers or None,
        chosen.window,
        sinks=chosen.sinks,
        lora=chosen.lora,
        head=chosen.head,
        memory=MemorySpec.from_dict(memory),
    )


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
