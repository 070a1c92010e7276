"""What a recipe would take, without training: parameters, tokens, memory and arithmetic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atlas_memory.config import AtlasConfig
    from atlas_memory.training.recipe import Recipe

BACKWARD = 2  # a backward pass is about two forward passes
STATE_BYTES = 16  # a float32 parameter, its gradient and Adam's two averages


def plan(recipe: Recipe) -> dict[str, Any]:
    """Figures of a run on one process, with the tokenizer's ids if it is here, or the size's."""
    from atlas_memory.cli.costs import flops_per_token, parameters
    from atlas_memory.cli.show import readable_size
    from atlas_memory.training.prepare import micro_batches, require_window
    from atlas_memory.training.run_folder import processes

    if recipe.retrofit.base is not None:
        return _retrofit(recipe)
    data, train = recipe.data, recipe.train
    config = recipe.model.config(**_vocabulary(data.tokenizer))
    require_window(config, data.length)
    micro, accumulate = micro_batches(train, processes()[1])
    count = parameters(config)
    tokens = train.steps * train.batch * data.length
    flops = (1 + BACKWARD + train.checkpoint_layers) * flops_per_token(config, data.length // 2)
    weights = STATE_BYTES * count
    activations = _activations(config, micro * data.length, recipe)
    return {
        "recipe": recipe.name,
        "variant": f"{recipe.model.variant} {recipe.model.size}",
        "parameters": count,
        "tokens": tokens,
        "steps": train.steps,
        "tokens per step": train.batch * data.length,
        "sequences at once": f"{micro}, {accumulate} times a step",
        "memory of weights, gradients and Adam": readable_size(weights),
        "memory of activations, about": readable_size(activations),
        "FLOPs per token": flops,
        "FLOPs": f"{flops * tokens:.3g}",
    }


def _vocabulary(tokenizer: str) -> dict[str, int]:
    """Nothing is fetched for a plan."""
    from atlas_memory.data.tokenizer import PACKED, load_tokenizer

    here = tokenizer in ("bytes", *PACKED) or Path(tokenizer).expanduser().exists()
    return {"vocab_size": load_tokenizer(tokenizer).vocab_size} if here else {}


def _retrofit(recipe: Recipe) -> dict[str, Any]:
    from atlas_memory.cli.retrofit_plan import retrofit_plan
    from atlas_memory.training.retrofit import config_of

    return {"recipe": recipe.name, **retrofit_plan(config_of(recipe), recipe)}


def _activations(config: AtlasConfig, tokens: int, recipe: Recipe) -> int:
    """Bytes that wait for the backward pass: what the layers keep of each token, and the logits.

    A block keeps about 16 vectors of the model's width and 4 of the feed-forward's, or only its
    input if layers are recomputed. The inner loop recomputes its chunks and keeps their ends.
    """
    width = 2 if recipe.train.precision == "bfloat16" else 4
    layers, dim = config.num_hidden_layers, config.hidden_size
    of_block = 16 * dim + 4 * config.intermediate_size
    kept = layers * dim + of_block if recipe.train.checkpoint_layers else layers * of_block
    at_once = 1 if recipe.train.checkpoint_layers else layers
    logits = 3 * 4 * config.vocab_size
    return tokens * (width * kept + logits) + at_once * _chunk_ends(config, tokens)


def _chunk_ends(config: AtlasConfig, tokens: int) -> int:
    """Weights and momentum of one layer's memories at the end of every chunk."""
    memory = config.memory_spec
    if memory is None:
        return 0
    head = config.hidden_size // config.num_attention_heads
    shapes = memory.architecture.shapes(memory.features.dim(head), head)
    state = sum(out * into for out, into in shapes) * config.num_attention_heads
    return 4 * 2 * state * -(-tokens // memory.chunk)
