"""The global least-squares memory: c = infinity, solved exactly at every token.   [Atlas Eq. 7, 14]

    M_t = argmin_M sum_{i <= t} zeta_{t,i} ||M k_i - v_i||^2 + lambda ||M||^2

with zeta_{t,i} = alpha_t .. alpha_{i+1}: the Mesa layer.   [von Oswald et al. 2023]
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class MesaState:
    """G = sum zeta v k^T [b, h, dv, dk], R = (sum zeta k k^T + Lambda)^-1 [b, h, dk, dk]."""

    G: Tensor
    R: Tensor

    @property
    def num_bytes(self) -> int:
        return sum(x.numel() * x.element_size() for x in (self.G, self.R))

    @property
    def weights(self) -> tuple[Tensor]:
        return (self.G @ self.R,)

    def detach(self) -> "MesaState":
        return MesaState(self.G.detach(), self.R.detach())

    def to(self, device: torch.device | str) -> "MesaState":
        return MesaState(self.G.to(device), self.R.to(device))

    def select(self, rows: Tensor) -> "MesaState":
        return MesaState(self.G[rows], self.R[rows])


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
) -> tuple[Tensor, MesaState]:
    """Answer q_t with M_t q_t, M_t the least-squares fit of all pairs up to t.

    q, k [b, h, t, dk], v [b, h, t, dv], alpha [b, h, t] in (0, 1], ridge [h] > 0 (lambda).
    The inverse follows each pair by Sherman-Morrison:
        R <- R / alpha;  R <- R - (R k)(R k)^T / (1 + k . R k)
    so the ridge decays with the pairs, as in the recursive form of the Mesa layer.
    """
    _check(q, k, v, alpha, ridge)
    dtype = torch.promote_types(k.dtype, torch.float32)
    with torch.autocast(q.device.type, enabled=False):
        fresh = _fresh(k.to(dtype), v.to(dtype), ridge.to(dtype))
        now = fresh if state is None else state
        outputs = []
        for t in range(k.shape[2]):
            if starts is not None:
                now = _where(starts[:, t], fresh, now)
            read = _read(now, k[:, :, t].to(dtype), v[:, :, t].to(dtype), alpha[:, :, t].to(dtype))
            now = read if lengths is None else _where(t < lengths, read, now)
            answer = read.G @ (read.R @ q[:, :, t, :, None].to(dtype))
            outputs.append(answer[..., 0])
        y = torch.stack(outputs, dim=2) if outputs else v.to(dtype)
        return y.to(v.dtype), now


def _check(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, ridge: Tensor) -> None:
    if q.shape != k.shape or v.shape[:3] != k.shape[:3]:
        shapes = f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
        raise ValueError(f"{shapes}: mesa needs q, k [b, h, t, dk] and v [b, h, t, dv]")
    if alpha.shape != k.shape[:3]:
        raise ValueError(f"alpha {list(alpha.shape)}: mesa needs [b, h, t] = {list(k.shape[:3])}")
    if ridge.shape != k.shape[1:2]:
        raise ValueError(f"ridge {list(ridge.shape)}: mesa needs one per head, [{k.shape[1]}]")


def _fresh(k: Tensor, v: Tensor, ridge: Tensor) -> MesaState:
    b, h, _, dk = k.shape
    eye = torch.eye(dk, dtype=k.dtype, device=k.device)
    R = (eye / ridge[:, None, None]).expand(b, h, dk, dk)
    return MesaState(k.new_zeros(b, h, v.shape[-1], dk), R)


def _read(now: MesaState, k: Tensor, v: Tensor, alpha: Tensor) -> MesaState:
    decay = alpha[..., None, None]
    G = decay * now.G + v[..., :, None] * k[..., None, :]
    R = now.R / decay
    Rk = R @ k[..., None]
    R = R - Rk @ Rk.mT / (1 + (k[..., None, :] @ Rk))
    return MesaState(G, (R + R.mT) / 2)


def _where(rows: Tensor, yes: MesaState, no: MesaState) -> MesaState:
    pick = rows[:, None, None, None]
    return MesaState(torch.where(pick, yes.G, no.G), torch.where(pick, yes.R, no.R))
