"""RetrofittedForCausalLM: a pretrained transformer with memories, as transformers knows a model."""

# mypy: disable-error-code="no-untyped-call, misc, assignment, union-attr, operator"

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import AutoModel, AutoModelForCausalLM, PreTrainedModel

from atlas_memory.layers.rows import Rows
from atlas_memory.memory.graphs import untraced_frame
from atlas_memory.memory.tree import State
from atlas_memory.model import LanguageModel, Reader
from atlas_memory.retrofitting.beside import MemoryBeside, add_low_rank
from atlas_memory.retrofitting.config import RetrofitConfig
from atlas_memory.retrofitting.families import require_llama_like, rotation
from atlas_memory.retrofitting.reading import NAME, Reading


class RetrofittedModel(Reader):
    """The base's own decoder, its attentions windowed and some of them with a memory beside."""

    config: RetrofitConfig
    config_class = RetrofitConfig
    _no_split_modules = None

    def __init__(self, config: RetrofitConfig, base: PreTrainedModel | None = None) -> None:
        """base: a decoder to be taken over; without one, a new one of the config's shape."""
        super().__init__(config)
        decoder: Any = AutoModel.from_config(config.base_config) if base is None else base
        self.base = decoder
        require_llama_like(self.base)
        self.base.config._attn_implementation = NAME
        for number in config.layers or []:
            layer, dim = decoder.layers[number], config.width
            layer.self_attn = MemoryBeside(layer.self_attn, dim, config.heads, config.memory_spec)
            _keep_weights(layer.self_attn)
        if config.lora:
            self.add_low_rank(config.lora)
        self._no_split_modules = self.base._no_split_modules
        self.post_init()

    @property
    def embed_tokens(self) -> nn.Module:
        return self.base.embed_tokens

    @property
    def layers(self) -> nn.ModuleList:
        return self.base.layers

    def get_input_embeddings(self) -> nn.Module:
        return self.base.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.base.embed_tokens = value

    def add_low_rank(self, rank: int) -> None:
        """Let the base's attentions learn in `rank` directions; at first this changes nothing."""
        for layer in self.base.layers:
            attention = layer.self_attn
            add_low_rank(getattr(attention, "attention", attention), rank)
            _keep_weights(attention)
        self.config.lora = rank

    @untraced_frame
    def _run(
        self, x: Tensor, states: tuple[State, ...], rows: Rows
    ) -> tuple[tuple[State, ...], list[Tensor]]:
        before: Any = states
        reading = Reading(x, rows, before, self.config, self._turn)
        out = self.base(
            inputs_embeds=x,
            position_ids=reading.position,
            use_cache=False,
            output_hidden_states=True,
            reading=reading,
        )
        return tuple(reading.after()), [*out.hidden_states[:-1], out.last_hidden_state]

    def _turn(self, q: Tensor, back: Tensor) -> Tensor:
        """Queries [b, t, h, d] as they would be `back` [b, t] positions earlier."""
        cos, sin = self.base.rotary_emb(q, back)
        unit = self.base.rotary_emb.attention_scaling
        attention = self.base.layers[0].self_attn
        turn = rotation(getattr(attention, "attention", attention))
        assert turn is not None
        q = q.transpose(1, 2)
        return turn(q, q, cos / unit, -sin / unit)[0].transpose(1, 2)


def _keep_weights(module: nn.Module) -> None:
    """The base would give what was added the weights that it gives to parts of its own."""
    for part in module.modules():
        part._is_hf_initialized = True


class RetrofittedForCausalLM(LanguageModel):
    """The retrofitted decoder and the base's own head."""

    config_class = RetrofitConfig
    _no_split_modules = None
    _tied_weights_keys = {"lm_head.weight": "model.base.embed_tokens.weight"}  # noqa: RUF012

    def __init__(
        self,
        config: RetrofitConfig,
        base: PreTrainedModel | None = None,
        head: nn.Module | None = None,
    ) -> None:
        super().__init__(config)
        self.model = RetrofittedModel(config, base)
        self.lm_head = head or nn.Linear(config.width, config.base_config.vocab_size, bias=False)
        self._no_split_modules = self.model._no_split_modules
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.model.set_input_embeddings(value)

    def memories(self) -> list[tuple[int, MemoryBeside]]:
        """The layers that got a memory."""
        found = enumerate(layer.self_attn for layer in self.model.layers)
        return [(n, part) for n, part in found if isinstance(part, MemoryBeside)]


AutoModel.register(RetrofitConfig, RetrofittedModel, exist_ok=True)
AutoModelForCausalLM.register(RetrofitConfig, RetrofittedForCausalLM, exist_ok=True)
