"""retrofit: a pretrained model in, the same model with memories out; `base_of` goes back."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import json
from collections.abc import Collection
from copy import deepcopy
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from atlas_memory.blocks import Memory
from atlas_memory.family import VARIANTS
from atlas_memory.memory.spec import MemorySpec
from atlas_memory.names import suggest
from atlas_memory.retrofitting.beside import MAPS, LowRank, MemoryBeside
from atlas_memory.retrofitting.config import RetrofitConfig
from atlas_memory.retrofitting.families import FAMILIES, require_llama_like
from atlas_memory.retrofitting.model import RetrofittedForCausalLM

LARGEST_HEAD = 64  # of a memory, whose state grows with its square, on phi_2 with its cube
PROBE = 12  # tokens on which base and retrofitted model must agree


def retrofit(
    model: PreTrainedModel,
    variant: str = "atlas",
    layers: Collection[int] | None = None,
    window: int | None = 1024,
    *,
    sinks: int = 4,
    lora: int = 0,
    head: int = LARGEST_HEAD,
    memory: MemorySpec | None = None,
) -> RetrofittedForCausalLM:
    """Give a pretrained language model memories; until they are trained it says what it said.

    layers: which get a memory, negative ones counted from the end; None: three of the upper half.
    window: tokens that attention still sees, None for all. lora: rank of what attention may learn.
    head: the largest head of a memory; smaller ones are cheaper and hold less. memory: instead
    of the variant's own.
    The new model holds the base's tensors, not copies of them; the base goes on working.
    """
    base: Any = getattr(model, "model", None)
    lm_head = getattr(model, "lm_head", None)
    if base is None or not isinstance(lm_head, nn.Linear):
        raise ValueError(
            f"{type(model).__name__} cannot be retrofitted: it is no language model with a "
            f"decoder `model` and a head `lm_head`; use {FAMILIES}"
        )
    require_llama_like(base)
    shape: dict[str, Any] = {"window": window, "sinks": sinks, "lora": lora}
    config = retrofit_config(model.config, variant, layers, head=head, memory=memory, **shape)
    new = RetrofittedForCausalLM(config, _sharing(base), _sharing(lm_head))
    for _, part in new.memories():
        part.memory.to(device=model.device, dtype=model.dtype)
        part.gate.data = part.gate.data.to(device=model.device, dtype=model.dtype)
        part.start_from_attention()
    if model.generation_config is not None:
        new.generation_config = deepcopy(model.generation_config)
    _require_same(model, new)
    return new.train(model.training)


def retrofit_config(
    base: Any,
    variant: str,
    layers: Collection[int] | None,
    *,
    head: int,
    memory: MemorySpec | None = None,
    **shape: Any,
) -> RetrofitConfig:
    """What `retrofit` makes of a base's config, without its weights."""
    depth, part = base.num_hidden_layers, head_size(base, head)
    if layers is None:
        layers = {depth // 2, 2 * depth // 3, 5 * depth // 6}
    return RetrofitConfig(
        base=_plain(base),
        variant=variant,
        memory=(memory or variant_memory(variant)).to_dict(),
        layers=sorted(n + depth if -depth <= n < 0 else n for n in layers),
        heads=base.hidden_size // part,
        **shape,
    )


def head_size(base: Any, largest: int) -> int:
    """Channels of a memory's head: an attention's head, cut into parts of at most `largest`.

    Whoever allows more than the usual size wants it to hold more: then what divides the width.
    """
    dim, heads = base.hidden_size, base.num_attention_heads
    width = getattr(base, "head_dim", None) or dim // heads
    if largest < 1:
        raise ValueError(f"head={largest}: a memory's head has at least 1 channel")
    whole = dim if largest > max(width, LARGEST_HEAD) else width
    part = max(d for d in range(1, largest + 1) if whole % d == 0)
    if dim % part:
        raise ValueError(
            f"{base.model_type} cannot be retrofitted: its width {dim} is no multiple of {part}, "
            f"the size of a memory's head; use {FAMILIES}"
        )
    return part


def variant_memory(variant: str) -> MemorySpec:
    """The memory of a variant that is one and nothing else."""
    alone = {n: v.memory for n, v in VARIANTS.items() if v.mixers == (Memory(),)}
    memory = alone.get(variant)
    if memory is None:
        names = suggest(variant, list(alone))
        raise ValueError(f"{variant!r} is no memory that can stand beside attention; {names}")
    return memory


def base_of(model: RetrofittedForCausalLM) -> PreTrainedModel:
    """The pretrained model as it was, with full attention; it shares the tensors."""
    decoder: Any = _sharing(model.model.base)
    for layer in decoder.layers:
        if isinstance(layer.self_attn, MemoryBeside):
            layer.self_attn = layer.self_attn.attention
        for name in MAPS:
            linear = getattr(layer.self_attn, name)
            if isinstance(linear, LowRank):
                setattr(layer.self_attn, name, linear.plain())
    decoder.config._attn_implementation = "sdpa"
    with torch.device("meta"):
        whole: Any = AutoModelForCausalLM.from_config(model.config.base_config)
    whole.config = decoder.config
    whole.model, whole.lm_head = decoder, _sharing(model.lm_head)
    whole.generation_config = deepcopy(model.generation_config)
    base: PreTrainedModel = whole.train(model.training)
    return base


def _sharing(module: nn.Module) -> Any:
    """The same modules anew, around the very same tensors."""
    tensors = [*module.parameters(), *module.buffers()]
    copy: Any = deepcopy(module, {id(tensor): tensor for tensor in tensors})
    for part in copy.modules():
        part._is_hf_initialized = True  # or transformers may give the base new random weights
    return copy


def _plain(base: Any) -> dict[str, Any]:
    """A config as the JSON that will be saved, without what is told elsewhere."""
    plain: dict[str, Any] = json.loads(json.dumps(base.to_dict()))
    ours = ["_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype"]
    ours += ["quantization_config"]  # of a GGUF file, whose weights are plain numbers by now
    return {name: value for name, value in plain.items() if name not in ours}


@torch.no_grad()
def _require_same(model: PreTrainedModel, new: RetrofittedForCausalLM) -> None:
    """What the structure does not tell: whether the base does something with its logits."""
    if model.device.type == "meta":
        return
    count = min(PROBE, new.config.window or PROBE)
    ids = torch.arange(count, device=model.device)[None] % new.config.vocab_size
    before, training = model.training, new.training
    theirs, ours = model.eval()(ids, use_cache=False).logits, new.eval()(ids).logits
    model.train(before)
    new.train(training)
    off = (theirs - ours).abs().max() / theirs.abs().max().clamp(min=1e-6)
    if not off < 1e-2:
        raise ValueError(
            f"{model.config.model_type} cannot be retrofitted: it computes something beside its "
            f"layers that would be lost; use {FAMILIES}"
        )
