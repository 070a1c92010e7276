"""Which token comes next: the most probable one, or a draw that only its own seed decides."""

# mypy: disable-error-code="no-untyped-call, arg-type"

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

SEEDS = 2**63


@dataclass(frozen=True)
class Sampling:
    """temperature 0 is greedy. The others are transformers' and do nothing at their defaults."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None

    def generator(self) -> torch.Generator | None:
        """What a sequence of draws comes from; greedy needs none."""
        if not self.temperature:
            return None
        generator = torch.Generator()
        if self.seed is None:
            generator.seed()
        else:
            generator.manual_seed(self.seed % SEEDS)
        return generator

    def warp(self, logits: Tensor) -> Tensor:
        """The logits [1, v] that are drawn from, as transformers' generate would make them."""
        from transformers.generation import logits_process as processors

        warped = processors.TemperatureLogitsWarper(self.temperature)(None, logits)
        if self.top_k:
            warped = processors.TopKLogitsWarper(self.top_k)(None, warped)
        if self.top_p < 1:
            warped = processors.TopPLogitsWarper(self.top_p)(None, warped)
        if self.min_p:
            warped = processors.MinPLogitsWarper(self.min_p)(None, warped)
        return warped


GREEDY = Sampling()


def choose(
    logits: Tensor,  # [rows, v]
    samplings: Sequence[Sampling],
    generators: Sequence[torch.Generator | None],
) -> list[int]:
    """The next token of every row; no row's choice depends on another row."""
    scores = logits.float().cpu()  # generate chooses in float32 too
    chosen: list[int] = scores.argmax(dim=-1).tolist()
    for row, (sampling, generator) in enumerate(zip(samplings, generators, strict=True)):
        if generator is not None:
            probabilities = sampling.warp(scores[row : row + 1]).softmax(dim=-1)
            chosen[row] = int(torch.multinomial(probabilities[0], 1, generator=generator))
    return chosen
