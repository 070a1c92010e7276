"""MemoryState: everything a memory knows, as a value that goes in and comes out.

The state holds the accumulators and the momentum at the start of the open chunk, the last pairs,
and the gates of the open chunk's tokens. What the memory is "now" follows from these, so both
forms, any cut and any batch of rows at different positions continue from the same few tensors.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atlas_memory.memory.graphs import untraced
from atlas_memory.memory.omega import Gates
from atlas_memory.memory.spec import MemorySpec
from atlas_memory.memory.tree import State, Tensors, leaves


@dataclass(frozen=True, repr=False)
class KernelPast(State):
    """The pairs of phi*: keys [b, h, N, dk], coefficients p and their momentum [b, h, N, out].

    exists [b, N]: rows of different lengths share N, and a row starts anew with a document.
    """

    keys: Tensor
    p: Tensors
    s: Tensors
    exists: Tensor

    def join(self, others: Sequence["KernelPast"]) -> "KernelPast":
        """Rows with fewer pairs get ones that do not exist in front."""
        pasts = [self, *others]
        most = max(past.exists.shape[1] for past in pasts)
        first, *rest = (past._padded(most) for past in pasts)
        return State.join(first, rest)

    def _padded(self, pairs: int) -> "KernelPast":
        missing = pairs - self.exists.shape[1]
        wide = replace(self, exists=self.exists[:, None, :, None])
        wide = wide.map(lambda x: torch.nn.functional.pad(x, (0, 0, missing, 0)))
        return replace(wide, exists=wide.exists[:, 0, :, 0])


@dataclass(frozen=True, repr=False)
class OpenChunk(State):
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


@dataclass(frozen=True, repr=False)
class MemoryState(State):
    """start, start_momentum: per matrix [b, h, out, in], as of the open chunk's first token.
    keys [b, h, R, dk], values [b, h, R, dv]: of the last R = window - 1 + chunk - 1 tokens, and
    gates: of the last chunk - 1, newest last. position [b]: tokens read so far.
    constants: of the feature map. past: the kernel expansion of Exponential. open: see OpenChunk.

    A memory with output="online" is up to date at every token: start holds the output matrix as
    it is now and the hidden ones as of the chunk's start, hidden these as they are now, recent
    [b, h, c - 1, out] their rank-one parts d of the last pairs; keys and values are the window's.

    phase: the offset of all rows where it is one and known without asking a tensor.
    """

    shared = ("constants",)

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

    def _told(self) -> Iterator[str]:
        first, last = int(self.position.min()), int(self.position.max())
        rows, heads = self.keys.shape[:2]
        yield f"{rows} rows x {heads} heads"
        yield f"{first:,} tokens" if first == last else f"{first:,} to {last:,} tokens"
        yield f"{self.num_bytes:,} bytes"

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
        own = sum(x.nbytes for x in self.tensors().values())
        return own + self._open_numbers() * self.keys.element_size()

    def _open_numbers(self) -> int:
        spec, (b, h) = self.spec, self.keys.shape[:2]
        if spec.linear or spec.online or self.past is not None:
            return 0
        slots = spec.window - 1 + spec.chunk
        kept = spec.window if spec.materialized else slots
        pairs = kept * sum(w.shape[-1] + w.shape[-2] for w in self.start)
        if spec.materialized:
            pairs += sum(w[0, 0].numel() for w in (*self.start, *self.start_momentum))
        wide = self.start[0].shape[-1] if spec.retention.channel else 1
        return b * h * (pairs + slots * (wide + 1) + 2 * wide + 1)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor of the state under a stable name; the open chunk follows from them."""
        return dict(leaves(replace(self, open=None)))

    def join(self, others: Sequence["MemoryState"]) -> "MemoryState":
        """One batch of these rows and then those of the others, wherever each row stands."""
        from atlas_memory.memory.open_chunk import reopen

        states = [self, *others]
        if any(s.open for s in states):
            states = [s if s.open else replace(s, open=reopen(s)) for s in states]
        phase = self.phase if len({s.phase for s in states}) == 1 else None
        return replace(State.join(states[0], states[1:]), phase=phase)

    def save(self, path: str | Path) -> None:
        """Write the state and its spec to one safetensors file."""
        write_tensors(path, self.tensors(), "memory_spec", self.spec.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> "MemoryState":
        """Read what `save` wrote; nothing but tensors and JSON is ever read."""
        header, tensors = read_tensors(path, "memory_spec", "memory state")
        return _assemble(MemorySpec.from_dict(header), tensors)


def write_tensors(path: str | Path, tensors: dict[str, Tensor], key: str, header: Any) -> None:
    """A safetensors file with plain data under `key` in its header."""
    from safetensors.torch import save_file

    own = {name: x.detach().contiguous().clone() for name, x in tensors.items()}
    save_file(own, path, metadata={key: json.dumps(header)})


def read_tensors(path: str | Path, key: str, what: str) -> tuple[Any, dict[str, Tensor]]:
    """What `write_tensors` wrote: the data under `key` and the tensors."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get(key)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is not a whole safetensors file: {error}") from error
    if header is None:
        raise ValueError(f"{path} holds no {what}: its header has no {key}")
    return json.loads(header), tensors


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


@untraced
def between_borders(state: MemoryState) -> MemoryState:
    """The state with a phase for its next token, where rows differ and none is at a border.

    A token does the same at all places of a chunk but where the chunk opens and where a run of
    Muon's begins or ends: then any row's place stands for all. It takes a look at the positions,
    which only a processor gives away without waiting.
    """
    spec, optimizer = state.spec, state.spec.optimizer
    if not spec.online or state.phase is not None or state.position.device.type != "cpu":
        return state
    run = optimizer.period if optimizer.orthogonal else spec.chunk
    borders = (0, run - 1) if optimizer.orthogonal else (0,)
    places: list[int] = state.offset.tolist()
    if any(place % run in borders for place in places):
        return state
    return replace(state, phase=places[0])
