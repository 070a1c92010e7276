"""Whether the states of a memory file are such as this model makes: a file may come from anybody.

A checksum says that a file is whole, not that it is meant well. Before anything of it is built, its
states are compared with those of memories that the model has made itself: the same states, fields
and tensors, and the same sizes wherever two memories of different length agree in them. Then it has
to go through the model beside one of those.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from atlas_memory.cache import AtlasCache
from atlas_memory.reading.fingerprint import Fingerprint
from atlas_memory.reading.memory_file import Contents, MemoryFile, inspect_bytes, to_bytes
from atlas_memory.reading.read import Memory, read

if TYPE_CHECKING:
    from atlas_memory.model import AtlasForCausalLM

LENGTHS = (1, 2, 80)  # nothing but a token, a short text, a text of more than a chunk
MAX_POSITION = 2**53


class MemoryCheck:
    """Knows what the memories of a model look like."""

    def __init__(self, model: AtlasForCausalLM) -> None:
        self.model = model
        self.made = [read(model, [[0] * length]) for length in LENGTHS]
        self.known = [inspect_bytes(to_bytes(MemoryFile(m)), "a memory") for m in self.made]

    def contents(self, given: Contents, what: str) -> None:
        """Refuse what could not have been made by this model, before it is built."""
        header, tensors = given.header, given.tensors
        _require_kinds(header, what)
        position = header["position"]
        if not _is(position, int) or not 1 <= position < MAX_POSITION:
            raise ValueError(f"{what} is no memory: its position is not a number of tokens")
        if header["rows"] != 1:
            raise ValueError(f"{what} has several rows; give a memory of one text")
        plans = [known.header["states"] for known in self.known]
        if not any(_alike(header["states"], tensors, p, self.known) for p in plans):
            raise ValueError(f"{what} does not hold the states of this model's layers")
        if (position == 1) != (header["states"] == []):
            raise ValueError(f"{what} does not hold the states of {position} tokens")
        self._numbers(tensors, what)

    def _numbers(self, tensors: dict[str, Tensor], what: str) -> None:
        last, bits = tensors.get("last"), tensors.get("bits")
        own = self.known[-1].tensors
        for name, given in (("last", last), ("bits", bits)):
            if given is None or given.shape != own[name].shape or given.dtype != own[name].dtype:
                raise ValueError(f"{what} is no memory: its {name!r} is not as it should be")
        assert last is not None
        if not 0 <= int(last) < self.model.config.vocab_size:
            raise ValueError(f"{what} is no memory: its last token is not in the vocabulary")
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise ValueError(f"{what} is no memory: {name!r} is not finite")

    @torch.inference_mode()
    def trial(self, memory: Memory, what: str) -> None:
        """Feed a token to it and to a memory of ours in one batch."""
        ours = self.made[-1]
        own = memory.cache if memory.cache.states else None
        ids, cache = memory.last, own
        if own is not None:
            ids, cache = torch.cat([memory.last, ours.last]), AtlasCache.join([own, ours.cache])
        try:
            out = self.model(ids, past_key_values=cache, use_cache=True)
        except Exception as error:  # whatever a tensor of the wrong contents makes of it
            raise ValueError(f"{what} cannot be gone on from: {str(error)[:200]}") from error
        if not bool(out.logits.isfinite().all()):
            raise ValueError(f"{what} cannot be gone on from: the next token is not finite")


def _alike(given: Any, tensors: dict[str, Tensor], plan: Any, known: list[Contents]) -> bool:
    """Whether plain data of a header has the form of `plan`."""
    if isinstance(plan, list):
        return (
            isinstance(given, list)
            and len(given) == len(plan)
            and all(_alike(g, tensors, p, known) for g, p in zip(given, plan, strict=True))
        )
    if not isinstance(plan, dict):
        return type(given) is type(plan)
    if not isinstance(given, dict) or given.keys() != plan.keys():
        return False
    if "tensor" in plan:
        return given == plan and _fits(tensors.get(plan["tensor"]), plan["tensor"], known)
    if "tuple" in plan:
        return _alike(given["tuple"], tensors, plan["tuple"], known)
    if "spec" in plan:
        return bool(given == plan)
    fields, own = given["fields"], plan["fields"]
    return (
        given["state"] == plan["state"]
        and isinstance(fields, dict)
        and fields.keys() == own.keys()
        and all(_alike(fields[name], tensors, own[name], known) for name in own)
    )


def _fits(given: Tensor | None, name: str, known: list[Contents]) -> bool:
    """The same type and, along every axis in which our memories agree, the same size."""
    ours = [contents.tensors[name] for contents in known if name in contents.tensors]
    if given is None or given.dtype != ours[0].dtype or given.dim() != ours[0].dim():
        return False
    sizes = zip(given.shape, *(tensor.shape for tensor in ours), strict=True)
    return all(len(set(own)) > 1 or size == own[0] for size, *own in sizes)


def _require_kinds(header: dict[str, Any], what: str) -> None:
    model, sources = header["model"], header["sources"]
    fields = {field.name for field in dataclasses.fields(Fingerprint)}
    kinds = isinstance(sources, list) and all(isinstance(name, str) for name in sources)
    kinds = kinds and isinstance(header["note"], dict) and isinstance(header["reading"], dict)
    kinds = kinds and isinstance(model, dict) and model.keys() == fields
    if not kinds or not all(isinstance(value, str) for value in model.values()):
        raise ValueError(f"{what} is no memory file: its header is not as it should be")


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
