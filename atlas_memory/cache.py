"""AtlasCache: what a model knows after a text, as the cache that transformers passes around.

A cache is the states of the layers and the number of tokens they have read. A forward makes a new
one and leaves the one it was given as it is, so keeping an old cache is one way to go back; the
other is `crop`, which takes back as many tokens as the config's `rollback` says.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor
from transformers import Cache

from atlas_memory.layers.state import State
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
        from safetensors.torch import save_file

        self._require_caught_up("save")
        tensors: dict[str, Tensor] = {}
        plan = _to_plain(self.states, tensors)
        header = {"states": plan, "seen": self.seen, "fingerprint": self.fingerprint}
        save_file(tensors, path, metadata={"atlas_cache": json.dumps(header)})

    @classmethod
    def load(cls, path: str | Path) -> AtlasCache:
        """Read what `save` wrote: tensors and plain data, no code."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as file:
                header = (file.metadata() or {}).get("atlas_cache")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise ValueError(f"{path} is not a whole safetensors file: {error}") from error
        if header is None:
            raise ValueError(f"{path} holds no AtlasCache: its header has no atlas_cache")
        plain = json.loads(header)
        return cls(_from_plain(plain["states"], tensors), plain["seen"], plain["fingerprint"])

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
        return next(_tensors(self.states))

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


def _tensors(part: Any) -> Iterator[Tensor]:
    if isinstance(part, Tensor):
        yield part
    elif isinstance(part, tuple):
        yield from chain.from_iterable(map(_tensors, part))
    elif is_dataclass(part):
        yield from chain.from_iterable(_tensors(getattr(part, f.name)) for f in fields(part))


def _to_plain(part: Any, tensors: dict[str, Tensor]) -> Any:
    """Plain data with the tensors taken out into `tensors`."""
    if isinstance(part, Tensor):
        name = str(len(tensors))
        tensors[name] = part.detach().contiguous().clone()
        return {"tensor": name}
    if isinstance(part, tuple):
        return {"tuple": [_to_plain(item, tensors) for item in part]}
    if is_dataclass(part):
        kind = type(part)
        values = {f.name: _to_plain(getattr(part, f.name), tensors) for f in fields(part)}
        return {"class": [kind.__module__, kind.__qualname__], "fields": values}
    assert part is None or isinstance(part, bool | int | float | str), f"{part!r} in a state"
    return part


def _from_plain(plain: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(plain, dict):
        return plain
    if "tensor" in plain:
        return tensors[plain["tensor"]]
    if "tuple" in plain:
        return tuple(_from_plain(item, tensors) for item in plain["tuple"])
    module, name = plain["class"]
    kind = getattr(import_module(module), name) if module.startswith("atlas_memory.") else None
    if not isinstance(kind, type) or not is_dataclass(kind):
        raise ValueError(f"{module}.{name} is no state of atlas_memory")
    return kind(**{field: _from_plain(value, tensors) for field, value in plain["fields"].items()})
