"""AtlasModel and AtlasForCausalLM: embed, blocks, head, as transformers knows a model."""

# transformers is typed in parts: its base classes take FloatTensor where torch returns Tensor.
# mypy: disable-error-code="no-untyped-call, untyped-decorator, no-any-return"
# mypy: disable-error-code="arg-type, override, misc"

import math
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForCausalLM, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from atlas_memory.blocks import Block
from atlas_memory.cache import AtlasCache
from atlas_memory.config import AtlasConfig
from atlas_memory.layers.projections import RMSNorm
from atlas_memory.layers.rows import Rows
from atlas_memory.memory.graphs import untraced, untraced_frame
from atlas_memory.memory.tree import State
from atlas_memory.rollback import Piece, Segment

LOGITS = 1 << 22  # numbers of one slice of logits
BITS = 1 / math.log(2)  # of a nat


class AtlasPreTrainedModel(PreTrainedModel):
    """What transformers has to know about every model of this package."""

    config_class = AtlasConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True
    _no_split_modules = ["Block"]  # noqa: RUF012
    _supports_sdpa = True
    # transformers refuses assisted generation of stateful models; ours take tokens back exactly.
    _is_stateful = False

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Every module knows how it starts; the embeddings belong to the model."""
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
        elif callable(reset := getattr(module, "reset_parameters", None)):
            reset()

    @torch.no_grad()
    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        """What no checkpoint gave starts as its module says, and what one gave stays.

        transformers comes here children first. Its own version takes a module without parameters
        of its own for done, so that a parent's start never followed that of its children.
        """
        if getattr(module, "_is_hf_initialized", False):
            return
        tensors = [*module.parameters(), *module.buffers()]
        loaded = [x for x in tensors if _is_loaded(x)]
        missing = [x for x in tensors if not _is_loaded(x)]
        if any(x.is_meta for x in missing):  # shapes alone: the start is still to come
            return
        if missing and (isinstance(module, nn.Embedding) or hasattr(module, "reset_parameters")):
            values = [x.clone() for x in loaded]
            self._init_weights(module)
            for x, value in zip(loaded, values, strict=True):
                x.copy_(value)
        module._is_hf_initialized = True  # type: ignore[assignment]

    def compile(
        self, *, backend: str = "inductor", mode: str | None = None, dynamic: bool | None = None
    ) -> None:
        """Compile the blocks in place, those that are alike once.

        `torch.compile(model)` makes the same graphs and finds its way to them anew in every call.
        """
        for module in self.modules():
            if isinstance(module, Block):
                module.compile(backend=backend, mode=mode, dynamic=dynamic)


def _is_loaded(tensor: Tensor) -> bool:
    """Whether it came from a checkpoint; a quantized one has no other origin."""
    return getattr(tensor, "_is_hf_initialized", False) or not tensor.is_floating_point()


class Reader(AtlasPreTrainedModel):
    """Abstract: tokens through layers whose states an AtlasCache carries.

    A reader has embeddings, and `_run`, which takes packed rows through its layers. fingerprint:
    what two models must have in common to share a cache.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.fingerprint: str = config.fingerprint()

    def _run(
        self, x: Tensor, states: tuple[State, ...], rows: Rows
    ) -> tuple[tuple[State, ...], list[Tensor]]:
        raise NotImplementedError

    @can_return_tuple
    @untraced_frame
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: AtlasCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
    ) -> BaseModelOutputWithPast:
        if output_attentions:
            raise ValueError("output_attentions=True: a memory has no attention maps to return")
        x = self._embed(input_ids, inputs_embeds)
        self._check_cache(past_key_values, len(x))
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        if past_key_values is None and not use_cache:  # as in training: nothing is carried on
            rows = Rows.read((x.shape[0], x.shape[1]), attention_mask, position_ids, seen=0)
            cache, (_, hidden) = None, self._pass(x, rows, (), output_hidden_states)
        else:
            cache = AtlasCache() if past_key_values is None else past_key_values
            piece = Piece.read(x, attention_mask, position_ids, cache.seen)
            horizon = self.config.rollback if use_cache else 0
            hidden, cache = self._read(piece, cache, horizon, output_hidden_states)
        return BaseModelOutputWithPast(
            last_hidden_state=hidden[-1],
            past_key_values=cache if use_cache else None,
            hidden_states=tuple(hidden) if output_hidden_states else None,
        )

    @untraced_frame
    def _pass(
        self, x: Tensor, rows: Rows, states: tuple[State, ...], all_layers: bool
    ) -> tuple[tuple[State, ...], list[Tensor]]:
        """The states behind x [b, t, dim], and its normed output; before it every block's input."""
        states, hidden = self._run(rows.pack(x), states, rows)
        return states, [rows.unpack(h) for h in (hidden if all_layers else hidden[-1:])]

    @untraced_frame
    def _read(
        self, piece: Piece, cache: AtlasCache, horizon: int, all_layers: bool
    ) -> tuple[list[Tensor], AtlasCache]:
        """`_pass` for `piece`, and the cache behind it.

        What a crop has left to be read again goes first, and is not part of the output.
        """
        past = replace(cache.past, horizon=max(cache.past.horizon, horizon))
        states, read, outputs = cache.states, [], []
        for part in past.passes(piece):
            read.append(Segment(states, part))
            states, hidden = self._pass(part.x, part.rows, states, all_layers)
            outputs.append(hidden)
        last = [torch.cat(parts, 1)[:, -len(piece) :] for parts in zip(*outputs, strict=True)]
        seen = cache.seen + len(piece)
        return last, AtlasCache(states, seen, self.fingerprint, past.after(read))

    @untraced
    def _embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds, and not both")
        if inputs_embeds is not None:
            _check_text(
                "inputs_embeds", inputs_embeds, f"[rows, tokens, {self.config.hidden_size}]"
            )
            return inputs_embeds
        assert input_ids is not None
        _check_text("input_ids", input_ids, "[rows, tokens]")
        if input_ids.is_floating_point():
            raise ValueError(f"input_ids is {input_ids.dtype}; give whole numbers, torch.long")
        try:
            embedded: Tensor = self.get_input_embeddings()(input_ids)
        except IndexError as error:  # the ids are looked at only where something is wrong
            raise ValueError(_wrong_id(input_ids, self.config.vocab_size)) from error
        return embedded

    @untraced
    def _check_cache(self, cache: AtlasCache | None, batch: int) -> None:
        if cache is None:
            return
        if not isinstance(cache, AtlasCache):
            raise ValueError(f"past_key_values is a {type(cache).__name__}; give an AtlasCache")
        if cache.states and cache.fingerprint != self.fingerprint:
            raise ValueError(
                f"the cache was made by {cache.fingerprint} and this model is {self.fingerprint}; "
                "give a cache of the same model"
            )
        if cache.states and cache.batch_size != batch:
            raise ValueError(
                f"the cache holds {cache.batch_size} rows and the input {batch}; "
                "choose rows with cache.select(rows)"
            )


class AtlasModel(Reader):
    """Embedding, blocks and a final norm."""

    def __init__(self, config: AtlasConfig) -> None:
        super().__init__(config)
        dim, hidden, eps = config.hidden_size, config.intermediate_size, config.rms_norm_eps
        mixers = [mixer.build(config.width) for mixer in config.mixer_of_layer()]
        self.embed_tokens = nn.Embedding(config.vocab_size, dim)
        self.layers = nn.ModuleList(Block(dim, hidden, mixer, eps) for mixer in mixers)
        self.norm = RMSNorm(dim, eps)
        self.gradient_checkpointing = False
        self.post_init()

    @untraced_frame
    def _run(
        self, x: Tensor, states: tuple[State, ...], rows: Rows
    ) -> tuple[tuple[State, ...], list[Tensor]]:
        """Through all blocks: the new states, every block's input and the normed output."""
        before: tuple[State | None, ...] = states or (None,) * len(self.layers)
        after, hidden = [], []
        for block, state in zip(self.layers, before, strict=True):
            hidden.append(x)
            call = partial(block, starts=rows.starts, lengths=rows.lengths)
            if self.gradient_checkpointing and self.training:
                x, state = self._gradient_checkpointing_func(call, x, state)
            else:
                x, state = call(x, state)
            after.append(state)
        return tuple(after), [*hidden, self.norm(x)]


def _check_text(name: str, given: Tensor, shape: str) -> None:
    if given.ndim != shape.count(",") + 1:
        raise ValueError(f"{name} has shape {list(given.shape)}; give {shape}")
    if given.shape[1] == 0:
        raise ValueError(f"the text is empty: {tuple(given.shape)} has no token; give at least one")


def _wrong_id(input_ids: Tensor, vocabulary: int) -> str:
    low, high = int(input_ids.min()), int(input_ids.max())
    wrong = low if low < 0 else high
    return f"token id {wrong} is not in the vocabulary; ids go from 0 to {vocabulary - 1}"


class LanguageModel(AtlasPreTrainedModel, GenerationMixin):
    """Abstract: a Reader `model` and a head `lm_head` over the vocabulary."""

    @can_return_tuple
    @untraced_frame
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: AtlasCache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: int | Tensor | None = None,
    ) -> CausalLMOutputWithPast:
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
        )
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, keep])
        loss = None
        if labels is not None:
            if logits.shape[:2] != labels.shape:
                raise ValueError(
                    f"labels {tuple(labels.shape)} do not fit logits {tuple(logits.shape[:2])}; "
                    "give one label per token and logits_to_keep=0"
                )
            seen = 0 if past_key_values is None else past_key_values.seen
            rows = Rows.read((labels.shape[0], labels.shape[1]), attention_mask, position_ids, seen)
            loss = next_token_loss(logits, rows.targets(labels), num_items_in_batch)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
        )

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        past_key_values: AtlasCache | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        is_first_iteration: bool | None = False,
        **kwargs: Any,  # by this name transformers sees that forward's arguments are welcome
    ) -> dict[str, Any]:
        """transformers' own, which would silently misread a text shorter than its cache.

        Its assisted generation gives the whole text even where a cache has read a part of it.
        """
        seen = 0 if past_key_values is None else past_key_values.seen
        masked = input_ids.shape[1] if attention_mask is None else attention_mask.shape[1]
        if is_first_iteration and next_sequence_length is None and 0 < seen < masked:
            next_sequence_length = masked - seen
        if seen and next_sequence_length is not None and next_sequence_length <= 0:
            raise ValueError(
                f"the cache has read {seen} tokens, the text has {input_ids.shape[1]}; give "
                "the whole text, or its new tokens with an attention_mask that covers all of it"
            )
        if is_first_iteration and attention_mask is not None and not attention_mask.any(1).all():
            raise ValueError(f"a prompt is empty: {tuple(attention_mask.shape)} has a row of zeros")
        inputs: dict[str, Any] = super().prepare_inputs_for_generation(
            input_ids,
            next_sequence_length=next_sequence_length,
            past_key_values=past_key_values,
            attention_mask=attention_mask,
            inputs_embeds=inputs_embeds,
            is_first_iteration=is_first_iteration,
            **kwargs,
        )
        return inputs

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *rest: Any
    ) -> None:
        """A cache of ours, whatever transformers would have made."""
        kind = generation_config.cache_implementation
        if kind is not None:
            raise ValueError(f"cache_implementation={kind!r}: this model has one cache, AtlasCache")
        if generation_config.use_cache and model_kwargs.get("past_key_values") is None:
            model_kwargs["past_key_values"] = AtlasCache()
        if generation_config.is_assistant:
            model_kwargs["past_key_values"].activate_past_recording()


def feed(model: LanguageModel, ids: Tensor, cache: AtlasCache | None) -> tuple[Tensor, AtlasCache]:
    """Read ids [rows, t] behind what the cache knows: hidden [rows, t, dim], and the cache then."""
    known = cache if cache is not None and cache.states else None
    out = model.model(ids, past_key_values=known, use_cache=True)
    return out.last_hidden_state, out.past_key_values


def surprise(model: LanguageModel, hidden: Tensor, tokens: Tensor) -> Tensor:
    """Bits [rows, t] of each token; logits of a long block never exist at once."""
    rows, vocabulary = len(tokens), model.config.vocab_size
    step = max(1, LOGITS // (rows * vocabulary))
    bits = []
    for part, target in zip(hidden.split(step, 1), tokens.split(step, 1), strict=True):
        logits = model.lm_head(part).mT
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        bits.append(F.cross_entropy(logits, target, reduction="none") * BITS)
    return torch.cat(bits, dim=1)


class AtlasForCausalLM(LanguageModel):
    """A language model: AtlasModel and a head over the vocabulary."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: AtlasConfig) -> None:
        super().__init__(config)
        self.model = AtlasModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()


def next_token_loss(logits: Tensor, labels: Tensor, count: int | Tensor | None) -> Tensor:
    """Cross entropy of every label given the logits before it; -100 is left out.

    `count` is the number of labels to divide by where a batch comes in parts.
    """
    logits = logits[:, :-1].to(torch.promote_types(logits.dtype, torch.float32))
    targets = labels[:, 1:].to(logits.device)
    total = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    own = (targets != -100).sum().clamp(min=1)
    return total / (own if count is None else count)


AutoModel.register(AtlasConfig, AtlasModel, exist_ok=True)
AutoModelForCausalLM.register(AtlasConfig, AtlasForCausalLM, exist_ok=True)

# Whoever knows our models knows the retrofitted ones, which are built on this module.
import atlas_memory.retrofitting.model  # noqa: E402, F401
