"""Memory files: safetensors with the states of all layers and a header that people can read.

The header says which model the memory belongs to, how much it has read and what, and a checksum
of everything. A file is written under another name and renamed, so it is whole or not there.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from atlas_memory.cache import AtlasCache
from atlas_memory.codec import decode, encode, modern
from atlas_memory.files import draft_of, whole
from atlas_memory.reading.fingerprint import Fingerprint, fingerprint, raw_bytes
from atlas_memory.reading.memory_head import (
    in_order,
    is_something_else,
    put_in_order,
    require_memory_file,
)
from atlas_memory.reading.read import Memory

if TYPE_CHECKING:
    from atlas_memory.model import AtlasForCausalLM

FORMAT, FIRST = "atlas memory 2", "atlas memory 1"
MAX_HEADER = 2**24
HEADER = ("model", "position", "rows", "surprise", "sources", "reading", "states")


@dataclass(frozen=True)
class MemoryFile:
    """A memory, the names of what was read, and how far an interrupted reading had come.

    note: what its keeper wrote down about it, of plain data. extra: tensors of the keeper's own.
    """

    memory: Memory
    sources: tuple[str, ...] = ()
    reading: dict[str, Any] = field(default_factory=dict)
    note: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Contents:
    """A file whose checksum is right: its header, parsed, and its tensors."""

    header: dict[str, Any]
    tensors: dict[str, Tensor]


def save(
    memory: Memory,
    path: str | Path,
    sources: tuple[str, ...] = (),
    reading: dict[str, Any] | None = None,
) -> None:
    save_file(MemoryFile(memory, sources, reading or {}), Path(path))


def save_file(file: MemoryFile, path: Path) -> None:
    _write(*_contents(file), path)


def to_bytes(file: MemoryFile) -> bytes:
    """What `save_file` would write."""
    from safetensors.torch import save as serialize

    return in_order(serialize(*_contents(file)))


def _contents(file: MemoryFile) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and header of a memory's file."""
    memory = file.memory
    tensors = {"last": memory.last, "bits": memory.bits}
    tensors |= {f"note.{name}": tensor for name, tensor in file.extra.items()}
    states = encode(memory.cache.states, tensors)
    plain = {
        "model": asdict(memory.model),
        "position": memory.position,
        "rows": memory.rows,
        "surprise": memory.surprise,
        "sources": file.sources,
        "reading": file.reading,
        "states": states,
    }
    plain |= {"note": file.note} if file.note else {}
    header = {name: json.dumps(value) for name, value in plain.items()}
    header = {"format": FORMAT, **header}
    tensors = {name: x.detach().cpu().contiguous().clone() for name, x in tensors.items()}
    return tensors, {**header, "checksum": _checksum(header, tensors)}


def load(path: str | Path, model: AtlasForCausalLM) -> MemoryFile:
    """A memory of this very model, on its device; any other is refused."""
    return restore(inspect(path), model, fingerprint(model), str(path))


def restore(contents: Contents, model: AtlasForCausalLM, own: Fingerprint, what: str) -> MemoryFile:
    """The memory of a file that is whole, if the model with the fingerprint `own` made it."""
    header = contents.header
    Fingerprint(**header["model"]).require(own, what)
    memory, tensors = restored(contents).to(model.device), contents.tensors
    extra = {n.removeprefix("note."): t for n, t in tensors.items() if n.startswith("note.")}
    note = header.get("note", {})
    return MemoryFile(memory, tuple(header["sources"]), header["reading"], note, extra)


def restored(contents: Contents) -> Memory:
    """The memory that a file holds, whatever the model."""
    header, tensors = contents.header, contents.tensors
    own = Fingerprint(**header["model"])
    states = decode(header["states"], tensors)
    cache = AtlasCache(states, header["position"] - 1, own.layers if states else "")
    return Memory(own, cache, tensors["last"], tensors["bits"])


def inspect(path: str | Path) -> Contents:
    """Header and tensors of a memory file that is whole; nothing but JSON and numbers is read."""
    from safetensors import SafetensorError, safe_open

    require_memory_file(path)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is no whole memory file: {error}") from error
    except OSError as error:
        raise ValueError(f"cannot read {path}: {_reason(error)}") from error
    return _checked(metadata, tensors, str(path))


def inspect_bytes(data: bytes, what: str) -> Contents:
    """`inspect` of a file that was never one; `what` is how a complaint calls it."""
    from safetensors import SafetensorError
    from safetensors.torch import load as deserialize

    if is_something_else(data):
        raise ValueError(f"{what} is no memory file; `atlas memorize` makes one of a text")
    size = int.from_bytes(data[:8], "little")
    if size > min(len(data) - 8, MAX_HEADER):
        raise ValueError(f"{what} is no whole memory file: its header cannot have {size} bytes")
    try:
        metadata = json.loads(data[8 : 8 + size]).get("__metadata__") or {}
        tensors = deserialize(data)
    except (SafetensorError, ValueError, AttributeError, RecursionError) as error:
        raise ValueError(f"{what} is no whole memory file: {_brief(error)}") from error
    return _checked(metadata, tensors, what)


def _checked(metadata: dict[str, str], tensors: dict[str, Tensor], what: str) -> Contents:
    if metadata.get("format") not in (FORMAT, FIRST):
        found = repr(metadata["format"]) if "format" in metadata else "none"
        raise ValueError(f"{what} is no memory file: its format is {found}, not {FORMAT!r}")
    header = {name: text for name, text in metadata.items() if name != "checksum"}
    if metadata.get("checksum") != _checksum(header, tensors):
        raise ValueError(f"{what} was altered or damaged: its checksum does not fit its contents")
    return Contents(parsed(header, what), tensors)


def parsed(header: dict[str, str], what: str) -> dict[str, Any]:
    """The entries of a header as the data they stand for."""
    try:
        plain = {name: json.loads(header[name]) for name in HEADER}
        if header["format"] == FIRST:
            plain["states"] = modern(plain["states"])
        return plain | {"note": json.loads(header.get("note", "{}"))}
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{what} is no memory file: its header lacks {_brief(error)}") from error


def _brief(error: Exception) -> str:
    return str(error)[:200]


def require_writable(path: Path) -> None:
    """Find out before hours of reading, and leave nothing behind."""
    if path.is_dir():
        raise ValueError(f"cannot write to {path}: it is a folder")
    draft = draft_of(path)
    try:
        draft.touch()
        draft.unlink()
    except OSError as error:
        raise ValueError(f"cannot write to {path}: {_reason(error)}") from error


def _write(tensors: dict[str, Tensor], header: dict[str, str], path: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file as serialize

    try:
        with whole(path) as draft:
            draft.touch()
            mode = draft.stat().st_mode  # safetensors makes files that only their owner may read
            serialize(tensors, draft, metadata=header)
            draft.chmod(mode)
            with draft.open("r+b") as file:
                put_in_order(file)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"cannot write to {path}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _checksum(header: dict[str, str], tensors: dict[str, Tensor]) -> str:
    digest = sha256(json.dumps(header, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(raw_bytes(tensor))
    return digest.hexdigest()
