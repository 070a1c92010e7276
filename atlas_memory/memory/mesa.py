"""The global least-squares memory: c = infinity, solved exactly at every token.   [Atlas Eq. 7, 14]

    M_t = argmin_M sum_{i <= t} zeta_{t,i} ||M k_i - v_i||^2 + lambda ||M||^2
        = G_t (H_t + lambda I)^-1,   zeta_{t,i} = alpha_t .. alpha_{i+1}

the Mesa layer [von Oswald et al. 2023]. The recursive inverse (Sherman-Morrison on R = H^-1) is the
same for alpha = 1; with alpha < 1 it lets lambda decay with the pairs and R overflows in
directions that no key excites. So H is carried, and y_t = G_t x with (H_t + lambda I) x = q_t.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from atlas_memory.memory.graphs import as_given, untraced
from atlas_memory.memory.omega import decays
from atlas_memory.memory.tree import State

BLOCK = 32


@dataclass(frozen=True, repr=False)
class MesaState(State):
    """G = sum zeta v k^T [b, h, dv, dk], H = sum zeta k k^T [b, h, dk, dk], ridge [h]."""

    shared = ("ridge",)

    G: Tensor
    H: Tensor
    ridge: Tensor

    @property
    def num_bytes(self) -> int:
        return self.G.nbytes + self.H.nbytes

    @property
    def weights(self) -> tuple[Tensor]:
        """M_t [b, h, dv, dk]."""
        return (torch.linalg.solve(self.H + _ridge(self.ridge, self.H), self.G, left=False),)


@untraced
def mesa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    alpha: Tensor,
    ridge: Tensor,
    state: MesaState | None = None,
    *,
    starts: Tensor | None = None,
    lengths: Tensor | None = None,
    check: bool = True,
) -> tuple[Tensor, MesaState]:
    """Answer q_t with M_t q_t, M_t the least-squares fit of all pairs up to t.

    q, k [b, h, t, dk], v [b, h, t, dv], alpha [b, h, t] in [0, 1], ridge [h] > 0 (lambda).
    starts, lengths, check: as in `memorize`.
    """
    if check:
        _check(q, k, v, alpha, ridge)
    dtype = torch.promote_types(k.dtype, torch.float32)
    with as_given(q):
        q, k, values, alpha = (x.to(dtype) for x in (q, k, v, alpha))
        if starts is not None:  # a fresh memory forgets everything before its first token
            alpha = alpha * ~starts[:, None]
        if lengths is not None:
            there = (torch.arange(k.shape[2], device=k.device) < lengths[:, None])[:, None]
            alpha = torch.where(there, alpha, 1.0)
            k = k * there[..., None]
        (b, h, _, dk), dv = k.shape, v.shape[-1]
        ridge = ridge.to(dtype)
        if state is None:
            state = MesaState(k.new_zeros(b, h, dv, dk), k.new_zeros(b, h, dk, dk), ridge)
        now = MesaState(state.G, state.H, ridge)
        parts = (x.split(BLOCK, dim=2) for x in (q, k, values, alpha))
        outputs = []
        for block in zip(*parts, strict=True):
            y, now = _read(now, *block)
            outputs.append(y)
        return torch.cat([values[:, :, :0], *outputs], dim=2).to(v.dtype), now


def _read(
    now: MesaState, q: Tensor, k: Tensor, v: Tensor, alpha: Tensor
) -> tuple[Tensor, MesaState]:
    """A block of tokens: H_t for all of them at once, then one solve each."""
    D, A = decays(alpha)
    outer = (k[..., :, None] * k[..., None, :]).flatten(-2)
    H = A[..., None, None] * now.H[:, :, None] + (D @ outer).unflatten(-1, (k.shape[-1],) * 2)
    x = torch.linalg.solve(H + _ridge(now.ridge, H), q[..., None])[..., 0]
    y = A[..., None] * (x @ now.G.mT) + (D * (x @ k.mT)) @ v
    last = D[:, :, -1, :, None]
    G = A[:, :, -1, None, None] * now.G + v.mT @ (last * k)
    return y, MesaState(G, H[:, :, -1], now.ridge)


def _ridge(ridge: Tensor, H: Tensor) -> Tensor:
    eye = torch.eye(H.shape[-1], dtype=H.dtype, device=H.device)
    return ridge.view(-1, *(1,) * (H.dim() - 2)) * eye


def _check(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, ridge: Tensor) -> None:
    if q.shape != k.shape or v.shape[:3] != k.shape[:3]:
        shapes = f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
        raise ValueError(f"{shapes}: mesa needs q, k [b, h, t, dk] and v [b, h, t, dv]")
    if alpha.shape != k.shape[:3]:
        raise ValueError(f"alpha {list(alpha.shape)}: mesa needs [b, h, t] = {list(k.shape[:3])}")
    if ridge.shape != k.shape[1:2] or bool((ridge <= 0).any()):
        raise ValueError(f"ridge {ridge.tolist()}: mesa needs one > 0 per head of {k.shape[1]}")
