"""AtlasConfig: a variant at a size, as the plain data that transformers saves."""

import json
from collections.abc import Collection
from copy import deepcopy
from dataclasses import fields
from hashlib import sha256
from itertools import cycle, islice
from typing import Any, Self

from transformers import AutoConfig, PreTrainedConfig

from atlas_memory.blocks import Mixer, Width, mixer_from_dict, mixer_to_dict
from atlas_memory.family import SIZES, VARIANTS, preset
from atlas_memory.layers.projections import designed_count
from atlas_memory.memory.products import require_products
from atlas_memory.memory.spec import MemorySpec
from atlas_memory.names import suggest

# What transformers itself writes into a config or passes to one, beside the fields it declares.
OF_TRANSFORMERS = {
    "attn_implementation",
    "auto_map",
    "experts_implementation",
    "model_type",
    "name_or_path",
    "num_labels",
    "output_attentions",
    "per_layer_config",
    "quantization_config",
    "torch_dtype",
}


class AtlasConfig(PreTrainedConfig):
    """Shape of the outer network, its pattern of mixers and the memory inside them.

    mixers: {"mixer": name, ...} per layer, repeated over the depth. memory: MemorySpec.to_dict().
    Both may be given as objects of `blocks` and `memory`; they are stored as plain data.
    designed_heads: how many heads of a memory start with q = k and an output map that undoes that
    of the values, "all", "half" or "none".
    admission: memories have a write gate that decides which tokens they take in.
    value_path: what a memory reads out is its answer and, weighted by channel, the token's own v.
    memory_products: "bfloat16" rounds the factors of the memories' matrix products, nothing else.
    rollback: tokens that `AtlasCache.crop` can always take back.
    """

    model_type = "atlas_memory"
    keys_to_ignore_at_inference = ("past_key_values",)

    variant: str | None = None
    vocab_size: int = 32_000
    hidden_size: int = 64
    intermediate_size: int = 256
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    mixers: list[dict[str, Any]] | None = None
    memory: dict[str, Any] | None = None
    designed_heads: str = "half"
    admission: bool = False
    value_path: bool = False
    memory_products: str = "float32"
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    use_cache: bool = True
    rollback: int = 0
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, **others: Any) -> None:
        refuse_unknown(others, type(self))
        given = [{"mixer": "attention"}] if self.mixers is None else self.mixers
        if not given:
            raise ValueError("mixers=[]: give at least one; they are repeated over the layers")
        parsed = [m if not isinstance(m, dict) else mixer_from_dict(m) for m in given]
        self.mixers = [mixer_to_dict(mixer) for mixer in parsed]
        self.memory = plain_memory(self.memory)
        _check_shape(self)
        PreTrainedConfig.__post_init__(self, **others)

    def __repr__(self) -> str:
        shape = f"{self.num_hidden_layers} layers of {self.hidden_size}"
        heads = f"{self.num_attention_heads} heads, vocabulary {self.vocab_size:,}"
        memory = "" if self.memory_spec is None else f", memory={self.memory_spec}"
        return f"AtlasConfig({self.variant or 'custom'}: {shape}, {heads}{memory})"

    @property
    def memory_spec(self) -> MemorySpec | None:
        return None if self.memory is None else MemorySpec.from_dict(self.memory)

    @property
    def width(self) -> Width:
        heads = self.num_attention_heads
        shape = self.hidden_size, heads, self.memory_spec, self.rope_theta
        options = self.designed_heads, self.admission, self.value_path, self.memory_products
        return Width(*shape, *options)

    def mixer_of_layer(self) -> list[Mixer]:
        """The mixer of every layer: the pattern, repeated over the depth."""
        pattern = [mixer_from_dict(plain) for plain in self.mixers or []]
        return list(islice(cycle(pattern), self.num_hidden_layers))

    def fingerprint(self) -> str:
        """Name, shape and a digest of the layers: equal where states can be exchanged."""
        shape = f"{self.num_hidden_layers}x{self.hidden_size}x{self.num_attention_heads}"
        memory = None if self.memory_spec is None else self.memory_spec.to_dict(brief=True)
        parts = [self.mixers, memory, self.rope_theta, *([True] if self.admission else [])]
        layers = json.dumps(parts, sort_keys=True)
        digest = sha256(layers.encode()).hexdigest()[:8]
        return f"{self.variant or 'custom'}-{shape}-{digest}"

    @classmethod
    def from_variant(cls, variant: str, size: str = "small", **overrides: Any) -> Self:
        """A model of the paper at a size; any field may be given as an override.

        Fields of the memory are reached by a dot or a table: `**{"memory.window": 8}` or
        `memory={"window": 8}`.
        """
        if variant not in VARIANTS:
            raise ValueError(f"unknown variant {variant!r}; {suggest(variant, list(VARIANTS))}")
        if size not in SIZES:
            raise ValueError(f"unknown size {size!r}; {suggest(size, list(SIZES))}")
        plain = deepcopy(preset(variant, size))
        for name, value in overrides.items():
            _override(plain, name, value, cls)
        return cls(**plain)


def _override(plain: dict[str, Any], name: str, value: Any, config: type[AtlasConfig]) -> None:
    """Set one field, or by `memory.window` or a table of changes a field of the memory."""
    head, _, path = name.partition(".")
    changes_memory = name == "memory" and isinstance(value, dict) and plain["memory"] is not None
    if not path and not changes_memory:
        refuse_unknown({name: value}, config)
        plain[name] = value
        return
    if head != "memory" or plain["memory"] is None:
        raise ValueError(f"{name}={value!r}: {plain['variant']} has no memory with that field")
    for field, change in ({path: value} if path else value).items():
        set_field(plain["memory"], field.split("."), change)


def set_field(table: dict[str, Any], path: list[str], value: Any) -> None:
    """Set a field of a memory's plain data, however deep."""
    *way, last = path
    for step in way:
        if not isinstance(table.get(step), dict):
            raise ValueError(f"unknown field {step!r} of the memory; {suggest(step, list(table))}")
        table = table[step]
    if last not in table:
        raise ValueError(f"unknown field {last!r} of the memory; {suggest(last, list(table))}")
    table[last] = value


def plain_memory(memory: Any) -> dict[str, Any] | None:
    """A MemorySpec, or the plain data of one, as plain data with every field."""
    if memory is None:
        return None
    spec = memory if isinstance(memory, MemorySpec) else MemorySpec.from_dict(memory)
    return spec.to_dict()


def refuse_unknown(
    given: dict[str, Any], config: type[PreTrainedConfig], hidden: Collection[str] = ()
) -> None:
    """A field that neither `config` nor transformers knows; `hidden` ones are not suggested."""
    known = {field.name for field in fields(config)} | OF_TRANSFORMERS
    for name in given:
        if name not in known and not name.startswith("_"):
            own = [n for n in config.__annotations__ if n not in ("model_type", *hidden)]
            what = f"unknown field {name!r} of {config.__name__}"
            raise ValueError(f"{what}; {suggest(name, own)}")


def _check_shape(config: AtlasConfig) -> None:
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    for name in (*sizes, "num_attention_heads"):
        value = getattr(config, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name}={value!r}: it must be a whole number of at least 1")
    for name in ("admission", "value_path"):
        if not isinstance(value := getattr(config, name), bool):
            raise ValueError(f"{name}={value!r}: it must be true or false")
    if not isinstance(config.rollback, int) or config.rollback < 0:
        raise ValueError(f"rollback={config.rollback!r}: it must be a whole number of at least 0")
    if config.hidden_size % config.num_attention_heads:
        divisors = [h for h in range(1, config.hidden_size + 1) if config.hidden_size % h == 0]
        raise ValueError(
            f"num_attention_heads={config.num_attention_heads} does not divide "
            f"hidden_size={config.hidden_size}; choose from: {', '.join(map(str, divisors))}"
        )
    designed_count(config.designed_heads, config.num_attention_heads)
    require_products(config.memory_products, "memory_products")


AutoConfig.register(AtlasConfig.model_type, AtlasConfig, exist_ok=True)

# Whoever knows our models knows the retrofitted ones, which are built on this module.
import atlas_memory.retrofitting.config  # noqa: E402, F401
