"""Going on from a memory: transformers' generate, with the text written as it comes."""

# mypy: disable-error-code="no-untyped-call, misc"

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation.streamers import BaseStreamer

from atlas_memory.data.tokenizer import Tokenizer
from atlas_memory.names import suggest
from atlas_memory.reading.read import Memory, read

if TYPE_CHECKING:
    from atlas_memory.model import AtlasForCausalLM

Write = Callable[[str], None]
LONGEST_CHARACTER = 8  # tokens that may wait for the rest of a character


class Stream(BaseStreamer):
    """Writes text as soon as its tokens make whole characters, and keeps the tokens."""

    def __init__(self, tokenizer: Tokenizer, write: Write) -> None:
        self.write, self._text = write, _texts(tokenizer)
        self.tokens: list[int] = []
        self._prompt, self._context, self._written = True, 0, 0

    def put(self, value: Tensor) -> None:
        if self._prompt:
            self._prompt = False
            return
        self.add(value.flatten().tolist())

    def add(self, tokens: list[int]) -> None:
        self.tokens += tokens
        self._write(len(self.tokens) - self._written > LONGEST_CHARACTER)

    def end(self) -> None:
        self._write(True)

    def _write(self, at_all_costs: bool) -> None:
        """What the new tokens add to the last ones: of a token alone, blanks may be lost."""
        before = self._text(tuple(self.tokens[self._context : self._written]))
        now = self._text(tuple(self.tokens[self._context :]))
        if len(now) > len(before) and (at_all_costs or not now.endswith("\ufffd")):
            self.write(now[len(before) :])
            self._context, self._written = self._written, len(self.tokens)


@lru_cache(maxsize=4)
def _texts(tokenizer: Tokenizer) -> Callable[[tuple[int, ...]], str]:
    """Decodes some tokens, and knows those that it has decoded: most pairs come again."""

    @lru_cache(maxsize=2**16)
    def text(tokens: tuple[int, ...]) -> str:
        decoded: str = tokenizer.fast.decode(tokens, skip_special_tokens=True)
        return decoded

    return text


def generation_config(model: AtlasForCausalLM, changes: dict[str, Any]) -> GenerationConfig:
    """The model's own settings with some changed; any field of transformers' GenerationConfig."""
    config = deepcopy(model.generation_config) or GenerationConfig()
    known = [name for name in GenerationConfig().to_dict() if not name.startswith("_")]
    for name in changes:
        if name not in known:
            raise ValueError(f"unknown option {name!r} of generate; {suggest(name, known)}")
    try:
        config.update(**changes)
    except TypeError as error:
        raise ValueError(f"options {changes} of generate: {error}") from error
    if config.pad_token_id is None:
        ends = config.eos_token_id
        config.pad_token_id = (ends[0] if isinstance(ends, list) else ends) or 0
    return config


def generate(
    model: AtlasForCausalLM,
    memory: Memory | None,
    prompt: Sequence[int],
    config: GenerationConfig,
    stream: Stream,
) -> Memory:
    """Read the prompt, write what follows, and remember both; Ctrl-C only ends the text."""
    if memory is None:
        memory, prompt = read(model, [list(prompt[:1])]), prompt[1:]
    with torch.no_grad():
        try:
            model.generate(**memory.inputs([prompt]), generation_config=config, streamer=stream)
        except KeyboardInterrupt:
            stream.end()
    return read(model, [list(prompt), stream.tokens], memory)
