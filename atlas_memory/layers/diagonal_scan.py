"""The diagonal recurrence h_t = a_t * h_{t-1} + b_t along time, forwards and backwards.

It is one operator, so that a compiler sees one node and not one per token, and its backward is
the same recurrence run from the end.
"""

from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("atlas_memory::diagonal_scan", mutates_args=())
def diagonal_scan(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    """All states h_1 .. h_t, [b, t, ...] like a and b, from the state h [b, ...] before them."""
    states = torch.empty_like(b)
    for a_t, b_t, state in zip(a.unbind(1), b.unbind(1), states.unbind(1), strict=True):
        h = torch.addcmul(b_t, a_t, h, out=state)
    return states


@diagonal_scan.register_fake
def _(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    return torch.empty_like(b)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    a, _, h = inputs
    ctx.save_for_backward(a, h, output)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """g_t = dl/dh_t + a_{t+1} g_{t+1}, then dl/db = g and dl/da_t = g_t h_{t-1}."""
    a, h, states = ctx.saved_tensors
    later = torch.cat([a[:, 1:], torch.zeros_like(a[:, :1])], dim=1)
    g = diagonal_scan(later.flip(1), gradient.flip(1), torch.zeros_like(h)).flip(1)
    before = torch.cat([h[:, None], states[:, :-1]], dim=1)
    return g * before, g, a[:, 0] * g[:, 0]


torch.library.register_autograd("atlas_memory::diagonal_scan", _backward, setup_context=_save)
