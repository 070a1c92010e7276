"""Mamba-2: a linear memory with one decay per head, in Mamba-2's own layer.

    M_t = exp(dt_t A) M_{t-1} + dt_t x_t B_t^T,   y_t = M_t C_t + D x_t

is the dot-product row of the table with k = B, q = C, v = dt x and alpha = exp(dt A).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Mamba2Config
from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

from atlas_memory.layers.projections import ConvState, rms_norm, short_convolution
from atlas_memory.layers.rows import Lengths, Starts
from atlas_memory.memory import (
    DotProduct,
    Gates,
    Identity,
    Matrix,
    MemorySpec,
    MemoryState,
    ScalarRetention,
    memorize,
)
from atlas_memory.memory.tree import State

MAMBA2 = MemorySpec(
    features=Identity(),
    architecture=Matrix(),
    bias=DotProduct(),
    retention=ScalarRetention(),
)


@dataclass(frozen=True, repr=False)
class Mamba2State(State):
    memory: MemoryState
    conv: ConvState


class Mamba2(nn.Module):
    """transformers' parameters and projections around our memory; B and C are shared by heads."""

    def __init__(
        self, dim: int, heads: int, *, state_size: int = 64, expand: int = 2, conv: int = 4
    ) -> None:
        super().__init__()
        if expand * dim % heads:
            raise ValueError(
                f"Mamba-2 splits its width into heads, got {expand} x {dim} and {heads} heads"
            )
        config = Mamba2Config(
            hidden_size=dim,
            num_heads=heads,
            head_dim=expand * dim // heads,
            state_size=state_size,
            expand=expand,
            conv_kernel=conv,
            n_groups=1,
            num_hidden_layers=1,
        )
        self.heads, self.state_size = heads, state_size
        self.mixer = Mamba2Mixer(config, layer_idx=0)

    def reset_parameters(self) -> None:
        """A = -1 .. -heads, D = 1, time steps between 0.001 and 0.1, evenly in their logarithm."""
        self.mixer.init_mamba2_weights()
        nn.init.ones_(self.mixer.norm.weight)

    def forward(
        self,
        x: Tensor,  # [b, t, dim]
        state: Mamba2State | None = None,
        *,
        starts: Starts | None = None,
        lengths: Lengths | None = None,
    ) -> tuple[Tensor, Mamba2State]:
        mixer, inner, n = self.mixer, self.mixer.intermediate_size, self.state_size
        projected = mixer.in_proj(x)
        gate, mixed, step = torch.split(projected, [inner, inner + 2 * n, self.heads], dim=2)
        taps, bias = mixer.conv1d.weight[:, 0].flip(1), mixer.conv1d.bias
        assert bias is not None
        older = None if state is None else state.conv
        mixed, conv = short_convolution(mixed, taps, older, starts, lengths)
        value, B, C = torch.split(F.silu(mixed + bias), [inner, n, n], dim=2)
        past = None if state is None else state.memory
        y, memory = self._memorize(value, B, C, step, past, starts, lengths)
        gated = y * F.silu(gate.to(y.dtype))
        y = rms_norm(gated, mixer.norm.weight, mixer.norm.variance_epsilon).to(x.dtype)
        return mixer.out_proj(y), Mamba2State(memory, conv)

    def _memorize(
        self,
        value: Tensor,
        B: Tensor,
        C: Tensor,
        step: Tensor,
        past: MemoryState | None,
        starts: Tensor | None,
        lengths: Tensor | None,
    ) -> tuple[Tensor, MemoryState]:
        """The recurrence on x [b, t, inner], B and C [b, t, n], in float32 or more."""
        mixer, wide = self.mixer, torch.promote_types(value.dtype, torch.float32)
        dt = F.softplus(step.to(wide) + mixer.dt_bias.to(wide)).transpose(1, 2)
        alpha = torch.exp(dt * -mixer.A_log.to(wide).exp()[:, None])
        v = torch.unflatten(value.to(wide), 2, (self.heads, -1)).transpose(1, 2)
        k, q = (z.to(wide)[:, None].expand(-1, self.heads, -1, -1) for z in (B, C))
        empty = v.new_zeros(self.heads, v.shape[-1], self.state_size)
        gates = Gates(alpha=alpha)
        y, memory = memorize(
            *(q, k, v * dt[..., None], gates, (empty,), MAMBA2, past),
            starts=starts,
            lengths=lengths,
            check=False,
        )
        y = y + v * mixer.D.to(wide)[:, None, None]
        return y.transpose(1, 2).flatten(2), memory
