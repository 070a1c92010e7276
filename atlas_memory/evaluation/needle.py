"""A language model on RULER's single needles, by its prompts: `atlas eval RUN --task niah`."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from atlas_memory.data.tokenizer import Tokenizer
from atlas_memory.evaluation.long_reading import SHARED, Prompt, Say, answers, by_length, planned
from atlas_memory.model import AtlasForCausalLM
from atlas_memory.tasks import needle

DEFAULTS: dict[str, Any] = SHARED | {
    "kinds": list(needle.KINDS),
    "lengths": [2_048, 4_096, 8_192, 16_384],
    "samples": 500,
    "megabytes": 1.0,
    "new_tokens": needle.ANSWER,
}


def evaluate(
    model: AtlasForCausalLM, tokenizer: Tokenizer, settings: Mapping[str, Any], say: Say
) -> dict[str, Any]:
    """Shares of answers that contain the value, by kind and length; settings as DEFAULTS."""
    plan, encode, corpus = planned(settings, DEFAULTS, tokenizer, say)
    noise = needle.noise(encode)

    def right(kind: str, length: int) -> list[bool]:
        haystack = noise if kind == "pk" else corpus
        generators = (np.random.default_rng([plan["seed"], n]) for n in range(plan["samples"]))
        drawn = [needle.sample(kind, length, haystack, encode, random) for random in generators]
        prompts = [Prompt(sample.context, encode(sample.question)) for sample in drawn]
        said = answers(model, tokenizer, prompts, plan, say)
        return [needle.found(s.value, a) for s, a in zip(drawn, said, strict=True)]

    return by_length("niah", plan["kinds"], plan, right, say) | {
        "deviations": [
            f"niah: the haystack of n and w is {plan['corpus']}, not Paul Graham's essays",
            f"niah: keys are drawn from {len(needle.KEYS):,} pairs of words of our own list",
        ],
    }
