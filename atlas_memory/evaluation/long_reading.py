"""Read texts of any length, side by side, in constant memory, and ask about them afterwards."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atlas_memory.cache import AtlasCache
from atlas_memory.data.tokenizer import Tokenizer
from atlas_memory.files import whole
from atlas_memory.model import AtlasForCausalLM, feed
from atlas_memory.names import suggest
from atlas_memory.tasks.background import Background, Hidden, in_rows
from atlas_memory.tasks.corpora import backgrounds

Say = Callable[[str], None]

BLOCK = 2_048  # tokens of a forward pass
SECONDS_BETWEEN_SAVES = 60.0
# What all tasks that are asked by prompts are set to.
SHARED = {"corpus": "enwik8", "batch": 8, "seed": 42}


@torch.no_grad()
def read_through(
    model: AtlasForCausalLM,
    blocks: Iterable[np.ndarray[Any, Any]],
    tokens: int,
    say: Say,
    keep: Path | None = None,
) -> AtlasCache:
    """What the model knows after the blocks [rows, t] of `tokens` tokens a row.

    With `keep` it is written to that file every minute, and a second call goes on from there: it
    must be given the same blocks. No logits are made: nothing is predicted while reading.
    """
    cache = AtlasCache.load(keep) if keep is not None and keep.is_file() else AtlasCache()
    begun, saved, passed, first = time.monotonic(), time.monotonic(), 0, cache.seen
    for block in blocks:
        passed += block.shape[1]
        if passed <= first:
            continue
        ids = torch.from_numpy(block).long().to(model.device)
        _, cache = feed(model, ids, cache)
        now = time.monotonic()
        if now - saved >= SECONDS_BETWEEN_SAVES:
            saved = now
            speed = len(block) * (passed - first) / (now - begun)
            say(f"read {passed:,} of {tokens:,} tokens in {len(block)} rows, {speed:,.0f} tokens/s")
            if keep is not None:
                with whole(keep) as draft:
                    cache.save(draft)
    if keep is not None:
        keep.unlink(missing_ok=True)
    return cache


@torch.no_grad()
def answer(
    model: AtlasForCausalLM,
    cache: AtlasCache,
    questions: Sequence[tuple[int, Sequence[int]]],
    new_tokens: int = 1,
) -> list[list[int]]:
    """The most probable continuation of each question, (row, ids), by `new_tokens` ids.

    Every question is asked of the memory as it was after the text: none sees another.
    """
    answers: list[list[int]] = [[] for _ in questions]
    for length in sorted({len(ids) for _, ids in questions}):
        same = [n for n, (_, ids) in enumerate(questions) if len(ids) == length]
        rows = torch.tensor([questions[n][0] for n in same], device=model.device)
        ids = torch.tensor([list(questions[n][1]) for n in same], device=model.device)
        for n, said in zip(
            same, _continue(model, cache.select(rows), ids, new_tokens), strict=True
        ):
            answers[n] = said
    return answers


def _continue(
    model: AtlasForCausalLM, cache: AtlasCache, ids: Tensor, new_tokens: int
) -> list[list[int]]:
    said: list[Tensor] = []
    for _ in range(new_tokens):
        out = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache, ids = out.past_key_values, out.logits[:, -1:].argmax(dim=-1)
        said.append(ids)
    return torch.cat(said, dim=1).tolist()


@dataclass(frozen=True)
class Prompt:
    """A long context and the ids behind it, whose continuation is the answer."""

    context: Hidden
    question: Sequence[int]


def answers(
    model: AtlasForCausalLM,
    tokenizer: Tokenizer,
    prompts: Sequence[Prompt],
    plan: Mapping[str, Any],
    say: Say,
) -> list[str]:
    """What the model says to each prompt; contexts of one length are read side by side."""
    said = [""] * len(prompts)
    for length in sorted({len(prompt.context) for prompt in prompts}):
        same = [n for n, prompt in enumerate(prompts) if len(prompt.context) == length]
        for some in (same[i : i + plan["batch"]] for i in range(0, len(same), plan["batch"])):
            blocks = in_rows([prompts[n].context for n in some], BLOCK)
            cache = read_through(model, blocks, length, say)
            asked = [(row, prompts[n].question) for row, n in enumerate(some)]
            for n, ids in zip(some, answer(model, cache, asked, plan["new_tokens"]), strict=True):
                said[n] = tokenizer.fast.decode(ids)
    return said


def planned(
    settings: Mapping[str, Any], defaults: Mapping[str, Any], tokenizer: Tokenizer, say: Say
) -> tuple[dict[str, Any], Any, Background]:
    """The defaults with the settings in their place (a name that is none of them is refused), how
    to encode a text, and the text that questions are hidden in.
    """
    for name in settings:
        if name not in defaults:
            raise ValueError(f"unknown setting {name!r}; {suggest(name, list(defaults))}")
    plan = {**defaults, **settings}
    encode, every = partial(tokenizer.fast.encode, add_special_tokens=False), tokenizer.vocab_size
    _, testing = backgrounds(plan["corpus"], plan["megabytes"], encode, range(every), say)
    return plan, encode, testing


def by_length(
    what: str,
    names: Sequence[str],
    plan: Mapping[str, Any],
    right: Callable[[str, int], Sequence[bool]],
    say: Say,
) -> dict[str, Any]:
    """Shares of `right(name, length)` for all names and lengths; `accuracy` is their mean."""
    figures: dict[str, Any] = {}
    for name, length in product(names, plan["lengths"]):
        figures[f"{name}_{length}"] = float(np.mean(right(name, length)))
        say(f"{what} {name} at {length:,} tokens: {figures[f'{name}_{length}']:.3f}")
    mean = float(np.mean(list(figures.values())))
    return {"accuracy": mean, **figures, "items": plan["samples"]}
