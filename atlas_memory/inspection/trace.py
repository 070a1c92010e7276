"""trace: what every memory of a model did with a text, token by token.

Hooks listen while the text is read and are taken off again; the layers know nothing of it, and
nothing is left on the model. The text is read in pieces with the state carried on, which is the
same function as reading it at once, so the memories can be looked at between two pieces.
"""

# torch's modules give Tensor | Module for a child, and transformers is typed in parts.
# mypy: disable-error-code="union-attr, no-untyped-call"

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atlas_memory.blocks import Block
from atlas_memory.cache import AtlasCache
from atlas_memory.layers.memory_layer import MemoryLayer
from atlas_memory.memory.omega import Gates
from atlas_memory.memory.state import MemoryState
from atlas_memory.model import AtlasForCausalLM, feed

EVERY = 64


@dataclass(frozen=True)
class MemoryTrace:
    """The gates of a layer's memory at every token, and how large the memory has become.

    alpha, eta, theta [h, t] and gamma [h, t, c], None where the rule has none; alpha of a memory
    that forgets by channel is the mean of its channels. weights, momentum [h, n]: Frobenius norms
    over all matrices after each of the n pieces.
    """

    alpha: Tensor | None
    eta: Tensor | None
    theta: Tensor | None
    gamma: Tensor | None
    weights: Tensor
    momentum: Tensor | None


@dataclass(frozen=True, repr=False)
class LayerTrace:
    """Norms [t] of what the two halves of a layer add to its stream, and of the stream then.

    stream: before the layer; mixed: with the mixer's read-out; out: with both halves.
    """

    mixer: str
    stream: Tensor
    read_out: Tensor
    mixed: Tensor
    feed_forward: Tensor
    out: Tensor
    memory: MemoryTrace | None

    def __repr__(self) -> str:
        return f"LayerTrace({self.mixer}, {len(self.stream):,} tokens)"

    @property
    def contribution(self) -> Tensor:
        """The read-out's length as a share of the stream with it: 1 where there is little else."""
        return self.read_out / self.mixed.clamp(min=1e-12)

    @property
    def feed_forward_contribution(self) -> Tensor:
        return self.feed_forward / self.out.clamp(min=1e-12)


@dataclass(frozen=True, repr=False)
class Trace:
    """tokens [t]. surprise [t]: -log2 p(token | tokens before), NaN for the first token.

    points [n]: how many tokens had been read whenever the memories were looked at.
    """

    tokens: Tensor
    surprise: Tensor
    points: Tensor
    layers: tuple[LayerTrace, ...]

    def __repr__(self) -> str:
        memories = sum(layer.memory is not None for layer in self.layers)
        told = f"{len(self.layers)} layers, {memories} of them memories"
        return f"Trace({len(self.tokens):,} tokens, {self.mean_surprise:.2f} bits each, {told})"

    @property
    def mean_surprise(self) -> float:
        """Bits per token, the first one left out."""
        return float(self.surprise[1:].mean()) if len(self.tokens) > 1 else math.nan


@torch.no_grad()
def trace(model: AtlasForCausalLM, tokens: Tensor | Sequence[int], *, every: int = EVERY) -> Trace:
    """Read one text of ids [t] and tell what happened; `every` tokens the memories are measured.

    The model computes what it would compute without being watched, and stays as it is.
    """
    ids = _require_text(tokens, every).to(model.device)
    layers = [_Layer(block) for block in model.model.layers]
    surprise, points, cache, last = [], [], AtlasCache(), None
    training = model.training
    model.eval()
    try:
        with ExitStack() as hooks:
            for layer in layers:
                hooks.enter_context(layer.listening())
            for piece in ids.split(every):
                (hidden,), cache = feed(model, piece[None], cache)
                surprise.append(_bits(model, last, hidden, piece))
                last = hidden[-1:]
                points.append(cache.seen)
                for layer in layers:
                    layer.measure()
    finally:
        model.train(training)
    found = tuple(layer.trace() for layer in layers)
    return Trace(ids.cpu(), torch.cat(surprise).cpu(), torch.tensor(points), found)


def _require_text(tokens: Tensor | Sequence[int], every: int) -> Tensor:
    ids = torch.as_tensor(tokens)
    if ids.dim() == 2 and len(ids) == 1:
        ids = ids[0]
    if ids.dim() != 1 or not len(ids) or ids.is_floating_point():
        raise ValueError(f"tokens {tuple(ids.shape)}: give one text of at least one id, [t]")
    if every < 1:
        raise ValueError(f"every={every}: look at the memories every 1 token or more")
    return ids.long()


def _bits(model: AtlasForCausalLM, last: Tensor | None, hidden: Tensor, piece: Tensor) -> Tensor:
    """Surprise of a piece's tokens; the first of a text was not predicted by anything."""
    before = hidden[:-1] if last is None else torch.cat([last, hidden[:-1]])
    targets = piece if last is not None else piece[1:]
    logits = model.lm_head(before)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    nats = F.cross_entropy(logits, targets, reduction="none").double()
    none = nats.new_full((len(piece) - len(targets),), math.nan)
    return torch.cat([none, nats / math.log(2)])


@dataclass
class _Layer:
    """Collects from one block while the text is read."""

    block: nn.Module
    stream: list[Tensor] = field(default_factory=list)
    read_out: list[Tensor] = field(default_factory=list)
    mixed: list[Tensor] = field(default_factory=list)
    feed_forward: list[Tensor] = field(default_factory=list)
    out: list[Tensor] = field(default_factory=list)
    gates: list[Gates] = field(default_factory=list)
    state: MemoryState | None = None
    weights: list[Tensor] = field(default_factory=list)
    momentum: list[Tensor] = field(default_factory=list)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """The hooks of this block, for as long as the context lasts."""
        block, memory = self.block, self._memory()
        mixer, mlp_norm, mlp = _halves(block)
        with ExitStack() as stack:
            handles = [
                block.register_forward_pre_hook(_input_into(self.stream)),
                mixer.register_forward_hook(_output_into(self.read_out)),
                mlp_norm.register_forward_pre_hook(_input_into(self.mixed)),
                mlp.register_forward_hook(_output_into(self.feed_forward)),
                block.register_forward_hook(_output_into(self.out)),
            ]
            if memory is not None:
                handles.append(memory.register_forward_hook(self._hear_memory))
                handles.append(memory.gates.register_forward_hook(self._hear_gates))
            for handle in handles:
                stack.callback(handle.remove)
            yield

    def _memory(self) -> MemoryLayer | None:
        found = [m for m in self.block.modules() if isinstance(m, MemoryLayer)]
        assert len(found) <= 1
        return found[0] if found else None

    def _hear_gates(self, _: Any, __: Any, output: Gates) -> None:
        self.gates.append(output)

    def _hear_memory(self, _: Any, __: Any, output: tuple[Tensor, Any]) -> None:
        self.state = output[1].memory

    def measure(self) -> None:
        """The size of the memory as it is now."""
        if self.state is not None:
            self.weights.append(_size(self.state.weights))
            self.momentum.append(_size(self.state.momentum))

    def trace(self) -> LayerTrace:
        return LayerTrace(
            type(_halves(self.block)[0]).__name__,
            torch.cat(self.stream).cpu(),
            torch.cat(self.read_out).cpu(),
            torch.cat(self.mixed).cpu(),
            torch.cat(self.feed_forward).cpu(),
            torch.cat(self.out).cpu(),
            self._memory_trace() if self.weights else None,
        )

    def _memory_trace(self) -> MemoryTrace:
        time = sum(map(len, self.stream))
        alphas = [gates.alpha for gates in self.gates]
        momentum = [m for m in self.momentum if len(m)]
        return MemoryTrace(
            _joined([_per_token(a) for a in alphas], time),
            _joined([gates.eta for gates in self.gates], time),
            _joined([gates.theta for gates in self.gates], time),
            _joined([gates.gamma for gates in self.gates], time),
            torch.stack(self.weights, dim=1).cpu(),
            torch.stack(momentum, dim=1).cpu() if momentum else None,
        )


def _halves(block: Any) -> tuple[nn.Module, nn.Module, nn.Module]:
    """What mixes tokens, and the norm and the network behind it, by transformers' names or ours."""
    if isinstance(block, Block):
        return block.mixer, block.mlp_norm, block.mlp
    norms = ("pre_feedforward_layernorm", "post_attention_layernorm")
    norm = next(getattr(block, name) for name in norms if hasattr(block, name))
    return block.self_attn, norm, block.mlp


def _input_into(norms: list[Tensor]) -> Callable[[Any, tuple[Tensor, ...]], None]:
    return lambda _, inputs: norms.append(_norms(inputs[0]))


def _output_into(norms: list[Tensor]) -> Callable[[Any, Any, Any], None]:
    """A module's output is a tensor, or a tensor and its state."""
    return lambda _, __, out: norms.append(_norms(out[0] if isinstance(out, tuple) else out))


def _norms(x: Tensor) -> Tensor:
    """[1, t, dim] -> [t], in no less than float32."""
    return x[0].to(torch.promote_types(x.dtype, torch.float32)).norm(dim=-1)


def _size(matrices: tuple[Tensor, ...]) -> Tensor:
    """[1, h, out, in] each -> the Frobenius norm of all of them, [h]; [0] if there are none."""
    if not matrices:
        return torch.zeros(0)
    return sum(m[0].square().sum(dim=(-1, -2)) for m in matrices).sqrt()


def _per_token(alpha: Tensor | None) -> Tensor | None:
    """Channels become their mean; the constants [h] of a fixed retention stay."""
    return alpha.mean(dim=-1) if alpha is not None and alpha.dim() == 4 else alpha


def _joined(parts: Sequence[Tensor | None], time: int) -> Tensor | None:
    """Parts [1, h, t_i, ..] along time; constants [h] are the same at every token."""
    there = [part for part in parts if part is not None]
    if not there:
        return None
    if there[0].dim() == 1:
        return there[0][:, None].expand(-1, time).cpu()
    return torch.cat([part[0] for part in there], dim=1).cpu()
