"""Mamba: transformers' own mixer, driven by an exact recurrence that can be carried."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import MambaConfig
from transformers.models.mamba.modeling_mamba import MambaMixer

from atlas_memory.layers.projections import ConvState, short_convolution
from atlas_memory.layers.rows import Lengths, Starts, valid_tokens
from atlas_memory.memory.tree import State


@dataclass(frozen=True, repr=False)
class MambaState(State):
    """The hidden state [b, inner, n] and the convolution's last inputs."""

    hidden: Tensor
    conv: ConvState


class Mamba(nn.Module):
    """A selective state space: h_t = exp(dt_t A) h_{t-1} + dt_t B_t x_t, y_t = C_t . h_t + D x_t.

    transformers' forward always starts from an empty hidden state, so a text cut in two would be
    two texts: its parameters are used, and the recurrence is our own.
    """

    def __init__(self, dim: int, *, state_size: int = 16, expand: int = 2, conv: int = 4) -> None:
        super().__init__()
        config = MambaConfig(
            hidden_size=dim,
            state_size=state_size,
            expand=expand,
            conv_kernel=conv,
            num_hidden_layers=1,
        )
        self.mixer = MambaMixer(config, layer_idx=0)

    def reset_parameters(self) -> None:
        """A = -1 .. -n, D = 1, time steps between 0.001 and 0.1, evenly in their logarithm."""
        self.mixer.init_mamba_weights()

    def forward(
        self,
        x: Tensor,  # [b, t, dim]
        state: MambaState | None = None,
        *,
        starts: Starts | None = None,
        lengths: Lengths | None = None,
    ) -> tuple[Tensor, MambaState]:
        mixer = self.mixer
        inner, gate = mixer.in_proj(x).chunk(2, dim=2)
        older = None if state is None else state.conv
        taps, bias = mixer.conv1d.weight[:, 0].flip(1), mixer.conv1d.bias
        assert bias is not None
        inner, conv = short_convolution(inner, taps, older, starts, lengths)
        inner = F.silu(inner + bias)
        decay, write, read = self._discretize(inner)
        if starts is not None:
            decay = decay * ~starts[:, :, None, None]
        if lengths is not None:
            valid = valid_tokens(x.shape[1], lengths)[:, :, None, None]
            decay, write = torch.where(valid, decay, 1.0), write * valid
        hidden = write.new_zeros(write[:, 0].shape) if state is None else state.hidden
        states = diagonal_scan(decay, write, hidden.to(write.dtype))
        y = (states @ read)[..., 0].to(inner.dtype) + inner * mixer.D.to(inner.dtype)
        return mixer.out_proj(y * F.silu(gate)), MambaState(states[:, -1].clone(), conv)

    def _discretize(self, inner: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """exp(dt A) and dt B x, [b, t, inner, n], and C [b, t, n, 1], never below float32."""
        mixer, wide = self.mixer, torch.promote_types(inner.dtype, torch.float32)
        n = mixer.ssm_state_size
        step, B, C = mixer.x_proj(inner).split([mixer.time_step_rank, n, n], dim=2)
        dt = F.softplus(mixer.dt_proj(step)).to(wide)[..., None]
        decay = torch.exp(dt * -mixer.A_log.to(wide).exp())
        write = dt * B.to(wide)[:, :, None] * inner.to(wide)[..., None]
        return decay, write, C.to(wide)[:, :, :, None]


@torch.library.custom_op("atlas_memory::diagonal_scan", mutates_args=())
def diagonal_scan(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
    """All states h_t = a_t * h_{t-1} + b_t, [b, t, ...] like a and b, from h [b, ...] before them.

    It is one operator, so that a compiler sees one node and not one per token, and its backward is
    the same recurrence run from the end.
    """
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
