"""Sequences in the making: prompts that are read block by block, rows that decode together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from atlas_memory.cache import AtlasCache
from atlas_memory.serving.jobs import Completion, Finished, Reading, Ticket, Token
from atlas_memory.serving.reading import Memory, surprise
from atlas_memory.serving.sampling import choose

if TYPE_CHECKING:
    from atlas_memory.model import AtlasForCausalLM
    from atlas_memory.serving.fingerprint import Fingerprint


class Prefill:
    """A job whose tokens are being fed. A completion feeds them all, a reading all but the last."""

    def __init__(self, ticket: Ticket, device: torch.device) -> None:
        self.ticket, self.device = ticket, device
        job = ticket.job
        self.known = job.known
        self.end = self.known.shape[1] - isinstance(job, Reading)
        self.fed, self.bits = 0, [torch.zeros(1, 0)]
        self.cache = AtlasCache() if job.memory is None else job.memory.cache
        self.logits: Tensor | None = None

    @property
    def done(self) -> bool:
        return self.fed == self.end

    def next_size(self, block: int) -> int:
        return min(block, self.end - self.fed)

    def feed(self, model: AtlasForCausalLM, block: int) -> None:
        """One forward pass over the next `block` tokens."""
        begin, self.fed = self.fed, self.fed + self.next_size(block)
        ids = self.known[:, begin : self.fed].to(self.device)
        past = self.cache if self.cache.states else None
        out = model.model(ids, past_key_values=past, use_cache=True)
        self.cache = out.past_key_values
        if isinstance(self.ticket.job, Reading):
            targets = self.known[:, begin + 1 : self.fed + 1].to(self.device)
            self.bits.append(surprise(model, out.last_hidden_state, targets).cpu())
        elif self.done:
            self.logits = model.lm_head(out.last_hidden_state[:, -1])

    def finished(self, own: Fingerprint) -> Finished:
        """Of a reading: the memory behind it."""
        bits, before = torch.cat(self.bits, dim=1), self.ticket.job.memory
        total = bits.double().sum(dim=1)
        total = total if before is None else total + before.bits.cpu()
        memory = Memory(own, self.cache, self.known[:, -1:], total)
        return Finished("read", memory.to(self.device), bits[0])


@dataclass(eq=False)
class Row:
    """A completion that decodes: its last token is fed next."""

    ticket: Ticket
    job: Completion
    generator: torch.Generator | None
    last: int = -1
    written: int = field(default=0)

    @staticmethod
    def of(ticket: Ticket) -> Row:
        assert isinstance(ticket.job, Completion)
        return Row(ticket, ticket.job, ticket.job.sampling.generator())

    def write(self, token: int) -> list[Token | Finished]:
        """What is told about the next token."""
        if token in self.job.ends:
            return [Finished("stop")]
        self.last, self.written = token, self.written + 1
        if self.written == self.job.max_new_tokens:
            return [Token(token), Finished("length")]
        return [Token(token)]


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

    def step(self, model: AtlasForCausalLM) -> list[int]:
        """Feed every row's last token; the next one of each."""
        ids = torch.tensor([[row.last] for row in self.rows], device=self._device)
        out = model(ids, past_key_values=self._cache, use_cache=True)
        self._cache = out.past_key_values
        samplings = [row.job.sampling for row in self.rows]
        return choose(out.logits[:, -1], samplings, [row.generator for row in self.rows])
