"""Prompts that are read block by block, several side by side, each from where it is known."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from atlas_memory.cache import AtlasCache
from atlas_memory.model import surprise
from atlas_memory.reading.prefix_cache import borders
from atlas_memory.reading.read import Memory
from atlas_memory.reading.recent import Recent
from atlas_memory.serving.jobs import Completion, Finished, Prompt, Reading, Ticket
from atlas_memory.serving.scores import Score, scores_of

if TYPE_CHECKING:
    from atlas_memory.model import AtlasForCausalLM
    from atlas_memory.reading.fingerprint import Fingerprint

Known = Recent[bytes, AtlasCache]


class Prefill:
    """A job whose tokens are being fed. A completion feeds them all, a reading all but the last."""

    def __init__(self, ticket: Ticket, block: int) -> None:
        self.ticket, self.block = ticket, block
        job = ticket.job
        self.known = job.known
        self.end = self.known.shape[1] - isinstance(job, Reading)
        self.fed, self.bits = 0, [torch.zeros(1, 0)]
        self.scores: list[Score] = []
        self.cache = AtlasCache() if job.memory is None else job.memory.cache
        self.logits: Tensor | None = None

    @property
    def done(self) -> bool:
        return self.fed == self.end

    @property
    def fresh(self) -> bool:
        """Nothing has been read, so there is no state to put beside others."""
        return not self.cache.states

    @property
    def next_size(self) -> int:
        return min(self.block, self.end - self.fed)

    def look_up(self, known: Known) -> None:
        """As long as nothing was fed, begin behind the longest prefix that is known by now.

        What has to be scored is read anyway.
        """
        job, here = self.ticket.job, self.ticket.reused
        if not known.max_bytes or self.fed > here or isinstance(job, Reading) or job.scores_prompt:
            return
        for end, key in reversed(self._borders.items()):
            if here < end < self.end and (cache := known.get(key)) is not None:
                self.cache, self.fed, self.ticket.reused = cache, end, end
                return

    @cached_property
    def _borders(self) -> dict[int, bytes]:
        """Where states are kept; those behind a memory without a name could be anybody's."""
        job = self.ticket.job
        if job.memory is not None and not job.begin:
            return {}
        return dict(borders(job.begin, self.known[0, : self.end], self.block))

    def advance(self, model: AtlasForCausalLM, hidden: Tensor, cache: AtlasCache) -> None:
        """The next tokens have been fed: `hidden` [n, dim] came out, and `cache` is behind them."""
        begin, self.fed, self.cache = self.fed, self.fed + len(hidden), cache
        job = self.ticket.job
        targets = self.known[0, begin + 1 : self.fed + 1].to(hidden.device)
        if isinstance(job, Reading):
            self.bits.append(surprise(model, hidden[None], targets[None]).cpu())
            return
        if job.scores_prompt and job.top is not None:
            self.scores += scores_of(model, hidden[: len(targets)], targets, job.top)
        if self.done:
            self.logits = model.lm_head(hidden[-1:])

    def keep(self, known: Known) -> None:
        """At a border what is known is kept: as a copy, which shares nothing with the batch."""
        if not known.max_bytes:
            return
        key = self._borders.get(self.fed)
        if key is not None and known.get(key) is None:
            rows = torch.zeros(1, dtype=torch.long, device=self.cache.device)
            known.put(key, self.cache.select(rows))

    def prompt(self) -> Prompt:
        """Of a completion: how probable its prompt was; a memory's last token is not part of it."""
        job = self.ticket.job
        first = [] if job.memory is not None else [Score(int(self.known[0, 0]), None)]
        return Prompt((*first, *self.scores))

    def finished(self, own: Fingerprint, device: torch.device) -> Finished:
        """Of a reading: the memory behind it."""
        bits, before = torch.cat(self.bits, dim=1), self.ticket.job.memory
        total = bits.double().sum(dim=1)
        total = total if before is None else total + before.bits.cpu()
        memory = Memory(own, self.cache, self.known[:, -1:], total)
        return Finished("read", memory.to(device), bits[0])


def side_by_side(waiting: Sequence[Prefill], tokens: int) -> list[Prefill]:
    """The first one and those behind it that can share its forward pass, of so many tokens."""
    chosen, longest = [waiting[0]], waiting[0].next_size
    for prefill in waiting[1:]:
        wide = max(longest, prefill.next_size)
        if prefill.fresh == waiting[0].fresh and wide * (len(chosen) + 1) <= tokens:
            chosen.append(prefill)
            longest = wide
    return chosen


def feed(model: AtlasForCausalLM, prefills: Sequence[Prefill]) -> None:
    """The next block of each."""
    for group in _passes(prefills, model.device):
        _feed(model, group)


def _passes(prefills: Sequence[Prefill], device: torch.device) -> Iterable[Sequence[Prefill]]:
    """Who shares a forward pass. A processor waits for none of its calls: there rows that differ in
    length or place take longer together than each on its own, up to three times.
    """
    if device.type != "cpu":
        return [prefills]
    groups: dict[object, list[Prefill]] = {}
    for prefill in prefills:
        groups.setdefault(prefill.next_size if prefill.fresh else prefill, []).append(prefill)
    return groups.values()


def _feed(model: AtlasForCausalLM, prefills: Sequence[Prefill]) -> None:
    """One forward pass; shorter ones are padded on the right."""
    parts = [p.known[0, p.fed : p.fed + p.next_size] for p in prefills]
    lengths = [len(part) for part in parts]
    ids = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True).to(model.device)
    ragged = min(lengths) < max(lengths)
    mask = torch.arange(ids.shape[1]) < torch.tensor(lengths)[:, None] if ragged else None
    out = model.model(
        ids,
        attention_mask=None if mask is None else mask.to(model.device),
        past_key_values=_together(prefills),
        use_cache=True,
    )
    for row, (prefill, length) in enumerate(zip(prefills, lengths, strict=True)):
        cache = _row(out.past_key_values, row, prefill.cache.seen + length, len(prefills))
        prefill.advance(model, out.last_hidden_state[row, :length], cache)


def _together(prefills: Sequence[Prefill]) -> AtlasCache | None:
    first = prefills[0]
    if first.fresh:
        return None
    return first.cache if len(prefills) == 1 else AtlasCache.join([p.cache for p in prefills])


def _row(cache: AtlasCache, row: int, seen: int, rows: int) -> AtlasCache:
    """One row of a batch, standing where it stands."""
    chosen = cache.select(torch.tensor([row], device=cache.device)) if rows > 1 else cache
    return AtlasCache(chosen.states, seen, cache.fingerprint)


def completes(prefill: Prefill) -> bool:
    return isinstance(prefill.ticket.job, Completion)
