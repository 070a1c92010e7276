"""Documents from files: plain text, JSON lines and parquet, alone, in folders or by a pattern.

A document is an iterator over pieces of UTF-8 bytes, so that a file of any size can be read.
"""

import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from glob import glob, has_magic
from io import BufferedIOBase
from pathlib import Path
from typing import Any

from atlas_memory.names import suggest

Document = Iterable[bytes]

SPLITS = {"train": "train", "valid": "validation", "dev": "validation", "test": "test"}
JSON_LINES = (".jsonl", ".jsonl.gz", ".json", ".ndjson")
PARQUET = (".parquet",)
PIECE = 1 << 20
# A cut in the middle of a character, or a stray one, is no reason to refuse a book.
MOST_BROKEN = 1e-3


@dataclass(frozen=True)
class Files:
    """Files of one split, and the field of a record that holds its text."""

    paths: tuple[Path, ...]
    field: str = "text"

    def documents(self) -> Iterator[Document]:
        for path in self.paths:
            if _ends(path, JSON_LINES):
                yield from _json_documents(path, self.field)
            elif _ends(path, PARQUET):
                yield from _parquet_documents(path, self.field)
            else:
                yield _text_document(path)

    def fingerprint(self) -> list[Any]:
        """Changes whenever a file does."""
        stats = [(path.resolve(), path.stat()) for path in self.paths]
        return [[str(p), s.st_size, s.st_mtime_ns] for p, s in stats] + [[self.field]]


def find_files(source: str) -> list[Path]:
    """Every file that a path, a folder or a pattern names, in a fixed order."""
    path = Path(source).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        found = (p for p in path.rglob("*") if not _hidden(p.relative_to(path)))
    elif has_magic(source):
        found = (Path(p) for p in glob(str(path), recursive=True))
    else:
        return []
    files = sorted(p for p in found if p.is_file())
    if not files:
        raise ValueError(f"no data: {source} holds no file")
    return files


def by_split(files: list[Path]) -> dict[str, list[Path]]:
    """Files whose name begins with valid, dev or test are not trained on."""
    splits: dict[str, list[Path]] = {"train": [], "validation": [], "test": []}
    for path in files:
        name = path.name.lower()
        split = next((SPLITS[start] for start in SPLITS if name.startswith(start)), "train")
        splits[split].append(path)
    return splits


def first_bytes(documents: Iterable[Document], most: int) -> Iterator[Document]:
    """Documents until about `most` bytes have been read."""
    read = 0
    for document in documents:
        for piece in document:
            if read >= most:
                return
            read += len(piece)
            yield [piece]


def _text_document(path: Path) -> Document:
    with _open(path) as file:
        while piece := _whole_lines(file):
            yield _checked(piece, path)


def _whole_lines(file: BufferedIOBase) -> bytes:
    piece = file.read(PIECE)
    return piece + file.readline(PIECE) if piece and not piece.endswith(b"\n") else piece


def _json_documents(path: Path, field: str) -> Iterator[Document]:
    with _open(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number} is not JSON: {error}") from error
            if isinstance(record, str):
                yield [record.encode()]
            elif isinstance(record, dict) and isinstance(record.get(field), str):
                yield [record[field].encode()]
            else:
                fields = list(record) if isinstance(record, dict) else []
                raise ValueError(
                    f"{path}, line {number} has no text in {field!r}; {suggest(field, fields)}"
                )


def _parquet_documents(path: Path, field: str) -> Iterator[Document]:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path} is not a parquet file: {error}") from error
    names = file.schema_arrow.names
    if field not in names:
        raise ValueError(f"{path} has no column {field!r}; {suggest(field, names)}")
    for batch in file.iter_batches(batch_size=64, columns=[field]):
        for text in batch.column(0).to_pylist():
            if text:
                yield [text.encode()]


def _checked(piece: bytes, path: Path) -> bytes:
    decoded = piece.decode("utf-8", errors="replace")
    broken = decoded.count("\ufffd") - piece.count("\ufffd".encode())
    if b"\0" in piece or broken > max(8, MOST_BROKEN * len(decoded)):
        raise ValueError(f"{path} is not UTF-8 text; give text, .jsonl, .jsonl.gz or .parquet")
    return piece


def _open(path: Path) -> BufferedIOBase:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")


def _ends(path: Path, endings: tuple[str, ...]) -> bool:
    return path.name.lower().endswith(endings)


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
