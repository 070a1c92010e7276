"""A language model on RULER's single needles, by its prompts: `atlas eval RUN --task niah`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from atlas_memory.data.tokenizer import Tokenizer
from atlas_memory.evaluation.long_reading import Prompt, Say, answers, chosen
from atlas_memory.model import AtlasForCausalLM
from atlas_memory.tasks import needle
from atlas_memory.tasks.corpora import backgrounds

DEFAULTS: dict[str, Any] = {
    "kinds": list(needle.KINDS),
    "lengths": [2_048, 4_096, 8_192, 16_384],
    "samples": 500,
    "corpus": "enwik8",
    "megabytes": 1.0,
    "new_tokens": needle.ANSWER,
    "batch": 8,
    "seed": 42,
}


def evaluate(
    model: AtlasForCausalLM, tokenizer: Tokenizer, settings: Mapping[str, Any], say: Say
) -> dict[str, Any]:
    """Shares of answers that contain the value, by kind and length; settings as DEFAULTS."""
    plan = chosen(settings, DEFAULTS)
    encode = partial(tokenizer.fast.encode, add_special_tokens=False)
    every = range(tokenizer.vocab_size)
    _, corpus = backgrounds(plan["corpus"], plan["megabytes"], encode, every, say)
    figures: dict[str, Any] = {}
    for kind in plan["kinds"]:
        haystack = needle.noise(encode) if kind == "pk" else corpus
        for length in plan["lengths"]:
            drawn = [
                needle.sample(
                    kind, length, haystack, encode, np.random.default_rng([plan["seed"], n])
                )
                for n in range(plan["samples"])
            ]
            prompts = [Prompt(sample.context, encode(sample.question)) for sample in drawn]
            said = answers(model, tokenizer, prompts, plan, say)
            right = [needle.found(s.value, a) for s, a in zip(drawn, said, strict=True)]
            figures[f"{kind}_{length}"] = float(np.mean(right))
            say(f"niah {kind} at {length:,} tokens: {figures[f'{kind}_{length}']:.3f}")
    return {
        "accuracy": float(np.mean(list(figures.values()))),
        **figures,
        "items": plan["samples"],
        "deviations": [
            f"niah: the haystack of n and w is {plan['corpus']}, not Paul Graham's essays",
            f"niah: keys are drawn from {len(needle.KEYS):,} pairs of words of our own list",
        ],
    }
