"""Tokens of a corpus on disk: made once, memory-mapped ever after."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from atlas_memory.data.documents import Document
from atlas_memory.data.tokenizer import Tokenizer
from atlas_memory.files import home, made_once

Ids = np.ndarray[Any, Any]


class Source(Protocol):
    """Where documents come from."""

    def documents(self) -> Iterator[Document]: ...

    def fingerprint(self) -> list[Any]: ...


@dataclass(frozen=True)
class Tokens:
    """One long row of ids, where its documents begin, and how many bytes of text it was."""

    ids: Ids
    starts: Ids
    num_bytes: int
    fingerprint: str

    @property
    def bytes_per_token(self) -> float:
        return self.num_bytes / max(1, len(self.ids))

    def part(self, first: int, last: int) -> Tokens:
        """Tokens first .. last - 1; a document that is cut begins at the cut."""
        inside = self.starts[(self.starts > first) & (self.starts < last)] - first
        share = round(self.num_bytes * (last - first) / max(1, len(self.ids)))
        name = f"{self.fingerprint}[{first}:{last}]"
        return Tokens(self.ids[first:last], np.concatenate([[0], inside]), share, name)


def cached_tokens(source: Source, tokenizer: Tokenizer, most: int | None = None) -> Tokens:
    """The tokens of a source, from the cache if it has them. `most` is a limit on their number."""
    key = [source.fingerprint(), tokenizer.fingerprint(), tokenizer.end, most]
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:20]
    folder = home() / "tokens" / digest
    made_once(folder, lambda draft: _write(source, tokenizer, most, draft))
    return _open(folder, digest)


@dataclass(frozen=True)
class _Summary:
    dtype: str
    tokens: int
    bytes: int


def _write(source: Source, tokenizer: Tokenizer, most: int | None, folder: Path) -> None:
    dtype, starts, tokens, size = smallest_dtype(tokenizer.vocab_size), [], 0, 0.0
    with (folder / "tokens.bin").open("wb") as file:
        for document in source.documents():
            begin, counted = tokens, _Counted(document)
            for ids in tokenizer.encode(counted):
                kept = ids if most is None else ids[: most - tokens]
                file.write(kept.astype(dtype).tobytes())
                tokens += len(kept)
                # Of a piece that is cut its share counts, and no other is read.
                size += counted.since() * len(kept) / max(1, len(ids))
                if tokens == most:
                    break
            if tokens > begin:
                starts.append(begin)
            if tokens == most:
                break
            size += counted.since()
    np.save(folder / "starts.npy", np.array(starts, dtype=np.int64))
    summary = _Summary(np.dtype(dtype).name, tokens, round(size))
    (folder / "summary.json").write_text(json.dumps(asdict(summary)))


class _Counted:
    """A document that counts its bytes while it is read."""

    def __init__(self, document: Document) -> None:
        self.document, self._new = document, 0

    def __iter__(self) -> Iterator[bytes]:
        for piece in self.document:
            self._new += len(piece)
            yield piece

    def since(self) -> int:
        """Bytes that were read since it was asked last."""
        new, self._new = self._new, 0
        return new


def _open(folder: Path, digest: str) -> Tokens:
    summary = _Summary(**json.loads((folder / "summary.json").read_text()))
    starts = np.load(folder / "starts.npy")
    if summary.tokens == 0:
        return Tokens(np.zeros(0, summary.dtype), starts, 0, digest)
    ids = np.memmap(folder / "tokens.bin", dtype=summary.dtype, mode="r", shape=(summary.tokens,))
    return Tokens(ids, starts, summary.bytes, digest)


def smallest_dtype(vocab_size: int) -> type[np.unsignedinteger[Any]]:
    """The smallest of uint8, uint16, uint32 that holds every id."""
    for dtype in (np.uint8, np.uint16):
        if vocab_size <= np.iinfo(dtype).max + 1:
            return dtype
    return np.uint32
