"""MemoryLayer: projections, short convolution, gates, memory, norm, gate. [Atlas Sec. 5.1]"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from atlas_memory.layers.gates import (
    AdmissionState,
    GateProjections,
    WriteGate,
    admit,
    averaged,
    largest_step,
)
from atlas_memory.layers.projections import ConvState, Projections, ReadOut, require_heads
from atlas_memory.layers.rows import Lengths, Starts
from atlas_memory.memory import Gates, MemorySpec, MemoryState, memorize
from atlas_memory.memory.products import require_products
from atlas_memory.memory.state import between_borders, read_tensors, write_tensors
from atlas_memory.memory.tree import State, leaves


@dataclass(frozen=True, repr=False)
class MemoryLayerState(State):
    """The memory, the last inputs of the short convolution, and what admission has to remember."""

    memory: MemoryState
    conv: ConvState
    admission: AdmissionState | None = None

    def save(self, path: str | Path) -> None:
        """One safetensors file; `MemoryState.load` reads the memory alone from it."""
        parts = {**self.memory.tensors(), "conv.tail": self.conv.tail}
        parts |= dict(leaves(self.admission, "admission"))
        write_tensors(path, parts, "memory_spec", self.memory.spec.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> MemoryLayerState:
        memory = MemoryState.load(path)
        _, tensors = read_tensors(path, "memory_spec", "memory state")
        if "conv.tail" not in tensors:
            raise ValueError(f"{path} holds a memory without its layer: it has no conv.tail")
        kept = {f.name: tensors.get(f"admission.{f.name}") for f in fields(AdmissionState)}
        admission = AdmissionState(**kept) if any(x is not None for x in kept.values()) else None
        return cls(memory, ConvState(tensors["conv.tail"]), admission)


class MemoryLayer(nn.Module):
    """A memory of any spec as a sequence mixer.

    What the outer network learns is here: projections, gates, the memory's first weights W_0 and
    the feature map's coefficients. What the memory learns while it reads is in the state.
    designed_heads: how many heads start as `Projections` says, "all", "half" or "none".
    admission: a write gate decides which tokens the memory takes in (`gates.py`).
    value_path: what is read out is M(q) + D v, Mamba-2's D x, a weight for every channel that
    starts at 1.
    products: "bfloat16" rounds the factors of the memory's matrix products.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        spec: MemorySpec,
        *,
        designed_heads: str = "half",
        admission: bool = False,
        value_path: bool = False,
        floor: float = 1e-6,
        products: str = "float32",
    ) -> None:
        super().__init__()
        _require_bounded(spec, admission)
        require_products(products)
        self.heads, self.spec, self.products = heads, spec, products
        self.head_dim = require_heads(dim, heads)
        self.projections = Projections(dim, heads, designed_heads)
        self.gates = GateProjections(dim, heads, spec)
        self.write_gate = WriteGate(dim, heads) if admission else None
        self.read_out = ReadOut(dim, heads, floor)
        self.D = nn.Parameter(torch.empty(heads, 1, self.head_dim)) if value_path else None
        shapes = spec.architecture.shapes(spec.features.dim(self.head_dim), self.head_dim)
        self.weights = nn.ParameterList(nn.Parameter(torch.empty(heads, *s)) for s in shapes)
        self.log_coefficients: nn.Parameter | None = None
        self.sketch: Tensor | None
        self.register_buffer("sketch", None)
        constants = spec.features.constants(self.head_dim)
        if spec.features.learned:
            assert constants is not None
            self.log_coefficients = nn.Parameter(torch.empty(heads, *constants.shape))
        elif constants is not None:
            self.sketch = torch.empty(constants.shape)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """a_i = 1/i!; W_0 such that the largest step writes about one pair (`_initial_std`)."""
        self.read_out.undo(self.projections)
        if self.D is not None:
            nn.init.ones_(self.D)
        for i, weight in enumerate(self.weights):
            nn.init.normal_(weight, std=self._initial_std(i, weight.shape))
        if self.spec.online:
            nn.init.zeros_(self.weights[0])
        constants = self.spec.features.constants(self.head_dim)
        with torch.no_grad():
            if self.log_coefficients is not None and constants is not None:
                self.log_coefficients.copy_(constants.log().expand_as(self.log_coefficients))
            elif self.sketch is not None and constants is not None:
                self.sketch.copy_(constants)

    def _initial_std(self, i: int, shape: torch.Size) -> float:
        """M(x) is about x at first, and half of the largest step writes a pair.

        With W2 near 0 a deep memory starts as the delta rule on the keys themselves: its step
        moves the answer by eta W1 gelu'(0)^2 W1^T e, gelu'(0) = 1/2, and eta is at most about
        1/chunk. A step of Muon has length 1 whatever the chunk. With an exact output the hidden
        layer starts as random features and the output matrix at 0: Gated DeltaNet on them.
        """
        fan_in = shape[-1]
        if self.spec.online:
            return 2 * fan_in**-0.5
        if len(self.weights) == 1 or self.spec.retention.mapped:
            return fan_in**-0.5
        if i == 0:
            steps = 1 if self.spec.optimizer.orthogonal else self.spec.chunk
            return (8 * steps / fan_in) ** 0.5
        return 0.1 * fan_in**-0.5 if i == 1 else 1.0

    def forward(
        self,
        x: Tensor,  # [b, t, dim]
        state: MemoryLayerState | None = None,
        *,
        starts: Starts | None = None,
        lengths: Lengths | None = None,
    ) -> tuple[Tensor, MemoryLayerState]:
        """The tokens x behind those of `state`, [b, t, dim] -> [b, t, dim], and the state then.

        starts [b, t]: a document begins here, with a fresh memory. lengths [b]: tokens of each row,
        what follows is padding. None: one document and full rows.
        """
        self._require_fitting(x, state)
        apart = state is not None and state.memory.phase is None
        if state is not None and apart and x.shape[1] == 1 and starts is None and lengths is None:
            state = replace(state, memory=between_borders(state.memory))
        older = None if state is None else state.conv
        (q, k, v), conv = self.projections(x, older, starts, lengths)
        weights, coefficients = self.initial_weights(), self.coefficients()
        gates = self.gates(x, largest_step(self.spec, weights, coefficients))
        gates, admission = self._admit(x, gates, state, starts, lengths)
        past = None if state is None else state.memory
        y, memory = memorize(
            *(q, k, v, gates, weights, self.spec, past),
            coefficients=coefficients,
            starts=starts,
            lengths=lengths,
            check=False,
            sparse=self.write_gate is not None,
            products=self.products,
        )
        if self.D is not None:
            y = y + self.D * v
        memory = replace(memory, phase=None) if apart else memory
        return self.read_out(x, y), MemoryLayerState(memory, conv, admission)

    def _require_fitting(self, x: Tensor, state: MemoryLayerState | None) -> None:
        dim = self.heads * self.head_dim
        if x.dim() != 3 or x.shape[2] != dim:
            raise ValueError(f"x {list(x.shape)}: this layer needs [rows, tokens, {dim}]")
        if state is None:
            return
        rows, width = state.conv.tail.shape[0], state.conv.tail.shape[2] // 3
        if width != dim:
            raise ValueError(f"the state is of a layer of width {width}, this one has {dim}")
        if rows != len(x):
            raise ValueError(
                f"the state holds {rows} rows and the input {len(x)}; select the rows, or start "
                "from state=None"
            )

    def _admit(
        self,
        x: Tensor,
        gates: Gates,
        state: MemoryLayerState | None,
        starts: Starts | None,
        lengths: Lengths | None,
    ) -> tuple[Gates, AdmissionState | None]:
        """The gates behind the write gate, with the steps of Muon's runs averaged."""
        kept = None if state is None else state.admission
        admitted = pending = None
        if self.write_gate is not None:
            w, _ = self.write_gate(x)
            gates, admitted = admit(self.spec, gates, w, kept, lengths)
        if gates.hidden is not None and self.spec.optimizer.period > 1:
            begun = None if kept is None else kept.pending
            position = state.memory.position if state else x.new_zeros(len(x), dtype=torch.long)
            phase = state.memory.phase if state else 0
            run = (position, phase, begun, starts, lengths)
            mu, pending = averaged(self.spec, gates.hidden, *run)
            gates = replace(gates, hidden=mu)
        if admitted is None and pending is None:
            return gates, None
        return gates, AdmissionState(admitted, pending)

    def initial_weights(self) -> tuple[Tensor, ...]:
        """W_0 [h, out, in]; Memora's are positive, exp of what is learned."""
        weights = tuple(w.to(torch.promote_types(w.dtype, torch.float32)) for w in self.weights)
        if self.spec.retention.positive:
            return tuple(w.exp() for w in weights)
        return weights

    def coefficients(self) -> Tensor | None:
        """The feature map's constants: a_i > 0 [h, p + 1], or the fixed random projections."""
        if self.log_coefficients is not None:
            return self.log_coefficients.exp()
        return self.sketch


def _require_bounded(spec: MemorySpec, admission: bool) -> None:
    if spec.online and not spec.architecture.normalize:
        raise ValueError(
            f'{spec.architecture!r} with output="online": a layer needs normalize=True, for '
            "without it no step is safe for every length of the hidden layer"
        )
    if admission and (spec.retention.fixed or spec.retention.mapped):
        raise ValueError(
            f"admission=True does not go with {spec.retention!r}: what is not admitted must not be "
            "forgotten either, which takes ScalarRetention(), ChannelRetention() or NoRetention()"
        )
