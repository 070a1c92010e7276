"""Text as a stream of token ids that can be left with a bookmark and entered again at it."""

import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np

from atlas_memory.data.documents import Files
from atlas_memory.data.tokenizer import Tokenizer

Ids = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Bookmark:
    """A place: `tokens` ids into the stream, in piece number `piece`, which begins at id `before`.

    checksum: of all bytes up to the end of that piece. size: bytes before it.
    """

    piece: int
    before: int
    tokens: int
    checksum: int
    size: int

    def to_dict(self) -> dict[str, int]:
        return asdict(self)


class Text:
    """Files, read as one text in the order given, one piece of about a megabyte at a time.

    Documents are joined by the tokenizer's end of text, if it has one. Entering at a bookmark
    reads the bytes before it again, which is quick, but does not tokenize them.
    """

    def __init__(
        self, paths: tuple[Path, ...], tokenizer: Tokenizer, start: Bookmark | None = None
    ) -> None:
        self.paths, self.tokenizer, self.start = paths, tokenizer, start
        self._open: deque[Bookmark] = deque()

    def __iter__(self) -> Iterator[Ids]:
        begin = self.start or Bookmark(0, 0, 0, 0, 0)
        checksum, size, before = 0, 0, begin.before
        for number, (first, piece) in enumerate(self._pieces()):
            checksum = zlib.crc32(piece, checksum)
            size += len(piece)
            if self.start and number == begin.piece and checksum != begin.checksum:
                raise ValueError(f"{self.names} has changed since the reading was interrupted")
            if number < begin.piece:
                continue
            ids = self._encode(piece, first and number > 0)
            self._open.append(Bookmark(number, before, 0, checksum, size - len(piece)))
            before += len(ids)
            yield ids[begin.tokens - begin.before :] if number == begin.piece else ids
        if self.start and not self._open:
            raise ValueError(f"{self.names} is shorter than when the reading was interrupted")

    def bookmark(self, tokens: int) -> Bookmark:
        """The place behind the first `tokens` ids; earlier ones cannot be asked for again."""
        while len(self._open) > 1 and self._open[1].before <= tokens:
            self._open.popleft()
        here = self._open[0]
        return Bookmark(here.piece, here.before, tokens, here.checksum, here.size)

    @property
    def names(self) -> str:
        return ", ".join("standard input" if p == STDIN else str(p) for p in self.paths)

    @property
    def total(self) -> int | None:
        """Bytes of all files, where that can be known."""
        if any(path == STDIN or path.suffix == ".gz" for path in self.paths):
            return None
        return sum(path.stat().st_size for path in self.paths)

    def _pieces(self) -> Iterator[tuple[bool, bytes]]:
        """Every piece, and whether it is the first one of its document."""
        for document in Files(self.paths).documents():
            yield from zip(chain([True], repeat(False)), document, strict=False)

    def _encode(self, piece: bytes, joined: bool) -> Ids:
        ids = next(self.tokenizer.encode([piece]))
        if joined and self.tokenizer.end is not None:
            ids = np.concatenate([np.array([self.tokenizer.end], dtype=np.uint32), ids])
        return ids


STDIN = Path("/dev/stdin")


def open_text(names: list[str], tokenizer: Tokenizer, start: Bookmark | None = None) -> Text:
    """Files and `-` for standard input; one that is missing or empty is refused."""
    return Text(require_texts(names), tokenizer, start)


def require_texts(names: list[str]) -> tuple[Path, ...]:
    paths = tuple(STDIN if name == "-" else Path(name).expanduser() for name in names)
    if paths.count(STDIN) > 1:
        raise ValueError("standard input (-) can be read only once")
    for path in paths:
        _require_text(path)
    return paths


def _require_text(path: Path) -> None:
    """Look at the beginning, so that a wrong file is not found after hours of reading."""
    if path == STDIN:
        return
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give its files, such as {path}/*.txt")
    try:
        first = next((piece for document in Files((path,)).documents() for piece in document), b"")
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from error
    if not first:
        raise ValueError(f"{path} is empty; give a text of at least one token")
