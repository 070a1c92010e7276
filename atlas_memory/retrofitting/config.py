"""RetrofitConfig: the config of a pretrained model, and what was added to it, as plain data."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

from transformers import AutoConfig, PreTrainedConfig

from atlas_memory.config import plain_memory, refuse_unknown
from atlas_memory.memory.spec import MemorySpec

# What other code asks a config for, and a retrofitted model has from its base.
_OF_THE_BASE = ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"]
_OF_THE_BASE += ["vocab_size", "tie_word_embeddings", "initializer_range"]
_OF_THE_BASE += ["pad_token_id", "bos_token_id", "eos_token_id"]


class RetrofitConfig(PreTrainedConfig):
    """base: the pretrained model's config, `to_dict()`. layers: which of them got a memory.

    memory: MemorySpec.to_dict(), and heads: of each memory. window: tokens that attention sees,
    None for all, beside the first `sinks` of the text. lora: rank of what attention's maps may
    learn, 0 for nothing.
    """

    model_type = "atlas_retrofit"
    keys_to_ignore_at_inference = ("past_key_values",)

    base: dict[str, Any] | None = None
    variant: str | None = None
    memory: dict[str, Any] | None = None
    layers: list[int] | None = None
    heads: int = 1
    window: int | None = 1024
    sinks: int = 4
    lora: int = 0
    use_cache: bool = True
    rollback: int = 0
    vocab_size: int | None = None
    hidden_size: int | None = None
    intermediate_size: int | None = None
    num_hidden_layers: int | None = None
    num_attention_heads: int | None = None
    tie_word_embeddings: bool = False
    initializer_range: float = 0.02
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, **others: Any) -> None:
        refuse_unknown(others, type(self), hidden=_OF_THE_BASE)
        self.memory = plain_memory(self.memory)
        if self.base is not None and self.vocab_size is None:
            for name in _OF_THE_BASE:
                if name in self.base:
                    setattr(self, name, self.base[name])
        self.layers = list(self.layers or [])
        _check(self)
        PreTrainedConfig.__post_init__(self, **others)

    @property
    def base_config(self) -> PreTrainedConfig:
        """The base's own config, with as many tokens as this model has now."""
        if self.base is None:
            raise ValueError("RetrofitConfig has no base; make one with atlas_memory.retrofit")
        plain = {**self.base, "vocab_size": self.vocab_size}
        return AutoConfig.for_model(**plain)

    @property
    def width(self) -> int:
        assert self.hidden_size is not None
        return self.hidden_size

    @property
    def memory_spec(self) -> MemorySpec:
        if self.memory is None:
            raise ValueError("RetrofitConfig has no memory; make one with atlas_memory.retrofit")
        return MemorySpec.from_dict(self.memory)

    def fingerprint(self) -> str:
        """Name, shape and a digest of the layers: equal where states can be exchanged."""
        base = self.base or {}
        shape = f"{self.num_hidden_layers}x{self.hidden_size}x{self.heads}"
        parts = [base.get("rope_parameters"), base.get("rope_theta"), base.get("head_dim")]
        parts += [base.get("num_key_value_heads"), base.get("sliding_window")]
        parts += [self.memory, self.layers, self.window, self.sinks]
        digest = sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:8]
        return f"{base.get('model_type')}-{self.variant or 'custom'}-{shape}-{digest}"


def _check(config: RetrofitConfig) -> None:
    if config.window is not None and config.window < 1:
        raise ValueError(f"window={config.window}: give at least 1 token, or None for all")
    for name in ("sinks", "lora"):
        if getattr(config, name) < 0:
            raise ValueError(f"{name}={getattr(config, name)}: give 0 or more")
    depth, layers = config.num_hidden_layers, config.layers or []
    if depth is None:
        return
    for layer in layers:
        if not 0 <= layer < depth or layers.count(layer) > 1:
            raise ValueError(
                f"layers={layers}: give different layers of this model, from 0 to {depth - 1}"
            )


AutoConfig.register(RetrofitConfig.model_type, RetrofitConfig, exist_ok=True)
