"""What a memory is told about every token: q, k, v and its gates. [Atlas Eq. 48, 52]"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atlas_memory.layers.norms import RMSNorm
from atlas_memory.layers.rows import Lengths, Starts
from atlas_memory.layers.short_conv import ConvState, ShortConv
from atlas_memory.layers.step_size import forgetting
from atlas_memory.memory import Gates, MemorySpec
from atlas_memory.memory.graphs import as_given, scalar

CONV_SIZE = 4
LARGEST_HIDDEN_STEP = 0.5  # of a hidden matrix towards a pair, whose part is never longer than 1


def require_heads(dim: int, heads: int) -> int:
    """The width of one head."""
    if heads < 1 or dim % heads:
        raise ValueError(f"dim={dim} and heads={heads}: the heads must divide the width")
    return dim // heads


def in_heads(x: Tensor, heads: int) -> Tensor:
    """[b, t, h d] -> [b, h, t, d], never in less than float32: what the engine works with."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return torch.unflatten(wide, 2, (heads, -1)).transpose(1, 2)


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
        projected = torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], dim=2)
        mixed, state = self.conv(projected, state, starts=starts, lengths=lengths)
        q, k, v = unit(in_heads(mixed, 3 * self.heads)).chunk(3, dim=1)
        return (q, k, v), state


def unit(x: Tensor) -> Tensor:
    """x / ||x||, zero at zero, with a finite gradient everywhere."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / torch.hypot(length, scalar(1e-3, x.dtype, x.device))


def gate_logits(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A linear map in float32 or more: a gate near 1 has no digits left in bfloat16."""
    wide = torch.promote_types(x.dtype, torch.float32)
    with as_given(x):
        return F.linear(x.to(wide), weight.to(wide), bias.to(wide))


class GateProjections(nn.Module):
    """The gates of a spec from the token, in float32 whatever the rest of the network runs in.

        gamma = sigmoid(.)     c of them; those of older pairs start near 0
        theta = 0.9 sigmoid(.)
        s     = sigmoid(.) * bound, `step_size.largest_step`
        eta   = s (1 - theta) / (1 + sum_{j > 0} gamma_j)
        alpha = 1 - sigmoid(.) for a matrix, 1 - sigmoid(.) / chunk for a deep memory; starts near 1
        mu    = 0.5 sigmoid(.) (1 - theta) / (1 + sum_{j > 0} gamma_j), the step of hidden matrices
                where the output is exact; starts at 0.06, and alpha is that of a matrix

    so the size of a step depends neither on the window nor on the momentum. A deep memory forgets
    at most a factor e in a chunk: at W = 0 its gradient is zero, and it would never learn again.
    An exact one may: it goes back to its first matrices.
    """

    def __init__(self, dim: int, heads: int, spec: MemorySpec) -> None:
        super().__init__()
        self.spec, self.heads = spec, heads
        self.widths = _widths(spec, require_heads(dim, heads))
        total = sum(self.widths.values()) * heads
        self.weight = nn.Parameter(torch.empty(total, dim))
        self.bias = nn.Parameter(torch.empty(total))
        self.decay: Tensor
        if spec.retention.fixed:
            self.register_buffer("decay", torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)
        starts = {"eta": 0.0, "alpha": 6.0, "theta": 0.0, "gamma": -4.0, "hidden": -2.0}
        with torch.no_grad():
            for name, bias in self._split(self.bias).items():
                bias.fill_(starts[name])
                if name == "gamma":
                    bias[:, 0] = 4.0
            if self.spec.retention.fixed:
                self.decay.copy_(1 - 2.0 ** (-5 - torch.arange(self.heads)))

    def _split(self, x: Tensor) -> dict[str, Tensor]:
        """[.., sum of widths * h] -> name: [.., h, width]."""
        parts = torch.split(x, [width * self.heads for width in self.widths.values()], dim=-1)
        named = zip(self.widths, parts, strict=True)
        return {name: torch.unflatten(part, -1, (self.heads, -1)) for name, part in named}

    def forward(self, x: Tensor, bound: Tensor | None) -> Gates:
        """From the tokens x [b, t, dim] and the largest step of each head [h]; None: 1."""
        raw = gate_logits(x, self.weight, self.bias).sigmoid()
        opened = {n: gate.transpose(1, 2) for n, gate in self._split(raw).items()}
        share = opened["eta"][..., 0]
        theta, gamma, steps = None, opened.get("gamma"), [share]
        if bound is not None:
            steps = [share * bound.to(share)[:, None]]
        if "hidden" in opened:
            steps.append(LARGEST_HIDDEN_STEP * opened["hidden"][..., 0])
        if "theta" in opened:
            theta = 0.9 * opened["theta"][..., 0]
            heavy = not (self.spec.online and self.spec.optimizer.orthogonal)
            steps = [step * (1 - theta) for step in steps] if heavy else steps
        if gamma is not None:
            looked = 1 + gamma[..., 1:].sum(dim=-1)
            steps = [step / looked for step in steps]
        return Gates(self._alpha(opened, share), steps[0], theta, gamma, *steps[1:])

    def _alpha(self, opened: dict[str, Tensor], share: Tensor) -> Tensor | None:
        if self.spec.retention.fixed:
            return self.decay
        if self.spec.retention.channel:
            return opened["alpha"]
        if "alpha" not in opened:
            return None
        alpha = opened["alpha"][..., 0]
        if self.spec.online or not self.spec.architecture.deep:
            return alpha
        lost = (1 - alpha) / self.spec.chunk
        if self.spec.retention.steep:
            # W = A / ||A||^(q-2) grows as A fades: forget only while writing, and less than that.
            lost = 0.1 * share * lost
        return (1 - lost) * (1 - share / self.spec.chunk) if forgetting(self.spec) else 1 - lost


def _widths(spec: MemorySpec, head_dim: int) -> dict[str, int]:
    """How many values each gate of the spec has at a token and head."""
    widths = {"eta": 1}
    if spec.retention.forgets and not spec.retention.fixed:
        widths["alpha"] = spec.features.dim(head_dim) if spec.retention.channel else 1
    if spec.optimizer.momentum:
        widths["theta"] = 1
    if spec.window > 1:
        widths["gamma"] = spec.window
    if spec.online:
        widths["hidden"] = 1
    return widths


class ReadOut(nn.Module):
    """RMS norm of every head's answer, SiLU gate from the token, output projection."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm = RMSNorm(require_heads(dim, heads))
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
        out: Tensor = self.out_proj(answers * F.silu(self.gate_proj(x)))
        return out
