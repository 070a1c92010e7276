"""Rotary position embedding: rotating q and k makes q.k depend on their distance alone."""

import torch
from torch import Tensor


def rotate(x: Tensor, position: Tensor, theta: float) -> Tensor:
    """Rotate the pairs (x_i, x_{i + d/2}) of x [b, t, h, d] by position [b, t] * theta^(-2i/d).

    Angles are taken in float64, so that the millionth position is as exact as the first, and
    the rotation is never done in less than float32.
    """
    half = x.shape[-1] // 2
    exponent = torch.arange(half, device=x.device, dtype=torch.float64) / half
    angle = position[:, :, None, None].double() * theta**-exponent
    wide = torch.promote_types(x.dtype, torch.float32)
    cos, sin = angle.cos().to(wide), angle.sin().to(wide)
    left, right = x.to(wide).chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1).to(x.dtype)
