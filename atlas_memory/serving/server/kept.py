"""A memory that a server keeps, what is told about it, and the file that it becomes."""

from __future__ import annotations

import secrets
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from atlas_memory.data.tokenizer import Tokenizer
from atlas_memory.reading.memory_file import MemoryFile
from atlas_memory.reading.read import Memory
from atlas_memory.serving.server.answers import Answer

MAX_NAME = 200
MAX_TIME = 2**40


def new_id() -> str:
    """144 random bits: it cannot be guessed, and it is never made of what a client says."""
    return f"mem_{secrets.token_urlsafe(18)}"


@dataclass(frozen=True)
class Entry:
    """What is told about a memory, which need not be in RAM.

    shown: tokens of its text whose surprise is known; a file of `atlas memorize` holds none.
    """

    id: str
    name: str
    parent: str | None
    created: int
    position: int
    surprise: float
    num_bytes: int
    shown: int

    def described(self) -> dict[str, Any]:
        told = asdict(self)
        return {"id": told.pop("id"), "object": "memory", "created": told.pop("created"), **told}

    @staticmethod
    def of_header(name: str, header: dict[str, Any], shown: int) -> Entry:
        """Of a stored file, by its header alone."""
        note = header["note"]
        known = {key: note[key] for key in ("name", "parent", "created", "num_bytes")}
        known |= {"position": header["position"], "surprise": header["surprise"], "shown": shown}
        return Entry(name, **known)


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
    id: str = field(default_factory=new_id)
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def num_bytes(self) -> int:
        return self.memory.num_bytes

    @property
    def entry(self) -> Entry:
        memory = self.memory
        return Entry(
            self.id,
            self.name,
            self.parent,
            self.created,
            memory.position,
            memory.surprise,
            memory.num_bytes,
            len(self.tokens),
        )

    def fork(self, name: str) -> Kept:
        return Kept(self.memory, name, self.id, self.tokens, self.bits)

    def pieces(self, tokenizer: Tokenizer) -> list[tuple[str, float | None]]:
        """Whole characters and the bits of all their tokens; None where nothing predicted them."""
        unpredicted = len(self.tokens) - len(self.bits)
        bits: list[float | None] = [None] * unpredicted + self.bits.tolist()
        return pieces(tokenizer, self.tokens.tolist(), bits)

    def file(self) -> MemoryFile:
        """What is written or downloaded; the id is the file's name and not in it."""
        note = {
            "name": self.name,
            "parent": self.parent,
            "created": self.created,
            "num_bytes": self.num_bytes,
        }
        extra = {"tokens": self.tokens, "bits": self.bits}
        return MemoryFile(self.memory, (self.name,) if self.name else (), {}, note, extra)

    @staticmethod
    def of_file(file: MemoryFile, name: str) -> Kept:
        """One of our own under its id."""
        note, extra = file.note, file.extra
        parts = (note["name"], note["parent"], extra["tokens"], extra["bits"])
        return Kept(file.memory, *parts, id=name, created=note["created"])

    @staticmethod
    def given(file: MemoryFile, ids: int, shown: int) -> Kept:
        """A new one from a file of whoever starts the server."""
        return Kept.uploaded(file, ", ".join(file.sources)[:MAX_NAME], ids, shown)

    @staticmethod
    def uploaded(file: MemoryFile, name: str | None, ids: int, shown: int) -> Kept:
        """A new one from anybody's file; what its keeper noted down is taken if it makes sense."""
        given = file.note.get("name", ", ".join(map(str, file.sources)))
        named = given if name is None else name
        if not isinstance(named, str) or len(named) > MAX_NAME:
            raise ValueError(f"its name is not a text of at most {MAX_NAME} characters")
        kept = Kept(file.memory, named)
        created = file.note.get("created")
        if type(created) is int and 0 <= created < MAX_TIME:
            kept = replace(kept, created=created)
        if not {"tokens", "bits"} <= file.extra.keys():
            return kept
        _require_text(file.extra["tokens"], file.extra["bits"], ids, shown)
        return replace(kept, tokens=file.extra["tokens"], bits=file.extra["bits"])


def _require_text(tokens: Tensor, bits: Tensor, ids: int, shown: int) -> None:
    fits = tokens.dim() == bits.dim() == 1 and 0 <= len(tokens) - len(bits) <= 1
    kinds = tokens.dtype == torch.long and bits.dtype == torch.float32
    if not fits or not kinds or len(tokens) > shown:
        raise ValueError("the tokens and bits that it shows are not as they should be")
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < ids:
        raise ValueError("a token that it shows is not in the vocabulary")


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
