"""The keys and values that attention carries: all of the past, or the last slots of a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from atlas_memory.layers.rows import Lengths, Starts, document_ids, row_tail, valid_tokens
from atlas_memory.memory.tree import State


@dataclass(frozen=True, repr=False)
class KVCache(State):
    """Slots of the past; `valid` says which of them exist for a row (None: all)."""

    keys: Tensor  # [b, s, h, d]
    values: Tensor  # [b, s, h, d]
    valid: Tensor | None = None  # [b, s]

    @staticmethod
    def empty(like: Tensor, slots: int) -> KVCache:
        """`slots` slots of which none exists."""
        batch, _, heads, dim = like.shape
        pairs = like.new_zeros(batch, slots, heads, dim)
        valid = pairs.new_zeros(batch, slots, dtype=torch.bool) if slots else None
        return KVCache(pairs, pairs, valid)

    def append(
        self,
        k: Tensor,  # [b, t, h, d]
        v: Tensor,  # [b, t, h, d]
        starts: Starts | None,
        lengths: Lengths | None,
    ) -> KVCache:
        """Past and present slots, of which only the last document's are valid."""
        keys = torch.cat([self.keys.to(k.dtype), k], dim=1)
        values = torch.cat([self.values.to(v.dtype), v], dim=1)
        document = self.documents(k.shape[1], starts, lengths)
        if document is None:
            return KVCache(keys, values)
        last = document.amax(dim=1, keepdim=True)
        return KVCache(keys, values, (document == last) & (document >= 0))

    def join(self, others: Sequence[KVCache]) -> KVCache:
        """Rows with fewer slots get ones that do not exist in front; nobody's are dropped."""
        caches = [self, *others]
        if all(cache.valid is None and cache.slots == self.slots for cache in caches):
            return KVCache(
                *(torch.cat([getattr(c, n) for c in caches]) for n in ("keys", "values"))
            )
        existing = [cache._existing() for cache in caches]
        slots = max(cache.slots for cache in existing)
        padded = [cache._padded(slots - cache.slots) for cache in existing]
        return KVCache(*map(torch.cat, zip(*padded, strict=True)))

    @property
    def slots(self) -> int:
        return self.keys.shape[1]

    def _existing(self) -> KVCache:
        """Without the slots in front that exist for no row, as rows that have left leave behind."""
        valid = self.valid
        if valid is None or not self.slots or bool(valid[:, 0].any()):
            return self
        first = int(valid.any(dim=0).int().argmax()) if bool(valid.any()) else self.slots
        return KVCache(self.keys[:, first:], self.values[:, first:], valid[:, first:])

    def _padded(self, missing: int) -> tuple[Tensor, Tensor, Tensor]:
        valid = self.valid
        if valid is None:
            valid = torch.ones(self.keys.shape[:2], dtype=torch.bool, device=self.keys.device)
        keys, values = (F.pad(x, (0, 0, 0, 0, missing, 0)) for x in (self.keys, self.values))
        return keys, values, F.pad(valid, (missing, 0))

    def documents(self, time: int, starts: Starts | None, lengths: Lengths | None) -> Tensor | None:
        """Document of every slot of [past | present], -1 where there is none; None: all one."""
        if self.valid is None and starts is None and lengths is None:
            return None
        batch, older = self.keys.shape[:2]
        past = torch.zeros(batch, older, dtype=torch.int64, device=self.keys.device)
        past = past if self.valid is None else self.valid.long() - 1
        present = past.new_zeros(batch, time) if starts is None else document_ids(starts)
        if lengths is not None:
            present = present.masked_fill(~valid_tokens(time, lengths), -1)
        return torch.cat([past, present], dim=1)

    def last(self, slots: int, time: int, lengths: Lengths | None) -> KVCache:
        """Each row's own last `slots` slots, of which `time` ones, `lengths` valid, were appended.

        Where there are fewer, slots that do not exist come first: the size is always the same.
        """
        valid = self.valid
        if valid is None:
            valid = torch.ones(self.keys.shape[:2], dtype=torch.bool, device=self.keys.device)
        missing = slots - (self.keys.shape[1] - time)
        keys, values = (F.pad(x, (0, 0, 0, 0, missing, 0)) for x in (self.keys, self.values))
        parts = (keys, values, F.pad(valid, (missing, 0)))
        return KVCache(*(row_tail(part, slots, lengths) for part in parts))
