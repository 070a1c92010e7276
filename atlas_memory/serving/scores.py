"""How probable the model found a token, and what it found most probable in its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from atlas_memory.model import LOGITS

if TYPE_CHECKING:
    from atlas_memory.model import AtlasForCausalLM


@dataclass(frozen=True)
class Score:
    """A token and its log p; None where nothing predicted it. top: the most probable ones."""

    token: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()


def scores(logits: Tensor, tokens: Tensor, top: int) -> list[Score]:
    """Of tokens [n] given the logits [n, v] before each, which no sampling has changed."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    logprobs = logits.to(wide).log_softmax(dim=-1)
    own = logprobs.gather(1, tokens[:, None])[:, 0].tolist()
    best = logprobs.topk(min(top, logprobs.shape[1]), dim=-1)
    tops = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [
        Score(token, logprob, tuple(zip(*pair, strict=True)))
        for token, logprob, pair in zip(tokens.tolist(), own, tops, strict=True)
    ]


def scores_of(model: AtlasForCausalLM, hidden: Tensor, tokens: Tensor, top: int) -> list[Score]:
    """Of tokens [n] given the model's output [n, dim] before each; logits exist in slices only."""
    step = max(1, LOGITS // model.config.vocab_size)
    parts = zip(hidden.split(step), tokens.split(step), strict=True)
    return [s for part, target in parts for s in scores(model.lm_head(part), target, top)]
