"""The Omega rule: a step looks at a window of pairs, each through its own gate.   [Atlas Eq. 8, 9]

    g_t = sum_{i = max(0, t-c+1) .. t} gamma[t, t-i] u_i

and what a whole chunk of such steps adds up to. With D_a[t, n] = a_t a_{t-1} .. a_{n+1},

    S_t = Theta_t S' + sum_i P[t, i] u_i         P = D_theta (-eta Gamma)   [Atlas Eq. 38, 39]
    W_t = A_t W' + B_t S' + sum_i C[t, i] u_i    C = D_alpha P, B = D_alpha Theta
"""

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from atlas_memory.memory.graphs import OwnBackward, count, table
from atlas_memory.memory.tree import State


@dataclass(frozen=True, repr=False)
class Gates(State):
    """What the outer network tells the memory at every token. None means 1 (theta: 0).
    alpha and theta are decays, 0 or more.

    alpha [b, h, t] ([h] for FixedRetention, [b, h, t, D] for ChannelRetention), eta [b, h, t],
    theta [b, h, t], gamma [b, h, t, c]: gamma[t, j] gates token t - j in step t. hidden [b, h, t]:
    the step mu of the hidden matrices where the output matrix is written exactly; None means eta.
    Those of one token have no t.
    """

    alpha: Tensor | None = None
    eta: Tensor | None = None
    theta: Tensor | None = None
    gamma: Tensor | None = None
    hidden: Tensor | None = None

    def complete(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """All but `hidden`, after `memorize` has filled in what was None."""
        alpha, eta, theta, gamma = self.alpha, self.eta, self.theta, self.gamma
        assert alpha is not None and eta is not None and theta is not None and gamma is not None
        return alpha, eta, theta, gamma

    def named(self) -> dict[str, Tensor]:
        """Those that are there, by name."""
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: gate for name, gate in given.items() if gate is not None}


def mask_young(gamma: Tensor, age: Tensor) -> Tensor:
    """Close the gates of pairs before the first token: age [.., t] tokens precede token t."""
    window = gamma.shape[-1]
    if window == 1:
        return gamma
    return gamma * (age[..., None] >= count(window, gamma.device))


def band(gamma: Tensor) -> Tensor:
    """Gates [.., m, c] as a banded matrix [.., m, m + c - 1]: pair t - j in column t + c - 1 - j.

    Every row is padded by m and the rows are read one element shorter: each moves right by one.
    """
    m, window = gamma.shape[-2:]
    rows = pad(gamma.flip(-1), (0, m)).flatten(-2)
    return rows[..., : m * (m + window - 1)].unflatten(-1, (m, m + window - 1))


class _Logarithm(OwnBackward):
    """log, with zeros lifted to 1e-30 and their gradient kept: products over them stay exact."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor) -> Tensor:
        lifted = gate.clamp(min=1e-30)
        ctx.save_for_backward(lifted)
        return lifted.log()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, w: Tensor) -> Tensor:
        (lifted,) = ctx.saved_tensors
        return w / lifted


def _logarithm(gate: Tensor) -> Tensor:
    logs: Tensor = _Logarithm.run(gate)
    return logs


def decay(gate: Tensor) -> Tensor:
    """D[.., t, n] = gate_t .. gate_{n+1} for n <= t, else 0. gate [.., m] -> [.., m, m].

    Segment sums are added up directly instead of subtracting two long sums, which loses digits.
    """
    after, until = _triangles(gate.shape[-1], gate.dtype, gate.device)
    return (_logarithm(gate)[..., :, None] * after).cumsum(dim=-2).exp() * until


@table
def _triangles(m: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """1 where n < t, and where n <= t."""
    until = torch.ones(m, m, dtype=dtype, device=device).tril()
    return until.tril(-1), until


def decays(gate: Tensor) -> tuple[Tensor, Tensor]:
    """`decay`, and gate_t .. gate_0 [.., m]: what is left of the chunk's start at each token."""
    D = decay(gate)
    return D, D[..., 0] * gate[..., :1]
