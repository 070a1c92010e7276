"""AtlasCache: what a model knows after a text, as the cache that transformers passes around.

A cache is the states of the layers and the number of tokens they have read. A forward makes a new
one and leaves the one it was given as it is, so keeping an old cache is one way to go back; the
other is `crop`, which takes back as many tokens as the config's `rollback` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor
from transformers import Cache

from atlas_memory.codec import decode, encode, modern
from atlas_memory.memory.state import read_tensors, write_tensors
from atlas_memory.memory.tree import State, leaves
from atlas_memory.rollback import Past


class AtlasCache(Cache):
    """States of all layers after `seen` tokens, of a model whose layers are `fingerprint`.

    past: what lets `crop` go back. Behind a crop the states are older than `seen`, and the next
    forward pass catches up.
    """

    def __init__(
        self,
        states: Iterable[State] = (),
        seen: int = 0,
        fingerprint: str = "",
        past: Past | None = None,
    ) -> None:
        super().__init__(layers=[])
        self.states = tuple(states)
        self.seen = seen
        self.fingerprint = fingerprint
        self.past = past or Past()

    def __repr__(self) -> str:
        return f"AtlasCache({len(self)} layers, {self.seen} tokens, {self.num_bytes} bytes)"

    def __len__(self) -> int:
        return len(self.states)

    @property
    def num_bytes(self) -> int:
        """Bytes of all states: constant in the tokens read unless a layer keeps them all."""
        return sum(state.num_bytes for state in self.states) + self.past.num_bytes

    @property
    def batch_size(self) -> int:
        """Rows of the batch, -1 for a cache that has read nothing."""
        if self.past.unread is not None:
            return len(self.past.unread.piece.x)
        return len(self._tensor()) if self.states else -1

    def detach(self) -> AtlasCache:
        """The same knowledge without its graph, for truncated back-propagation."""
        return self._with((state.detach() for state in self.states), self.past.detach())

    def to(self, device: torch.device | str) -> AtlasCache:
        return self._with((state.to(device) for state in self.states), self.past.to(device))

    def select(self, rows: Tensor) -> AtlasCache:
        """The batch rows `rows`, in that order; a row may come twice (a fork) or not at all."""
        return self._with((state.select(rows) for state in self.states), self.past.select(rows))

    @classmethod
    def join(cls, caches: Sequence[AtlasCache]) -> AtlasCache:
        """One batch of the rows of all, in order; each goes on from where it stands.

        The rows have no past in common, so none of what they have read can be cropped.
        """
        for cache in caches:
            cache._require_caught_up("join")
        states = zip(*(cache.states for cache in caches), strict=True)
        joined = [first.join(others) for first, *others in states]
        return cls(joined, max(cache.seen for cache in caches), caches[0].fingerprint)

    def reorder(self, rows: Tensor) -> None:
        """`select` in place, as beam search does it."""
        if self.states or self.past.unread is not None:
            chosen = self.select(rows.to(self.device))
            self.states, self.past = chosen.states, chosen.past

    def save(self, path: str | Path) -> None:
        """Write everything to one safetensors file."""
        self._require_caught_up("save")
        tensors: dict[str, Tensor] = {}
        plans = encode(self.states, tensors)
        header = {"states": plans, "seen": self.seen, "fingerprint": self.fingerprint}
        write_tensors(path, tensors, "atlas_cache", header)

    @classmethod
    def load(cls, path: str | Path) -> AtlasCache:
        """Read what `save` wrote: tensors and plain data, no code."""
        plain, tensors = read_tensors(path, "atlas_cache", "AtlasCache")
        plans = modern(plain["states"])
        states = decode(plans["tuple"] if isinstance(plans, dict) else plans, tensors)
        return cls(states, plain["seen"], plain["fingerprint"])

    def _with(self, states: Iterable[State], past: Past) -> AtlasCache:
        return AtlasCache(states, self.seen, self.fingerprint, past)

    def _require_caught_up(self, what: str) -> None:
        if self.past.unread is not None:
            raise ValueError(
                f"AtlasCache cannot {what} between a crop and the next forward pass, which reads "
                "again what stays; feed a token first"
            )

    @property
    def device(self) -> torch.device:
        """Where the states lie."""
        unread = self.past.unread
        return self._tensor().device if unread is None else unread.piece.x.device

    def _tensor(self) -> Tensor:
        return next(leaves(self.states))[1]

    # What transformers asks of a cache.

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.seen

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.reorder(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        self.reorder(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.reorder(torch.arange(self.batch_size).repeat_interleave(repeats))

    def reset(self) -> None:
        self.states, self.seen, self.past = (), 0, replace(self.past, segments=(), unread=None)

    @property
    def is_croppable(self) -> bool:
        """Whether a cache that was given to a forward pass can be cropped: it has made another."""
        return False

    def crop(self, tokens_to_remove: int) -> None:
        """Take back the last tokens; transformers counts them below zero, so both signs will do."""
        tokens = abs(tokens_to_remove)
        if tokens == 0:
            self.past = self.past.trimmed()
        elif tokens <= self.past.tokens:
            self.seen -= tokens
            self.states, self.past = self.past.cropped(self.seen)
        else:
            raise ValueError(
                f"cannot take back {tokens} of {self.seen} tokens: this cache can go back by "
                f"{self.past.tokens}; set rollback={tokens} in the config before they are read, "
                "or keep the cache from before them"
            )

    def activate_past_recording(self) -> None:
        """From now on everything can be cropped, up to the next crop."""
        self.past = replace(self.past, recording=True)

    def update(self, *args: Any) -> NoReturn:
        self._refuse("update()")

    def _refuse(self, what: str) -> NoReturn:
        raise ValueError(
            f"AtlasCache cannot do {what}: a forward pass makes a new cache and leaves the old one"
        )
