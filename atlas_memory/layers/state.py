"""What a layer carries from one call to the next: an immutable value made of tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, Self

import torch
from torch import Tensor


class State(Protocol):
    """A carried state; a tensor's own `detach` and `to`, and rows that can be picked."""

    def detach(self) -> Self: ...

    def to(self, *args: Any) -> Self: ...

    def select(self, rows: Tensor) -> Self: ...

    @property
    def num_bytes(self) -> int: ...


@dataclass(frozen=True)
class LayerState:
    """Abstract: a frozen dataclass of tensors, other states, tuples of them, or None."""

    def detach(self) -> Self:
        return self._map(lambda part: part.detach())

    def to(self, *args: Any) -> Self:
        """Move to a device, or to a floating dtype; integers and booleans keep their dtype."""
        return self._map(lambda part: _to(part, args))

    def select(self, rows: Tensor) -> Self:
        """The rows `rows` of the batch, in that order; a row may come twice or not at all."""
        return self._map(
            lambda part: (
                part.index_select(0, rows) if isinstance(part, Tensor) else part.select(rows)
            )
        )

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


def _to(part: Any, args: tuple[Any, ...]) -> Any:
    if isinstance(part, Tensor) and not part.is_floating_point():
        args = tuple(arg for arg in args if not isinstance(arg, torch.dtype))
        return part.to(*args) if args else part
    return part.to(*args)


def _num_bytes(part: Any) -> int:
    if part is None:
        return 0
    if isinstance(part, tuple):
        return sum(_num_bytes(item) for item in part)
    return part.nbytes if isinstance(part, Tensor) else part.num_bytes
