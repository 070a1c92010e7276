"""What torch is told around the equations: autocast, autograd, constants, torch.compile; the scan.

A graph of all chunks of a text would take minutes to compile and be as long as the text. A graph
of all layers would take as many times longer as there are layers, although they are alike. So the
memory and the book-keeping of a model stay plain Python, and a block that is called from plain
Python is compiled once for all layers of its kind, a decoded token of its memory included.
`compile_chunks` compiles the memory's chunks.

The scan takes one block after the other, and is a single node of the autograd graph: states at
block borders are kept, the rest is recomputed. Its backward walks the blocks in reverse, runs
each one again with gradients on, and adds into one buffer per stream: no slice of a long tensor
ever gets a full-size gradient of its own. The first `kept` blocks keep their graphs instead, as
many as fit into a fixed budget; beyond it one block's intermediates are the most alive.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from atlas_memory.memory.native.library import served
from atlas_memory.memory.precision import Rounding, rounds
from atlas_memory.memory.tree import Tensors, where

Function = TypeVar("Function", bound=Callable[..., Any])
Arguments = ParamSpec("Arguments")
Made = TypeVar("Made")


def untraced(function: Function) -> Function:
    """Never compiled, nor what it calls: its course depends on values and lengths."""
    return torch.compiler.disable(function, reason="it depends on values and lengths")


def untraced_frame(function: Function) -> Function:
    """Not compiled itself, but what it calls is, each on its own."""
    plain: Function = torch.compiler.disable(
        function, recursive=False, reason="what it calls is compiled, once for all layers alike"
    )
    return plain


_compiles = False


def compile_chunks(on: bool = True) -> None:
    """Compile the body of a chunk with torch.compile from now on; off again with False.

    Worth its 20 to 40 seconds per spec and shape in a long training run of a deep memory. Rules
    that need a matrix per token and linear memories stay as they are.
    """
    global _compiles
    _compiles = on


def compiles() -> bool:
    """Whether `compile_chunks` was asked for."""
    return _compiles


def chunk_body(make: Callable[..., Made], *choices: Any) -> Made:
    """make(*choices), compiled once for all chunks alike where `compile_chunks` asks for it."""
    return _compiled(make, rounds(), *choices) if _compiles else make(*choices)


@lru_cache(maxsize=64)
def _compiled(make: Callable[..., Any], rounded: bool, *choices: Any) -> Any:
    """rounded: what is compiled with the one precision is not for the other."""
    return torch.compile(make(*choices), dynamic=False)


def as_given(x: Tensor) -> AbstractContextManager[Any]:
    """No autocast on the device of x: states, decays, solves and sums stay as precise as they are.

    The meta device knows no autocast, and where there is none nothing is to be done.
    """
    plain = x.is_meta or not torch.is_autocast_enabled(x.device.type)
    return nullcontext() if plain else torch.autocast(x.device.type, enabled=False)


class _NoGraph:
    """Stands for the node of a graph where there is none: keeps nothing."""

    def save_for_backward(self, *tensors: Any) -> None:
        pass


class OwnBackward(torch.autograd.Function):
    """A function whose backward pass is written out; a type checker knows `apply`.

    Products that are rounded on the way there are rounded on the way back, on whatever thread:
    while they are, its `twin` stands for a function. `native` is the same function as a kernel of
    this processor's (`native/`), and stands for it where that can take the tensors.
    """

    twin: ClassVar[Any] = None
    native: ClassVar[Any] = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "twin" not in vars(cls):
            made = {"backward": _rounding(cls.backward), "twin": None}  # a twin has no other
            cls.twin = type(cls.__name__, (cls,), made)

    if TYPE_CHECKING:

        @classmethod
        def apply(cls, *given: Any) -> Any: ...

    @classmethod
    def run(cls, *given: Any) -> Any:
        """`apply`; without gradients `forward` alone, for a node costs more than a token's work."""
        if cls.native is not None and served(given):
            return cls.native.run(*given)
        if not torch.is_grad_enabled():
            return cls.forward(_NoGraph(), *given)
        if rounds() and not torch.compiler.is_compiling():  # a compiler takes both ways at once
            return cls.twin.apply(*given)
        return cls.apply(*given)


def _rounding(backward: Callable[..., Any]) -> Any:
    def rounded(ctx: Any, *given: Any) -> Any:
        with Rounding(True):
            return backward(ctx, *given)

    return staticmethod(rounded)


def table(make: Callable[Arguments, Made]) -> Callable[Arguments, Made]:
    """Keep what `make` returns, which follows from shapes alone.

    Unless a tracer is at work: its tensors are not for later calls.
    """
    kept: Callable[..., Made] = lru_cache(maxsize=64)(torch.inference_mode(False)(make))

    @wraps(make)
    def get(*args: Arguments.args, **named: Arguments.kwargs) -> Made:
        traced = torch.compiler.is_compiling() or type(torch.empty(0)) is not Tensor
        return make(*args, **named) if traced else kept(*args, **named)

    return get


@table
def scalar(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full((), value, dtype=dtype, device=device)


@table
def count(n: int, device: torch.device) -> Tensor:
    """0, 1, .. n - 1."""
    return torch.arange(n, device=device)


# ---- the scan ------------------------------------------------------------------------------------


KEPT_BYTES = 2**30
Body = Callable[[Tensors, Tensors, Tensors, Tensor | None], tuple[Tensor, Tensors]]
"""(state, streams of one block, shared, count) -> (y, state behind the block)."""


@dataclass(frozen=True)
class Plan:
    """How `slots` tokens are cut. lookbacks: extra leading entries of each stream; None: a stream
    with one entry a block.

    apart: each block has a look-back of its own in front of it, instead of the slots before it.
    partial: a block that is not full still moves the state on (linear memories).
    kept: blocks whose graph is kept for the backward pass instead of being run again.
    fresh, count [g, blocks]: for rows that differ; see `tokens.Layout`.
    """

    block: int
    slots: int
    lookbacks: tuple[int | None, ...]
    partial: bool
    apart: bool = False
    kept: int = 0
    fresh: Tensor | None = None
    count: Tensor | None = None

    @property
    def blocks(self) -> int:
        return -(-self.slots // self.block)

    def slices(self, streams: Sequence[Tensor], j: int) -> Tensors:
        return tuple(self.slice(x, j, w) for x, w in zip(streams, self.lookbacks, strict=True))

    def slice(self, x: Tensor, j: int, lookback: int | None) -> Tensor:
        if lookback is None:
            return x[:, j : j + 1]
        begin = j * (self.block + lookback if self.apart else self.block)
        return x[:, begin : begin + min(self.block, self.slots - j * self.block) + lookback]


def kept_blocks(pairs: int, matrices: Tensors, like: Tensor) -> int:
    """How many blocks' graphs fit the budget, for rows and numbers like those of `like`."""
    # each matrix leaves about eight activations per pair, and the window its square matrices
    floats = 8 * sum(w.shape[-1] + w.shape[-2] for w in matrices) + 8 * pairs
    return KEPT_BYTES // (like.element_size() * like.shape[0] * pairs * floats)


@dataclass(frozen=True)
class Step:
    """One block: reset the rows that begin a document, run the body, keep the rows that go on."""

    body: Body
    plan: Plan

    def __call__(
        self, j: int, state: Tensors, initial: Tensors, streams: Tensors, shared: Tensors
    ) -> tuple[Tensor, Tensors]:
        plan = self.plan
        if plan.fresh is None or plan.count is None:
            y, after = self.body(state, streams, shared, None)
            whole = plan.partial or (j + 1) * plan.block <= plan.slots
            return y, after if whole else state
        state = where(plan.fresh[:, j], initial, state)
        count = plan.count[:, j]
        y, after = self.body(state, streams, shared, count if plan.partial else None)
        goes_on = count > 0 if plan.partial else count == plan.block
        return y, where(goes_on, after, state)


def scan(
    body: Body, plan: Plan, state: Tensors, initial: Tensors, streams: Tensors, shared: Tensors
) -> tuple[Tensor, Tensors]:
    """Run `body` over all blocks: outputs [g, slots, dv] and the state behind the last one."""
    step = Step(body, plan)
    counts = (len(state), len(initial), len(streams))
    tensors = (*state, *initial, *streams, *shared)
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        y, *after = _Scan.run(step, counts, *tensors)
        return y, tuple(after)
    outputs = []
    for j in range(plan.blocks):
        y, state = step(j, state, initial, plan.slices(streams, j), shared)
        outputs.append(y)
    return torch.cat(outputs, dim=1), state


def _split(tensors: Sequence[Any], counts: tuple[int, int, int]) -> tuple[Any, Any, Any, Any]:
    a, b, c = counts[0], sum(counts[:2]), sum(counts)
    return tuple(tensors[:a]), tuple(tensors[a:b]), tuple(tensors[b:c]), tuple(tensors[c:])


@dataclass(frozen=True)
class _Record:
    """One block with its graph: leaves by group (state, initial, streams, shared), outputs."""

    leaves: tuple[Tensors, ...]
    outputs: Tensors


def _record(step: Step, j: int, groups: tuple[Tensors, ...], needs: tuple[Any, ...]) -> _Record:
    state, initial, streams, shared = groups
    leaves = (
        tuple(x.detach().requires_grad_() for x in state),
        _leaves(initial, needs[1]),
        _leaves(step.plan.slices(streams, j), needs[2]),
        _leaves(shared, needs[3]),
    )
    with torch.enable_grad():
        y, after = step(j, *leaves)
    return _Record(leaves, (y, *after))


class _Scan(OwnBackward):
    @staticmethod
    def forward(ctx: Any, step: Step, counts: tuple[int, int, int], *tensors: Tensor) -> Tensors:
        state, initial, streams, shared = _split(tensors, counts)
        needs = _split(ctx.needs_input_grad[2:], counts)
        outputs, borders, records = [], [], {}
        for j in range(step.plan.blocks):
            borders.extend(state)
            if j < step.plan.kept:
                records[j] = _record(step, j, (state, initial, streams, shared), needs)
                y, *after = (x.detach() for x in records[j].outputs)
                state = tuple(after)
            else:
                y, state = step(j, state, initial, step.plan.slices(streams, j), shared)
            outputs.append(y)
        ctx.step, ctx.counts, ctx.records = step, counts, records
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, *borders)
        return torch.cat(outputs, dim=1), *_own(state, tensors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor | None, *dstate: Tensor | None) -> tuple[Any, ...]:
        step, counts, total = ctx.step, ctx.counts, len(ctx.needs_input_grad) - 2
        saved = ctx.saved_tensors
        tensors, borders = saved[:total], saved[total:]
        _, initial, streams, shared = _split(tensors, counts)
        needs = _split(ctx.needs_input_grad[2:], counts)
        d_streams = [_Collected(x, n, step.plan) for n, x in enumerate(streams)]
        sums: list[Tensor | None] = [None] * (counts[1] + len(shared))
        for j in reversed(range(step.plan.blocks)):
            border = borders[j * counts[0] : (j + 1) * counts[0]]
            record = ctx.records.pop(j, None)
            if record is None:
                record = _record(step, j, (border, initial, streams, shared), needs)
            begin, width = j * step.plan.block, record.outputs[0].shape[1]
            given = None if dy is None else dy[:, begin : begin + width]
            grads = _gradients(record, (given, *dstate))
            dstate = tuple(grads[0])
            for part, grad in zip(d_streams, grads[2], strict=True):
                part.add(j, grad)
            sums = [_plus(a, b) for a, b in zip(sums, (*grads[1], *grads[3]), strict=True)]
        d_state = tuple(g if need else None for g, need in zip(dstate, needs[0], strict=True))
        d_initial, d_shared = sums[: counts[1]], sums[counts[1] :]
        made = (x.total() if need else None for x, need in zip(d_streams, needs[2], strict=True))
        return None, None, *d_state, *d_initial, *made, *d_shared


def _own(state: Tensors, inputs: Tensors) -> Tensors:
    """Outputs of a node: each a tensor of its own, none of them an input."""
    seen, own = {id(x) for x in inputs}, []
    for x in state:
        own.append(x.clone() if id(x) in seen else x)
        seen.add(id(x))
    return tuple(own)


def _plus(total: Tensor | None, x: Tensor | None) -> Tensor | None:
    if total is None or x is None:
        return x if total is None else total
    return total + x


class _Collected:
    """The gradient of a stream from those of its blocks, last block first: laid end to end, or
    added up where blocks look back at the slots of others.
    """

    def __init__(self, stream: Tensor, number: int, plan: Plan) -> None:
        self.stream, self.number, self.plan = stream, number, plan
        self.laid = plan.apart or not plan.lookbacks[number]
        self.parts: list[Tensor] = []
        self.sum: Tensor | None = None

    def add(self, j: int, grad: Tensor | None) -> None:
        lookback = self.plan.lookbacks[self.number]
        if self.laid:
            here = self.plan.slice(self.stream, j, lookback)
            self.parts.append(torch.zeros_like(here) if grad is None else grad)
        elif grad is not None:
            if self.sum is None:
                self.sum = torch.zeros_like(self.stream)
            self.plan.slice(self.sum, j, lookback).add_(grad)

    def total(self) -> Tensor | None:
        if not self.laid:
            return self.sum
        laid = torch.cat(self.parts[::-1], dim=1)
        rest = self.stream.shape[1] - laid.shape[1]  # streams may be filled up to whole blocks
        return pad(laid, (0, 0) * (laid.dim() - 2) + (0, rest)) if rest else laid


def _leaves(tensors: Sequence[Tensor], needs: Sequence[bool]) -> Tensors:
    return tuple(x.detach().requires_grad_(need) for x, need in zip(tensors, needs, strict=True))


def _gradients(record: _Record, weights: Sequence[Tensor | None]) -> list[list[Tensor | None]]:
    """d(outputs . weights) by group of leaves; None for a leaf that needs none or has none."""
    wanted = [x for group in record.leaves for x in group if x.requires_grad]
    both = zip(record.outputs, weights, strict=True)
    pairs = [(o, w) for o, w in both if o.requires_grad and w is not None]
    outputs, given = [o for o, _ in pairs], [w for _, w in pairs]
    found = iter(torch.autograd.grad(outputs, wanted, given, allow_unused=True))
    return [[next(found) if x.requires_grad else None for x in group] for group in record.leaves]
