"""The gates of a memory: what it is told of every token besides q, k and v.

`GateProjections` makes them. Two things bound them: `largest_step`, so that no input makes the
memory diverge, and a write gate, which decides what is taken in at all.

All gradients of a chunk are taken at one point, so on a repeated token a chunk acts like one step
of size s = sum of its eta. Four facts bound it, for keys, values and queries of length one:

- Linear memory, L2: e <- (1 - s ||phi||^2) e, no growth while s ||phi||^2 <= 1.
- Deep memory, surprise no longer than delta (Huber): along the direction in which W1 and W2 feed
  each other a step multiplies by 1 - s' or by 1 + s', s' = s delta ||phi|| max|gelu'|, as the sign
  of the surprise is; y beyond v turns the sign, and (1 - s')(1 + s') < 1 while s' < sqrt(2).
- Deep memory, dot product: nothing turns the sign, |W| grows by 1 + s'. Only forgetting at the
  same rate bounds it, which `forgetting` asks for.
- Exact output, hidden features of length one at most: e <- (1 - s) e at every token, whatever came
  before, so s <= 1 is the delta rule's own bound, and ||W1|| grows by at most ||v - r|| <= 2 in a
  step. A pair moves a hidden matrix by d with ||d|| < 1, times a step of at most 1/2.

Muon's steps have a fixed length and the weights of Memora and Moneta are normalized: there s only
says how far a memory may travel in a chunk.

A write gate w_t in [0, 1] that is exactly 0 below a threshold multiplies eta, mu and 1 - alpha, and
gamma[t, j] by w_{t-j}: a token that is not admitted leaves the memory bit for bit as it was, and no
later step writes it either. (Under Momentum the momentum of older tokens still runs out.)

Muon steps every `period` tokens. The step is the mean of mu over the tokens since the last one, so
that it does not matter on which of them it falls.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atlas_memory.layers.projections import require_heads
from atlas_memory.layers.rows import Lengths, Starts, row_tail, valid_tokens
from atlas_memory.memory import Gates, MemorySpec
from atlas_memory.memory.graphs import as_given
from atlas_memory.memory.native import layer as native
from atlas_memory.memory.tokens import age_of_tokens
from atlas_memory.memory.tree import State

LARGEST_HIDDEN_STEP = 0.5  # of a hidden matrix towards a pair, whose part is never longer than 1


def gate_logits(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A linear map in float32 or more: a gate near 1 has no digits left in bfloat16."""
    wide = torch.promote_types(x.dtype, torch.float32)
    with as_given(x):
        return F.linear(x.to(wide), weight.to(wide), bias.to(wide))


class GateProjections(nn.Module):
    """The gates of a spec from the token, in float32 whatever the rest of the network runs in.

        gamma = sigmoid(.)     c of them; those of older pairs start near 0
        theta = 0.9 sigmoid(.)
        s     = sigmoid(.) * bound, `largest_step`
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
                    bias[:: self.spec.window] = 4.0
            if self.spec.retention.fixed:
                self.decay.copy_(1 - 2.0 ** (-5 - torch.arange(self.heads)))

    def _split(self, x: Tensor, dim: int = -1) -> dict[str, Tensor]:
        """The parts of an axis [sum of widths * h] by name, each [h * width]."""
        parts = x.split([width * self.heads for width in self.widths.values()], dim=dim)
        return dict(zip(self.widths, parts, strict=True))

    def _by_token(self, x: Tensor) -> Tensor:
        """[b, h * width, t] -> [b, h, t, width]."""
        return x.unflatten(1, (self.heads, -1)).mT

    def forward(self, x: Tensor, bound: Tensor | None) -> Gates:
        """From the tokens x [b, t, dim] and the largest step of each head [h]; None: 1."""
        logits = gate_logits(x, self.weight, self.bias)
        if x.shape[1] == 1 and self._plain and native.reads(logits):
            return self._opened(logits, bound)
        # those of one number a head are [b, h, t] already
        opened = self._split(logits.sigmoid().mT, dim=1)
        share = opened["eta"]
        theta, gamma, steps = None, None, [share]
        if bound is not None:
            steps = [share * bound.to(share)[:, None]]
        if "hidden" in opened:
            steps.append(LARGEST_HIDDEN_STEP * opened["hidden"])
        if "theta" in opened:
            theta = 0.9 * opened["theta"]
            steps = [step * (1 - theta) for step in steps] if self._heavy else steps
        if "gamma" in opened:
            gamma = self._by_token(opened["gamma"])
            looked = 1 + gamma[..., 1:].sum(dim=-1)
            steps = [step / looked for step in steps]
        return Gates(self._alpha(opened, share), steps[0], theta, gamma, *steps[1:])

    @property
    def _heavy(self) -> bool:
        """Whether a step goes on as momentum."""
        return not (self.spec.online and self.spec.optimizer.orthogonal)

    @property
    def _plain(self) -> bool:
        """Whether alpha is one number a head, as it comes out of its sigmoid, or there is none."""
        exact, retention = self.spec.online or not self.spec.architecture.deep, self.spec.retention
        return exact and not (retention.fixed or retention.channel)

    def _opened(self, logits: Tensor, bound: Tensor | None) -> Gates:
        """The same of one token, in one call."""
        largest = None if bound is None else bound.to(logits)
        made = native.gates_token(
            logits, largest, LARGEST_HIDDEN_STEP, self.heads, self.widths, self._heavy
        )
        opened = self._split(made.mT, dim=1)
        gamma = self._by_token(opened["gamma"]) if "gamma" in opened else None
        one = {name: opened.get(name) for name in ("alpha", "eta", "theta", "hidden")}
        return Gates(**one, gamma=gamma)

    def _alpha(self, opened: dict[str, Tensor], share: Tensor) -> Tensor | None:
        if self.spec.retention.fixed:
            return self.decay
        if self.spec.retention.channel:
            return self._by_token(opened["alpha"])
        if "alpha" not in opened:
            return None
        alpha = opened["alpha"]
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


# ---- how large a step may be ---------------------------------------------------------------------


GELU_SLOPE = 1.13  # the largest |gelu'|
STEEPNESS = 8.0  # of W = A / ||A||^(q-2) where A is small; at 1 gradients grew 10x in 100 tokens


def forgetting(spec: MemorySpec) -> bool:
    """Whether a step has to forget as much as it may write: alpha <= 1 - s'."""
    return spec.bias.hebbian and spec.architecture.deep and not spec.materialized


def largest_step(
    spec: MemorySpec, weights: tuple[Tensor, ...], coefficients: Tensor | None
) -> Tensor | None:
    """The bound on eta before its division by window and momentum, one per head [h]; None: 1."""
    if spec.online:
        return None
    heads = weights[0].new_ones(weights[0].shape[0])
    if spec.optimizer.orthogonal:
        return heads * spec.optimizer.period / spec.chunk
    if spec.optimizer.implicit or spec.retention.positive:
        return None
    if spec.bias.hebbian and not spec.architecture.deep:
        return None
    with torch.no_grad():
        energy = spec.features.energy(coefficients)
        return heads / (spec.rhythm * _rate(spec, weights, energy))


def _rate(spec: MemorySpec, weights: tuple[Tensor, ...], energy: Tensor) -> Tensor:
    """s' / s: how fast a unit of step can make the memory move."""
    if spec.retention.steep:
        return STEEPNESS * energy * _curvature(spec, weights, energy)
    if not spec.architecture.deep:
        return energy * _curvature(spec, weights, energy)
    rate = GELU_SLOPE * energy.sqrt()
    if spec.architecture.gated:
        rate = rate * energy.sqrt() * _largest(weights).clamp(min=1.0)
    if spec.bias.longest is not None:
        return rate * spec.bias.longest
    return (
        rate * energy.sqrt() * (1 + _largest(weights).square()) * _curvature(spec, weights, energy)
    )


def _curvature(spec: MemorySpec, weights: tuple[Tensor, ...], energy: Tensor) -> Tensor:
    """The bias' second derivative at the longest error that W_0 can make: (p - 1) |e|^(p - 2)."""
    p = spec.bias.power
    if p <= 2:
        return torch.ones_like(energy)
    reach = _largest(weights) * energy.sqrt()
    error = 2 + (reach if len(weights) == 1 else reach * _largest(weights))
    return (p - 1) * error ** (p - 2)


def _largest(weights: tuple[Tensor, ...]) -> Tensor:
    """The largest singular value of all matrices of a head, [h]."""
    return torch.stack([torch.linalg.matrix_norm(w, ord=2) for w in weights]).amax(dim=0)


# ---- admission -----------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class AdmissionState(State):
    """admitted [b, c - 1, h]: w of the last tokens. pending [b, h]: sum of mu since Muon's step."""

    admitted: Tensor | None = None
    pending: Tensor | None = None


class WriteGate(nn.Module):
    """w = clamp(1.2 sigmoid(z) - 0.1, 0, 1), with the sigmoid's gradient everywhere."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, dim))
        self.bias = nn.Parameter(torch.empty(heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Nearly open: sigmoid(1)."""
        nn.init.normal_(self.weight, std=0.02)
        nn.init.constant_(self.bias, 1.0)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """w and its logit z of the tokens x [b, t, dim], both [b, h, t]."""
        z = gate_logits(x, self.weight, self.bias).transpose(1, 2)
        smooth = z.sigmoid()
        # Below the threshold a clamp has no gradient, and a gate that is shut would stay shut.
        return smooth + ((1.2 * smooth - 0.1).clamp(0, 1) - smooth).detach(), z


def price(z: Tensor) -> Tensor:
    """What open gates cost: linear in the logit, so that it still pulls where gates saturate."""
    return F.relu(z + 18).mean()


def admit(
    spec: MemorySpec, gates: Gates, w: Tensor, state: AdmissionState | None, lengths: Lengths | None
) -> tuple[Gates, Tensor | None]:
    """The gates of a memory that takes in w [b, h, t] of every token, and the newest w."""
    assert gates.eta is not None
    alpha, theta, gamma = gates.alpha, gates.theta, gates.gamma
    if alpha is not None:
        alpha = 1 - (w if alpha.dim() == 3 else w[..., None]) * (1 - alpha)
    if theta is not None and spec.optimizer.orthogonal:
        theta = 1 - w * (1 - theta)
    hidden = None if gates.hidden is None else gates.hidden * w
    newest = None
    if gamma is not None:
        rows = w.transpose(1, 2)
        older = rows.new_zeros(len(rows), spec.window - 1, rows.shape[2])
        if state is not None and state.admitted is not None:
            older = state.admitted.to(rows)
        both = torch.cat([older, rows], dim=1)
        newest = row_tail(both, spec.window - 1, lengths)
        # [b, t, h, c], oldest first; gamma[t, 0] is token t itself
        gamma = gamma * both.unfold(1, spec.window, 1).flip(-1).transpose(1, 2)
    return replace(
        gates, alpha=alpha, eta=gates.eta * w, theta=theta, gamma=gamma, hidden=hidden
    ), newest


def averaged(
    spec: MemorySpec,
    mu: Tensor,
    position: Tensor,
    phase: int | None,
    pending: Tensor | None,
    starts: Starts | None,
    lengths: Lengths | None,
) -> tuple[Tensor, Tensor]:
    """The mean of mu [b, h, t] over each run of Muon's tokens, and the sum of the unfinished run.

    position [b]: tokens before the first one; phase: its place in the chunk, where it is known.
    Only tokens that step are looked at, and those see a whole run; what was read of it before
    stands in `pending` [b, h].
    """
    period, (b, h, time) = spec.optimizer.period, mu.shape
    if phase is not None and starts is None and lengths is None:
        return _averaged_alike(mu, phase % spec.chunk % period, pending, period)
    place = age_of_tokens(position, time, starts) % spec.chunk % period
    if time == 1 and starts is None and lengths is None:
        return _averaged_token(mu, place, pending, period)
    if lengths is not None:
        mu = mu * valid_tokens(time, lengths)[:, None].to(mu)
    number = (place == 0).long().cumsum(dim=1)[:, None].expand(-1, h, -1)
    begun = mu.new_zeros(b, h, 1) if pending is None else pending[..., None].to(mu)
    sums = F.pad(begun, (0, time)).scatter_add(2, number, mu)
    last = torch.full_like(position, time) if lengths is None else lengths
    at = (last - 1).clamp(min=0)[:, None]
    left = sums.gather(2, number.gather(2, at[:, None].expand(-1, h, -1)))[..., 0]
    done = place.gather(1, at) + 1 == period
    left = torch.where(done, 0.0, left)
    left = torch.where((last == 0)[:, None], begun[..., 0], left)
    return sums.gather(2, number) / period, left


def _averaged_token(
    mu: Tensor, place: Tensor, pending: Tensor | None, period: int
) -> tuple[Tensor, Tensor]:
    """The same of one token a row, at `place` [b, 1] of its run."""
    sums = mu
    if pending is not None:
        sums = torch.where((place == 0)[..., None], mu, mu + pending[..., None].to(mu))
    return sums / period, torch.where(place + 1 == period, 0.0, sums[..., 0])


def _averaged_alike(
    mu: Tensor, place: int, pending: Tensor | None, period: int
) -> tuple[Tensor, Tensor]:
    """The same where all rows stand at one place of a run: sums of equal stretches."""
    time = mu.shape[2]
    rest = -(place + time) % period
    if time == 1:
        sums = mu if pending is None or not place else mu + pending[..., None]
        return sums / period, sums[..., 0] if rest else torch.zeros_like(mu[..., 0])
    laid = F.pad(mu, (place, rest)) if place or rest else mu
    sums = laid.unflatten(2, (-1, period)).sum(dim=3)
    if pending is not None and place:
        sums = torch.cat([sums[..., :1] + pending[..., None], sums[..., 1:]], dim=2)
    left = sums[..., -1] if rest else torch.zeros_like(mu[..., 0])
    means = (sums / period).repeat_interleave(period, dim=2)
    return means[..., place : place + time], left
