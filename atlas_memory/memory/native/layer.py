"""What a layer does around its memory, as kernels: norms, and a token's convolution and gates."""

from __future__ import annotations

import torch
from torch import Tensor

from atlas_memory.memory.native.library import call, served, side_by_side as beside


def reads(*given: Tensor) -> bool:
    """Whether kernels are for these tensors: no backward pass belongs to them."""
    return not torch.is_grad_enabled() and served(given)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    n = x.shape[-1]
    rows = beside(x.reshape(-1, 1, n))
    y = x.new_empty(rows.shape)
    call("rms_norm", (n, eps), rows, y, beside(weight))
    return y.view(x.shape)


def mixed_token(
    parts: tuple[Tensor, Tensor, Tensor], tail: Tensor, taps: Tensor, d: int
) -> tuple[Tensor, Tensor]:
    """q, k and v [b, 1, dim] behind `tail` [b, 3, 3 dim]: [b, 1, 3 dim] in heads of d, the tail."""
    dim = parts[0].shape[2]
    y, last = tail.new_empty(len(tail), 1, 3 * dim), tail.new_empty(tail.shape)
    given = (beside(x) for x in (*parts, tail))
    call("mixed_token", (dim, d), *given, beside(taps)[None], last, y)
    return y, last


def gates_token(
    logits: Tensor,
    bound: Tensor | None,
    hidden_bound: float,
    heads: int,
    widths: dict[str, int],
    heavy: bool,
) -> Tensor:
    """Gates in the place of their logits [b, 1, total]; bound [h]: of eta."""
    own = [widths.get(name, 0) for name in ("alpha", "theta", "gamma", "hidden")]
    limit = None if bound is None else beside(bound)[None, None]
    call("gates_token", (heads, *own, heavy, hidden_bound), logits, limit)
    return logits
