"""Trees of tensors: states, tuples of them, and plain data in between.

A state is a value that goes into a call and comes out of it. What all states have in common, to be
moved, cut to some rows or joined to one batch, is written here once, over the tree that they are.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

Tensors = tuple[Tensor, ...]


@dataclass(frozen=True)
class State:
    """Abstract: a frozen dataclass of tensors, other states, tuples of them, or plain data.

    The first axis of a tensor is the batch's rows, but for fields that are `shared` by all rows.
    """

    shared: ClassVar[tuple[str, ...]] = ()

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The same state with `change` applied to every tensor."""
        return rebuild(change, self)

    def detach(self) -> Self:
        """Cut the graph: the next call learns nothing about the tokens before."""
        return self.map(Tensor.detach)

    def to(self, device: torch.device | str) -> Self:
        return self.map(lambda x: x.to(device))

    def select(self, rows: Tensor) -> Self:
        """The batch rows `rows`, in that order; a row may come twice (a fork) or not at all."""
        return self._by_row(lambda part: select(part, rows), self)

    def join(self, others: Sequence[Self]) -> Self:
        """One batch of these rows and then those of the others, wherever each row stands."""
        return self._by_row(lambda *parts: join(parts), self, *others)

    def __repr__(self) -> str:
        """One line: numbers by the thousand say less than their shapes."""
        return f"{type(self).__name__}({', '.join(self._told())})"

    def _told(self) -> Iterator[str]:
        for name, part in children(self):
            if isinstance(part, Tensor):
                yield f"{name} {list(part.shape)}"
            elif part is not None and part != ():
                yield f"{name}: {len(part)}" if isinstance(part, tuple) else f"{name}={part}"

    def _by_row(self, change: Callable[..., Any], *states: Self) -> Self:
        sides = _aligned(*states)
        return replace(self, **{n: change(*side) for n, side in sides if n not in self.shared})

    @property
    def num_bytes(self) -> int:
        return sum(num_bytes(part) for _, part in children(self))


def leaves(part: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor under the path that leads to it, such as `gates.alpha` or `start.0`."""
    if isinstance(part, Tensor):
        yield name, part
    elif isinstance(part, tuple | State):
        for key, child in children(part):
            yield from leaves(child, f"{name}.{key}" if name else key)


def children(part: tuple[Any, ...] | State) -> list[tuple[str, Any]]:
    if isinstance(part, tuple):
        return [(str(i), item) for i, item in enumerate(part)]
    return [(f.name, getattr(part, f.name)) for f in fields(part)]


def _aligned(*states: State) -> Iterator[tuple[str, list[Any]]]:
    """Every field with what the states hold there, side by side."""
    return ((f.name, [getattr(s, f.name) for s in states]) for f in fields(states[0]))


def rebuild(change: Callable[..., Tensor], first: Any, *others: Any) -> Any:
    """`first` with change(tensor, *those at the same place in the others) for every tensor."""
    if isinstance(first, Tensor):
        return change(first, *others)
    if isinstance(first, tuple):
        return tuple(rebuild(change, *parts) for parts in zip(first, *others, strict=True))
    if isinstance(first, State):
        sides = {
            name: [part, *(getattr(o, name) for o in others)] for name, part in children(first)
        }
        return replace(first, **{name: rebuild(change, *parts) for name, parts in sides.items()})
    return first


def where(rows: Tensor, yes: Any, no: Any) -> Any:
    """Row by row one of two trees."""
    return rebuild(lambda a, b: torch.where(rows.view(-1, *(1,) * (a.dim() - 1)), a, b), yes, no)


def select(part: Any, rows: Tensor) -> Any:
    if isinstance(part, Tensor):
        return part.index_select(0, rows.to(part.device))
    if isinstance(part, tuple):
        return tuple(select(item, rows) for item in part)
    return part.select(rows) if isinstance(part, State) else part


def join(parts: Sequence[Any]) -> Any:
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(list(parts))
    if isinstance(first, tuple):
        return tuple(map(join, zip(*parts, strict=True)))
    return first.join(parts[1:]) if isinstance(first, State) else first


def num_bytes(part: Any) -> int:
    if isinstance(part, tuple):
        return sum(map(num_bytes, part))
    if isinstance(part, State):
        return part.num_bytes
    return part.nbytes if isinstance(part, Tensor) else 0
