"""Which token comes next: the most probable one, or a draw that only its own seed decides."""

# mypy: disable-error-code="no-untyped-call, arg-type"

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

SEEDS = 2**63


@dataclass(frozen=True)
class Sampling:
    """temperature 0 is greedy. The others do nothing at their defaults.

    top_k, top_p, min_p are transformers'. bias: what is added to the logit of a token. presence,
    frequency: what is taken from it once, and each time, that the token was written, as OpenAI
    defines it.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    bias: tuple[tuple[int, float], ...] = ()
    presence: float = 0.0
    frequency: float = 0.0

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

    @property
    def shifts(self) -> bool:
        return bool(self.bias or self.presence or self.frequency)

    def shift(self, logits: Tensor, written: Counter[int]) -> Tensor:
        """The logits [v] with bias and penalties, `written` being the tokens so far."""
        shifted = logits.clone()
        for token, amount in self.bias:
            shifted[token] += amount
        for token, times in written.items():
            shifted[token] -= self.presence + self.frequency * times
        return shifted

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


@dataclass(eq=False)
class Sampler:
    """Chooses the tokens of one text, and knows those that it has chosen."""

    sampling: Sampling
    generator: torch.Generator | None = field(init=False)
    written: Counter[int] = field(default_factory=Counter, init=False)

    def __post_init__(self) -> None:
        self.generator = self.sampling.generator()

    def choose(self, scores: Tensor, best: int) -> int:
        """The next token from logits [v], of which `best` is the most probable one."""
        chosen = best
        if self.sampling.shifts:
            scores = self.sampling.shift(scores, self.written)
            chosen = int(scores.argmax())
        if self.generator is not None:
            probabilities = self.sampling.warp(scores[None]).softmax(dim=-1)
            chosen = int(torch.multinomial(probabilities[0], 1, generator=self.generator))
        self.written[chosen] += 1
        return chosen


def choose(logits: Tensor, samplers: Sequence[Sampler]) -> list[int]:
    """The next token of every row of logits [rows, v]; no choice depends on another row."""
    scores = logits.float().cpu()  # generate chooses in float32 too
    best: list[int] = scores.argmax(dim=-1).tolist()
    return [s.choose(scores[row], best[row]) for row, s in enumerate(samplers)]
