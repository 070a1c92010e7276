"""MemoryState: everything a memory knows, as a value that goes in and comes out.

The state holds the accumulators and the momentum at the start of the open chunk, the last pairs,
and the gates of the open chunk's tokens. What the memory is "now" follows from these, so both
forms, any cut and any batch of rows at different positions continue from the same few tensors.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atlas_memory.memory.omega import Gates
from atlas_memory.memory.optimizers import Muon
from atlas_memory.memory.retention import ChannelRetention
from atlas_memory.memory.spec import MemorySpec

Tensors = tuple[Tensor, ...]


@dataclass(frozen=True)
class KernelPast:
    """The pairs of phi*: keys [b, h, N, dk], coefficients p and their momentum [b, h, N, out].

    exists [b, N]: rows of different lengths share N, and a row starts anew with a document.
    """

    keys: Tensor
    p: Tensors
    s: Tensors
    exists: Tensor


@dataclass(frozen=True)
class OpenChunk:
    """The open chunk as decoding keeps it; see `decode.py`. It follows from the rest of the state.

    d, x per matrix [b, h, c - 1 + chunk, ..]: the rank-one gradients of its pairs. C, P [b, h, n]
    and A, B, T [b, h, 1]: the last token's coefficients. L, S: of rules that need their matrices,
    and then d, x [b, h, c, ..] are the window's pairs alone.
    """

    d: Tensors
    x: Tensors
    C: Tensor
    P: Tensor
    A: Tensor
    B: Tensor
    T: Tensor
    L: Tensors
    S: Tensors


@dataclass(frozen=True)
class MemoryState:
    """start, start_momentum: per matrix [b, h, out, in], as of the open chunk's first token.
    keys, values [b, h, R, d]: the last R = window - 1 + chunk - 1 pairs, newest last.
    gates: of the last chunk - 1 tokens, newest last. position [b]: tokens read so far.
    constants: of the feature map. past: the kernel expansion of Exponential. open: see OpenChunk.

    A memory with output="online" is up to date at every token: start holds the output matrix as
    it is now and the hidden ones as of the chunk's start, hidden these as they are now, recent
    [b, h, c - 1, out] their rank-one parts d of the last pairs; keys and values are the window's.

    phase: the offset of all rows where it is one and known without asking a tensor.
    """

    spec: MemorySpec
    start: Tensors
    start_momentum: Tensors
    keys: Tensor
    values: Tensor
    gates: Gates
    position: Tensor
    constants: Tensor | None = None
    past: KernelPast | None = None
    open: OpenChunk | None = None
    hidden: Tensors = ()
    recent: Tensors = ()
    phase: int | None = None

    @property
    def offset(self) -> Tensor:
        """Tokens of the open chunk, per row."""
        return self.position % self.spec.rhythm

    @property
    def weights(self) -> Tensors:
        """The matrices W_t as of the last token, [b, h, out, in]."""
        return tuple(self.spec.retention.weights(L) for L in self._now()[0])

    @property
    def momentum(self) -> Tensors:
        """S_t as of the last token; empty for rules without momentum."""
        return self._now()[1]

    def _now(self) -> tuple[Tensors, Tensors]:
        """Accumulators and momentum as of the last token: the open chunk is read once more."""
        from atlas_memory.memory.kernel import replay_kernel
        from atlas_memory.memory.recurrent import replay

        if self.spec.online:
            return (self.start[0], *self.hidden), self.start_momentum
        return replay(self) if self.past is None else replay_kernel(self)

    @property
    def num_bytes(self) -> int:
        """With the open chunk that decoding adds, whether it is there yet or not."""
        own = sum(x.numel() * x.element_size() for x in self.tensors().values())
        return own + self._open_numbers() * self.keys.element_size()

    def _open_numbers(self) -> int:
        spec, (b, h) = self.spec, self.keys.shape[:2]
        if spec.linear or spec.online or self.past is not None:
            return 0
        slots = spec.window - 1 + spec.chunk
        materialized = isinstance(spec.optimizer, Muon) or spec.retention.mapped
        kept = spec.window if materialized else slots
        pairs = kept * sum(w.shape[-1] + w.shape[-2] for w in self.start)
        if materialized:
            pairs += sum(w[0, 0].numel() for w in (*self.start, *self.start_momentum))
        wide = self.start[0].shape[-1] if isinstance(spec.retention, ChannelRetention) else 1
        return b * h * (pairs + slots * (wide + 1) + 2 * wide + 1)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the state under a stable name; the open chunk follows from them."""
        named: dict[str, Tensor] = {}
        _collect(replace(self, open=None), "", named)
        return named

    def map(self, change: Callable[[Tensor], Tensor]) -> "MemoryState":
        """The same state with `change` applied to every tensor."""
        state: MemoryState = _rebuild(self, change)
        return state

    def detach(self) -> "MemoryState":
        """Cut the graph: the next call learns nothing about the tokens before."""
        return self.map(Tensor.detach)

    def to(self, device: torch.device | str) -> "MemoryState":
        return self.map(lambda x: x.to(device))

    def select(self, rows: Tensor) -> "MemoryState":
        """The batch rows `rows`, in that order, repeats allowed (beams, forks)."""
        kept = replace(self, constants=None).map(lambda x: x.index_select(0, rows.to(x.device)))
        return replace(kept, constants=self.constants)

    def join(self, others: Sequence["MemoryState"]) -> "MemoryState":
        """One batch of these rows and then those of the others, wherever each row stands."""
        from atlas_memory.memory.reopen import reopen

        states = [self, *others]
        if any(s.open for s in states):
            states = [s if s.open else replace(s, open=reopen(s)) for s in states]
        past = _join_pasts([s.past for s in states if s.past is not None])
        plain = [replace(s, constants=None, past=None) for s in states]
        phase = self.phase if len({s.phase for s in states}) == 1 else None
        return replace(_join(plain), constants=self.constants, past=past, phase=phase)

    def save(self, path: str | Path) -> None:
        """Write the state and its spec to one safetensors file."""
        from safetensors.torch import save_file

        tensors = {name: x.detach().contiguous().clone() for name, x in self.tensors().items()}
        save_file(tensors, path, metadata={"memory_spec": json.dumps(self.spec.to_dict())})

    @classmethod
    def load(cls, path: str | Path) -> "MemoryState":
        """Read what `save` wrote; nothing but tensors and JSON is ever read."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as file:
                header = (file.metadata() or {}).get("memory_spec")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise ValueError(f"{path} is not a whole safetensors file: {error}") from error
        if header is None:
            raise ValueError(f"{path} holds no memory state: its header has no memory_spec")
        return _assemble(MemorySpec.from_dict(json.loads(header)), tensors)


def _collect(part: Any, name: str, named: dict[str, Tensor]) -> None:
    if isinstance(part, Tensor):
        named[name] = part
    elif isinstance(part, tuple):
        for i, item in enumerate(part):
            _collect(item, f"{name}.{i}", named)
    elif isinstance(part, MemoryState | Gates | KernelPast | OpenChunk):
        for f in fields(part):
            _collect(getattr(part, f.name), f"{name}.{f.name}".lstrip("."), named)


def _rebuild(part: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(part, Tensor):
        return change(part)
    if isinstance(part, tuple):
        return tuple(_rebuild(item, change) for item in part)
    if isinstance(part, MemoryState | Gates | KernelPast | OpenChunk):
        return replace(
            part, **{f.name: _rebuild(getattr(part, f.name), change) for f in fields(part)}
        )
    return part


def _join(parts: Sequence[Any]) -> Any:
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(list(parts))
    if isinstance(first, tuple):
        return tuple(map(_join, zip(*parts, strict=True)))
    if isinstance(first, MemoryState | Gates | KernelPast | OpenChunk):
        names = [f.name for f in fields(first)]
        return replace(first, **{n: _join([getattr(part, n) for part in parts]) for n in names})
    return first


def _join_pasts(pasts: Sequence[KernelPast]) -> KernelPast | None:
    """Rows with fewer pairs get ones that do not exist in front."""
    if not pasts:
        return None
    most = max(past.exists.shape[1] for past in pasts)

    def padded(past: KernelPast) -> KernelPast:
        missing = most - past.exists.shape[1]
        wide: KernelPast = _rebuild(
            replace(past, exists=past.exists[:, None, :, None]),
            lambda x: torch.nn.functional.pad(x, (0, 0, missing, 0)),
        )
        return replace(wide, exists=wide.exists[:, 0, :, 0])

    joined: KernelPast = _join([padded(past) for past in pasts])
    return joined


def _assemble(spec: MemorySpec, tensors: dict[str, Tensor]) -> MemoryState:
    """The inverse of `tensors()`."""

    def several(prefix: str) -> Tensors:
        count = sum(name.startswith(f"{prefix}.") for name in tensors)
        return tuple(tensors[f"{prefix}.{i}"] for i in range(count))

    past = None
    if "past.keys" in tensors:
        past = KernelPast(
            tensors["past.keys"], several("past.p"), several("past.s"), tensors["past.exists"]
        )
    return MemoryState(
        spec=spec,
        start=several("start"),
        start_momentum=several("start_momentum"),
        keys=tensors["keys"],
        values=tensors["values"],
        gates=Gates(**{f.name: tensors.get(f"gates.{f.name}") for f in fields(Gates)}),
        position=tensors["position"],
        constants=tensors.get("constants"),
        past=past,
        hidden=several("hidden"),
        recent=several("recent"),
        phase=common_phase(tensors["position"], spec),
    )


def common_phase(position: Tensor, spec: MemorySpec) -> int | None:
    """The rows' offset in their chunks where it is the same; asks the tensor."""
    offsets = set((position % spec.rhythm).tolist())
    return offsets.pop() if len(offsets) == 1 else None
