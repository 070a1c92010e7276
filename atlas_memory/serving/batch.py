"""Rows that decode together, wherever each of them stands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from atlas_memory.cache import AtlasCache
from atlas_memory.serving.jobs import Completion, Finished, Ticket, Token
from atlas_memory.serving.sampling import Sampler, choose
from atlas_memory.serving.scores import Score, scores

if TYPE_CHECKING:
    from atlas_memory.model import AtlasForCausalLM


@dataclass(eq=False)
class Row:
    """A completion that decodes: its last token is fed next."""

    ticket: Ticket
    job: Completion
    sampler: Sampler
    last: int = -1
    written: int = field(default=0)

    @staticmethod
    def of(ticket: Ticket) -> Row:
        assert isinstance(ticket.job, Completion)
        return Row(ticket, ticket.job, Sampler(ticket.job.sampling))

    def write(self, token: int, score: Score | None) -> list[Token | Finished]:
        """What is told about the next token."""
        if token in self.job.ends:
            return [Finished("stop")]
        self.last, self.written = token, self.written + 1
        told = Token(token, score)
        return [told, Finished("length")] if self.written == self.job.max_new_tokens else [told]


def next_tokens(logits: Tensor, rows: Sequence[Row]) -> list[tuple[int, Score | None]]:
    """What every row writes next, from logits [rows, v], and its score where one is wanted."""
    tokens = choose(logits, [row.sampler for row in rows])
    scored: list[Score | None] = [None] * len(rows)
    wanted = {i: row.job.top for i, row in enumerate(rows) if row.job.top is not None}
    if wanted:
        chosen = torch.tensor([tokens[i] for i in wanted], device=logits.device)
        found = scores(logits[list(wanted)], chosen, max(wanted.values()))
        for (i, top), score in zip(wanted.items(), found, strict=True):
            scored[i] = replace(score, top=score.top[:top])
    return list(zip(tokens, scored, strict=True))


class Batch:
    """Rows at different positions that share every decode step."""

    def __init__(self, device: torch.device) -> None:
        self.rows: list[Row] = []
        self._cache, self._device = AtlasCache(), device

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, rows: Sequence[Row], caches: Sequence[AtlasCache]) -> None:
        if rows:
            kept = [self._cache] if self.rows else []
            self._cache = AtlasCache.join([*kept, *caches])
            self.rows += rows

    def keep(self, rows: Sequence[Row]) -> None:
        """Let the others go."""
        if len(rows) == len(self.rows):
            return
        index = torch.tensor([self.rows.index(row) for row in rows], device=self._device)
        self._cache = self._cache.select(index) if rows else AtlasCache()
        self.rows = list(rows)

    def step(self, model: AtlasForCausalLM) -> list[tuple[int, Score | None]]:
        """Feed every row's last token; the next one of each."""
        ids = torch.tensor([[row.last] for row in self.rows], device=self._device)
        out = model(ids, past_key_values=self._cache, use_cache=True)
        self._cache = out.past_key_values
        return next_tokens(out.logits[:, -1], self.rows)
