"""The memories that a server keeps: values in RAM under ids that cannot be guessed."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from atlas_memory.data.tokenizer import Tokenizer
from atlas_memory.serving.reading import Memory
from atlas_memory.serving.server.answers import Answer
from atlas_memory.serving.server.errors import ApiError


@dataclass(frozen=True, eq=False)
class Kept:
    """A memory and how surprising its text was.

    tokens, bits: the first ones of the text that it has read last; a text's very first token is
    predicted by nothing. parent: the memory that it was forked from.
    """

    memory: Memory
    name: str
    parent: str | None = None
    tokens: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    bits: Tensor = field(default_factory=lambda: torch.zeros(0))
    id: str = field(default_factory=lambda: f"mem_{secrets.token_urlsafe(18)}")
    created: int = field(default_factory=lambda: int(time.time()))

    def described(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "memory",
            "created": self.created,
            "name": self.name,
            "parent": self.parent,
            "position": self.memory.position,
            "surprise": self.memory.surprise,
            "num_bytes": self.memory.num_bytes,
        }

    def fork(self, name: str) -> Kept:
        return Kept(self.memory, name, self.id, self.tokens, self.bits)

    def pieces(self, tokenizer: Tokenizer) -> list[tuple[str, float | None]]:
        """Whole characters and the bits of all their tokens; None where nothing predicted them."""
        unpredicted = len(self.tokens) - len(self.bits)
        bits: list[float | None] = [None] * unpredicted + self.bits.tolist()
        return pieces(tokenizer, self.tokens.tolist(), bits)


def pieces(
    tokenizer: Tokenizer, tokens: list[int], bits: list[float | None]
) -> list[tuple[str, float | None]]:
    """Tokens that make a character together become one piece."""
    answer, held = Answer(tokenizer), [0.0]
    found: list[tuple[str, float | None]] = []
    for token, surprise in zip(tokens, bits, strict=True):
        held.append(0.0 if surprise is None else surprise)
        if text := answer.add(token):
            found.append((text, None if surprise is None and not found else sum(held)))
            held = [0.0]
    if text := answer.end():
        found.append((text, sum(held)))
    return found


class Memories:
    """At most `most` of them; a place is taken before the text is read."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._kept: dict[str, Kept] = {}
        self._coming = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Kept]:
        return iter(list(self._kept.values()))

    def find(self, name: str) -> Kept:
        kept = self._kept.get(name)
        if kept is None:
            raise ApiError(404, "there is no memory with this id", "memory")
        return kept

    @contextmanager
    def place(self) -> Iterator[None]:
        if len(self._kept) + self._coming >= self.most:
            raise ApiError(403, f"{self.most} memories are kept already; delete one first")
        self._coming += 1
        try:
            yield
        finally:
            self._coming -= 1

    def add(self, kept: Kept) -> Kept:
        self._kept[kept.id] = kept
        return kept

    def delete(self, name: str) -> None:
        del self._kept[self.find(name).id]
