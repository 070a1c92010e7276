"""Root-mean-square normalization."""

import torch
from torch import Tensor, nn

from atlas_memory.memory.graphs import scalar


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
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True) * wide.shape[-1] ** -0.5
    normal = wide / torch.hypot(length, scalar(eps**0.5, wide.dtype, wide.device))
    return normal.to(x.dtype) * weight.to(x.dtype)
