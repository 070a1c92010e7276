"""What a retrofitted model is made of and costs, without its weights."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from atlas_memory.blocks import Memory, Width
from atlas_memory.cli.costs import mixing, state_bytes
from atlas_memory.memory.linear import block_size

if TYPE_CHECKING:
    from atlas_memory.retrofitting.config import RetrofitConfig
    from atlas_memory.training.recipe import Recipe

CONTEXTS = {"4K": 4_096, "32K": 32_768, "1M": 1_048_576}
STATE = 16  # bytes of a parameter that is trained, with its gradient and Adam's averages
SHARE = 0.3  # of the speed of a large matrix product, which a training step reaches


def added(config: RetrofitConfig) -> dict[str, Any]:
    """What was added to the base, and what it carries instead of a growing cache."""
    counts = _counts(config)
    base = config.base_config
    key_value = _key_value_bytes(base)
    caches = {name: _size(key_value * n) for name, n in CONTEXTS.items()}
    memory = state_bytes(Memory(), _width(config))[0] * len(config.layers or [])
    kept = None if config.window is None else config.window - 1 + config.sinks
    return {
        "base": base.model_type,
        "layers": f"{config.num_hidden_layers}, with a memory: {_listed(config.layers)}",
        "memory": f"{config.variant}, {config.heads} heads of {config.width // config.heads}",
        "window": "none" if config.window is None else f"{config.window} and {config.sinks} sinks",
        "parameters of the base": counts["base"],
        "parameters added": sum(n for part, n in counts.items() if part != "base"),
        "state of the memories": _size(memory),
        "cache of the window": "grows" if kept is None else _size(key_value * kept),
        "cache of the base": caches,
    }


def retrofit_plan(config: RetrofitConfig, recipe: Recipe | None = None) -> dict[str, Any]:
    """Memory and time of a training run; without a recipe, of 100 million tokens, 4,096 at once."""
    length, tokens, train, at_once = _amounts(recipe)
    size = 4 if recipe is not None and recipe.train.precision == "float32" else 2
    counts = _counts(config)
    from atlas_memory.training.retrofit import TRAINED

    trained = sum(counts.get(part, 0) for part in TRAINED[train])
    frozen = sum(counts.values()) - trained
    flops = _flops(config, counts, train, length)
    speed = SHARE * _matrix_speed()
    return {
        **added(config),
        "trained parameters": trained,
        "memory of weights, gradients and Adam": _size(size * frozen + STATE * trained),
        "memory of activations, about": _size(at_once * _activations(config, train, size)),
        "tokens": tokens,
        "FLOPs per token": flops,
        "FLOPs": f"{flops * tokens:.3g}",
        "hours on this machine, about": round(flops * tokens / speed / 3600, 1),
        "hours at 100 TFLOP/s, about": round(flops * tokens / (SHARE * 1e14) / 3600, 1),
    }


def _amounts(recipe: Recipe | None) -> tuple[int, int, str, int]:
    """Tokens of a sequence and of the run, what is trained, and tokens computed at once."""
    if recipe is None:
        return 4_096, 100_000_000, "memory", 4_096
    length, train = recipe.data.length, recipe.train
    at_once = (train.micro_batch or train.batch) * length
    return length, train.steps * train.batch * length, recipe.retrofit.train, at_once


def _counts(config: RetrofitConfig) -> dict[str, int]:
    """Parameters of every part, tied ones once."""
    import torch
    from transformers import AutoModelForCausalLM

    from atlas_memory.training.retrofit import part_of

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    counts: dict[str, int] = {"base": 0}
    for name, parameter in model.named_parameters():
        part = part_of(name)
        counts[part] = counts.get(part, 0) + parameter.numel()
    return counts


def _flops(config: RetrofitConfig, counts: dict[str, int], train: str, length: int) -> int:
    """Two for each parameter and multiply-add forward; backward, as much for what lies above the
    first memory, and once more for what is trained."""
    memories = len(config.layers or [])
    mixed = mixing(Memory(), _width(config), length) * memories
    whole = sum(counts.values()) + mixed
    depth = config.num_hidden_layers or 1
    above = 1.0 if train != "memory" else 1 - min(config.layers or [0]) / depth
    own = counts["base"] if train == "everything" else 0
    learned = own + mixed + sum(n for part, n in counts.items() if part != "base")
    return round(2 * (whole + above * whole + learned))


def _activations(config: RetrofitConfig, train: str, size: int) -> int:
    """Bytes that a token leaves for the backward pass above the first memory, and its logits.

    size: bytes of a number of the base. A memory keeps its matrices at the end of every block.
    """
    depth, inner = config.num_hidden_layers or 1, config.intermediate_size or 4 * config.width
    layers = depth if train != "memory" else depth - min(config.layers or [0])
    spec, head = config.memory_spec, config.width // config.heads
    shapes = spec.architecture.shapes(spec.features.dim(head), head)
    block = block_size(spec) if spec.linear else spec.chunk
    ends = 8 * config.heads * sum(out * into for out, into in shapes) // block
    memories = len(config.layers or []) * ends
    return (
        size * layers * (16 * config.width + 4 * inner) + memories + 12 * (config.vocab_size or 0)
    )


def _key_value_bytes(base: Any) -> int:
    """Of one token in bfloat16, all layers."""
    width = getattr(base, "head_dim", None) or base.hidden_size // base.num_attention_heads
    heads = getattr(base, "num_key_value_heads", None) or base.num_attention_heads
    return 2 * 2 * int(heads * width) * int(base.num_hidden_layers)


def _width(config: RetrofitConfig) -> Width:
    return Width(config.width, config.heads, config.memory_spec)


def _matrix_speed() -> float:
    """FLOP/s of a product of two large matrices, where and as training would run."""
    import torch

    found = torch.accelerator.is_available()
    device = torch.accelerator.current_accelerator() if found else torch.device("cpu")
    size, dtype = (8_192, torch.bfloat16) if found else (1_024, torch.float32)
    x = torch.ones(size, size, device=device, dtype=dtype)
    (x @ x).sum().item()
    started = time.perf_counter()
    (x @ x).sum().item()
    return 2 * float(size) ** 3 / (time.perf_counter() - started)


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.2f} MB"


def _listed(layers: list[int] | None) -> str:
    return ", ".join(map(str, layers or [])) or "none"
