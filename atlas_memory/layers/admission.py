"""Admission: which tokens a memory takes in at all, and how large the steps of a run of them are.

A write gate w_t in [0, 1] that is exactly 0 below a threshold multiplies eta, mu and 1 - alpha, and
gamma[t, j] by w_{t-j}: a token that is not admitted leaves the memory bit for bit as it was, and no
later step writes it either. (Under Momentum the momentum of older tokens still runs out.)

Muon steps every `period` tokens. The step is the mean of mu over the tokens since the last one, so
that it does not matter on which of them it falls.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atlas_memory.layers.rows import Lengths, Starts, row_tail, valid_tokens
from atlas_memory.memory import Gates, MemorySpec
from atlas_memory.memory.graphs import as_given
from atlas_memory.memory.layout import age_of_tokens
from atlas_memory.memory.tree import State


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
        wide = torch.promote_types(x.dtype, torch.float32)
        with as_given(x):
            z = F.linear(x.to(wide), self.weight.to(wide), self.bias.to(wide)).transpose(1, 2)
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
