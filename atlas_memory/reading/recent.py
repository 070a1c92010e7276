"""Recent: values under keys, the least recently used of which go when there are too many bytes."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    @property
    def num_bytes(self) -> int: ...


Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value", bound=Sized)


class Recent(Generic[Key, Value]):
    """At no time more than `max_bytes`; a value that is larger than that is not kept at all."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.num_bytes = max_bytes, 0
        self._values: OrderedDict[Key, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Key) -> Value | None:
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: Key, value: Value) -> None:
        self.drop(key)
        size = value.num_bytes
        if size > self.max_bytes:
            return
        while self.num_bytes + size > self.max_bytes:
            self.drop(next(iter(self._values)))
        self._values[key] = value
        self.num_bytes += size

    def drop(self, key: Key) -> None:
        value = self._values.pop(key, None)
        if value is not None:
            self.num_bytes -= value.num_bytes
