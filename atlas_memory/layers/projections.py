"""Around a memory: q, k, v and the read-out, norms and convolution.   [Atlas Eq. 48, 52]"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from atlas_memory.layers.rows import Lengths, Starts, document_ids, row_tail
from atlas_memory.memory.graphs import OwnBackward, scalar
from atlas_memory.memory.native import layer as native
from atlas_memory.memory.tree import State

CONV_SIZE = 4


def require_heads(dim: int, heads: int) -> int:
    """The width of one head."""
    if heads < 1 or dim % heads:
        raise ValueError(f"dim={dim} and heads={heads}: the heads must divide the width")
    return dim // heads


def in_heads(x: Tensor, heads: int) -> Tensor:
    """[b, t, h d] -> [b, h, t, d], never in less than float32: what the engine works with."""
    return by_head(heads_of(x, heads))


def heads_of(x: Tensor, heads: int) -> Tensor:
    """[b, t, h d] -> [b, t, h, d] in float32 or more, as it lies in memory."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return torch.unflatten(wide, 2, (heads, -1))


def by_head(x: Tensor) -> Tensor:
    return x.transpose(1, 2)


def designed_count(designed_heads: str, heads: int) -> int:
    """How many of the heads, the first ones, have the start of `Projections`."""
    counts = {"all": heads, "half": (heads + 1) // 2, "none": 0}
    if designed_heads not in tuple(counts):
        raise ValueError(f"designed_heads={designed_heads!r}; choose from: {', '.join(counts)}")
    return counts[designed_heads]


class Projections(nn.Module):
    """q, k, v by linear maps and a causal convolution of size 4, all three of length one.

    Differs from the paper: no activation behind the convolution, and v is normalized too.
    """

    def __init__(self, dim: int, heads: int, designed_heads: str = "half") -> None:
        super().__init__()
        self.heads = heads
        self.designed = designed_count(designed_heads, heads) * require_heads(dim, heads)
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)
        self.conv = ShortConv(3 * dim, CONV_SIZE)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """q and v start as the token itself, k as the mean of this token and the one before.

        q and k start as the same map, so the query of a token finds from the first step on what
        followed it before; with two maps the outer training waits on a plateau for their meeting.
        Heads that are not designed keep the random maps and taps of their parts.
        """
        with torch.no_grad():
            self.k_proj.weight[: self.designed] = self.q_proj.weight[: self.designed]
            taps = torch.unflatten(self.conv.weight, 0, (3, -1))[:, : self.designed]
            taps.zero_()
            taps[:, :, 0] = 1.0
            taps[1, :, :2] = 0.5

    def forward(
        self, x: Tensor, state: ConvState | None, starts: Starts | None, lengths: Lengths | None
    ) -> tuple[tuple[Tensor, Tensor, Tensor], ConvState]:
        parts = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        single = x.shape[1] == 1 and starts is None and lengths is None
        if single and state is not None and native.reads(*parts, state.tail, self.conv.weight):
            d = x.shape[2] // self.heads
            wide, tail = native.mixed_token(parts, state.tail, self.conv.weight, d)
            mixed, state = torch.unflatten(wide, 2, (3 * self.heads, -1)), ConvState(tail)
        else:
            projected = torch.cat(parts, dim=2)
            projected, state = self.conv(projected, state, starts=starts, lengths=lengths)
            mixed = unit(heads_of(projected, 3 * self.heads))
        q, k, v = by_head(mixed).chunk(3, dim=1)
        return (q, k, v), state


def unit(x: Tensor) -> Tensor:
    """x / ||x||, zero at zero, with a finite gradient everywhere."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / torch.hypot(length, scalar(1e-3, x.dtype, x.device))


class ReadOut(nn.Module):
    """RMS norm of every head's answer, SiLU gate from the token, output projection.

    floor: mean squares far below it stay small instead of being brought to 1.
    """

    def __init__(self, dim: int, heads: int, floor: float = 1e-6) -> None:
        super().__init__()
        self.norm = RMSNorm(require_heads(dim, heads), floor)
        self.gate_proj = nn.Linear(dim, dim, bias=False)
        self.out_proj = nn.Linear(dim, dim, bias=False)

    def undo(self, projections: Projections) -> None:
        """Let designed heads answer with the tokens they wrote: out_proj = v_proj^T. With two
        random maps a memory task begins with a plateau (docs/log.md).
        """
        with torch.no_grad():
            written = projections.v_proj.weight[: projections.designed]
            self.out_proj.weight[:, : projections.designed] = written.T

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The tokens x [b, t, dim] and the memory's answers y [b, h, t, d] -> [b, t, dim]."""
        answers = self.norm(y.transpose(1, 2)).flatten(2).to(x.dtype)
        return self.out_proj(answers * F.silu(self.gate_proj(x)))


# ---- normalization -------------------------------------------------------------------------------


class RMSNorm(nn.Module):
    """`rms_norm` with a learned weight."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}"


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, never in less than float32."""
    if native.reads(x, weight):
        return native.rms_norm(x, weight, eps)
    return F.rms_norm(x, weight.shape, weight.to(x.dtype), eps)


# ---- the short convolution -----------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class ConvState(State):
    """The last size - 1 inputs of each row; zeros stand for inputs that do not exist."""

    tail: Tensor  # [b, size - 1, dim]


class ShortConv(nn.Module):
    """A learned `short_convolution` of `size` taps."""

    def __init__(self, dim: int, size: int = 4) -> None:
        super().__init__()
        if size < 2:
            raise ValueError(f"a short convolution needs size >= 2, got {size}")
        self.weight = nn.Parameter(torch.empty(dim, size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = self.weight.shape[1] ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(
        self,
        x: Tensor,  # [b, t, dim]
        state: ConvState | None = None,
        *,
        starts: Starts | None = None,
        lengths: Lengths | None = None,
    ) -> tuple[Tensor, ConvState]:
        return short_convolution(x, self.weight, state, starts, lengths)

    def extra_repr(self) -> str:
        dim, size = self.weight.shape
        return f"{dim}, size={size}"


def short_convolution(
    x: Tensor,  # [b, t, dim]
    weight: Tensor,  # [dim, size]
    state: ConvState | None,
    starts: Starts | None,
    lengths: Lengths | None,
) -> tuple[Tensor, ConvState]:
    """y_t = sum_{j < size} weight[:, j] * x_{t-j} in the document of token t. [Atlas Sec. 5]"""
    older = weight.shape[1] - 1
    tail = x.new_zeros(x.shape[0], older, x.shape[2]) if state is None else state.tail
    inputs = torch.cat([tail.to(x.dtype), x], dim=1)
    last = row_tail(inputs, older, lengths)
    if starts is None:
        return _convolve(inputs, weight.to(x.dtype)), ConvState(last)
    document = F.pad(document_ids(starts), (older, 0))
    last_document = row_tail(document, older, lengths)
    kept = (last_document == last_document[:, -1:]).to(x.dtype)
    outputs = _convolve_within(inputs, weight.to(x.dtype), document)
    return outputs, ConvState(last * kept[:, :, None])


BY_TAPS = ("cpu",)  # devices on which conv1d, which wants channels first, is slower than its sum


def _convolve(inputs: Tensor, weight: Tensor) -> Tensor:
    kernel = weight.flip(1)[:, None]
    if inputs.shape[1] == weight.shape[1]:  # one token: conv1d takes longer to set up than to run
        return (inputs * kernel[:, 0].mT).sum(dim=1, keepdim=True)
    if inputs.device.type in BY_TAPS and inputs.dtype in (torch.float32, torch.float64):
        # a compiler makes a backward pass of its own, and warns of ours
        sum_up = _by_taps if torch.compiler.is_compiling() else _Taps.run
        mixed: Tensor = sum_up(inputs, weight)
        return mixed
    return F.conv1d(inputs.transpose(1, 2), kernel, groups=len(kernel)).transpose(1, 2)


def _by_taps(inputs: Tensor, weight: Tensor) -> Tensor:
    """sum_j weight[:, j] x_{t-j} of the inputs x [b, older + t, dim], which begin earlier."""
    # taps whose numbers lie apart take three times as long
    first, *others = weight.mT.contiguous()
    older = len(others)
    y = inputs[:, older:] * first
    for j, tap in enumerate(others, 1):
        y.addcmul_(inputs[:, older - j : -j], tap)
    return y


class _Taps(OwnBackward):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return _by_taps(inputs, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        """An input reaches the outputs at its own place and behind it: taps in reverse."""
        inputs, weight = ctx.saved_tensors
        older, time = weight.shape[1] - 1, dy.shape[1]
        later = F.pad(dy, (0, 0, older, older))
        d_inputs = _by_taps(later, weight.flip(1))
        parts = [inputs[:, older - j : older - j + time] for j in range(older + 1)]
        d_weight = torch.stack([(part * dy).sum(dim=(0, 1)) for part in parts], dim=1)
        return d_inputs, d_weight


def _convolve_within(inputs: Tensor, weight: Tensor, document: Tensor) -> Tensor:
    """The same, where an input of another document counts as zero."""
    older = weight.shape[1] - 1
    time = inputs.shape[1] - older
    outputs = inputs[:, older:] * weight[:, 0]
    for j in range(1, older + 1):
        earlier = slice(older - j, older - j + time)
        same = (document[:, earlier] == document[:, older:]).to(inputs.dtype)
        outputs = outputs + inputs[:, earlier] * same[:, :, None] * weight[:, j]
    return outputs
