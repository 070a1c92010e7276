"""Which pretrained models can be retrofitted: told by how they are built, not by their name."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from atlas_memory.retrofitting.beside import MAPS

FAMILIES = "Llama, SmolLM, Qwen2, Qwen3, Mistral, Gemma and what is built like them"
ROPES = ("default", "linear", "llama3", "yarn")  # angles that do not depend on a text's length


def require_llama_like(base: Any) -> None:
    """Refuse a model whose layers are not what a memory can stand beside."""
    wrong = _difference(base)
    if wrong is not None:
        raise ValueError(f"{base.config.model_type} cannot be retrofitted: {wrong}; use {FAMILIES}")


def _difference(base: Any) -> str | None:
    layers, rotary = getattr(base, "layers", None), getattr(base, "rotary_emb", None)
    if not isinstance(layers, nn.ModuleList) or not hasattr(base, "embed_tokens"):
        return "it has no list of decoder layers over token embeddings"
    attentions = [getattr(layer, "self_attn", None) for layer in layers]
    for attention in attentions:
        maps: list[Any] = [getattr(attention, name, None) for name in MAPS]
        if not all(isinstance(linear, nn.Linear) for linear in maps):
            return f"its layers have no attention with {', '.join(MAPS)}"
        if not all(linear.weight.is_floating_point() for linear in maps):
            return "its weights are quantized; load them as plain numbers"
        if not hasattr(attention, "layer_idx") or not hasattr(attention, "head_dim"):
            return "its attention is not that of a decoder"
    if rotary is None or rotation(attentions[0]) is None:
        return "its attention has no rotary positions"
    if list(inspect.signature(rotary.forward).parameters)[:3] != ["x", "position_ids"]:
        return "its layers have rotary positions of several kinds"
    kind = getattr(rotary, "rope_type", "default")
    if kind not in ROPES:
        return f"its rotary positions are {kind!r}, which depend on the length of the text"
    for name in ("attn_logit_softcapping", "final_logit_softcapping"):
        if getattr(base.config, name, None):
            return f"it caps its scores ({name})"
    return None


def rotation(attention: Any) -> Callable[..., tuple[Tensor, Tensor]] | None:
    """The family's own `apply_rotary_pos_emb`, which knows which channels turn together."""
    return getattr(sys.modules[type(attention).__module__], "apply_rotary_pos_emb", None)
