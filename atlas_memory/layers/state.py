"""What a layer carries from one call to the next: an immutable value made of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, Self

import torch
from torch import Tensor


class State(Protocol):
    """What a model asks of a carried state; the rows are those of the batch."""

    def detach(self) -> Self: ...

    def to(self, device: torch.device | str) -> Self: ...

    def select(self, rows: Tensor) -> Self: ...

    def join(self, others: Sequence[Self]) -> Self: ...

    @property
    def num_bytes(self) -> int: ...


@dataclass(frozen=True)
class LayerState:
    """Abstract: a frozen dataclass of tensors, other states, tuples of them, or None."""

    def detach(self) -> Self:
        return self._map(lambda part: part.detach())

    def to(self, device: torch.device | str) -> Self:
        return self._map(lambda part: part.to(device))

    def select(self, rows: Tensor) -> Self:
        """The rows `rows` of the batch, in that order; a row may come twice or not at all."""
        return self._map(
            lambda part: (
                part.index_select(0, rows) if isinstance(part, Tensor) else part.select(rows)
            )
        )

    def join(self, others: Sequence[Self]) -> Self:
        """One batch of these rows and then those of the others, wherever each row stands."""
        states = [self, *others]
        names = [field.name for field in fields(self)]
        return replace(self, **{n: _joined([getattr(s, n) for s in states]) for n in names})

    @property
    def num_bytes(self) -> int:
        return sum(_num_bytes(getattr(self, field.name)) for field in fields(self))

    def _map(self, change: Callable[[Any], Any]) -> Self:
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: _apply(change, part) for name, part in parts.items()})


def _apply(change: Callable[[Any], Any], part: Any) -> Any:
    if part is None:
        return None
    if isinstance(part, tuple):
        return tuple(_apply(change, item) for item in part)
    return change(part)


def _joined(parts: Sequence[Any]) -> Any:
    first = parts[0]
    if first is None:
        return None
    if isinstance(first, Tensor):
        return torch.cat(list(parts))
    if isinstance(first, tuple):
        return tuple(map(_joined, zip(*parts, strict=True)))
    return first.join(parts[1:])


def _num_bytes(part: Any) -> int:
    if part is None:
        return 0
    if isinstance(part, tuple):
        return sum(_num_bytes(item) for item in part)
    return part.nbytes if isinstance(part, Tensor) else part.num_bytes
