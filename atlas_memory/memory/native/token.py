"""A token of a memory with exact output as one kernel: `online_token.py` without gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from atlas_memory.memory.architectures import MLP
from atlas_memory.memory.feature_maps import Elementwise
from atlas_memory.memory.learner import Learner, features
from atlas_memory.memory.native.library import call, served, side_by_side as beside

if TYPE_CHECKING:
    from atlas_memory.memory.spec import MemorySpec
    from atlas_memory.memory.tree import Tensors


def reads_token(spec: MemorySpec, given: Tensors) -> bool:
    """Whether the kernel is for such a memory and these tensors."""
    architecture = spec.architecture
    fits = isinstance(architecture, MLP) and architecture.normalize and not spec.bias.hebbian
    return fits and not torch.is_grad_enabled() and served(given)


def read_token(
    spec: MemorySpec,
    qkv: tuple[Tensor, Tensor, Tensor],
    gates: tuple[Tensor, ...],
    now: Learner,
    first: Tensor,
    opens: Tensor | bool,
    constants: Tensor | None,
) -> tuple[Tensor, Learner]:
    """y and what is known behind the token, before a step of Muon's.

    keys and values are those of the window; gates: alpha, eta, theta, mu [b, h, 1] and gamma; now:
    with H_start of this token's chunk; first: the first hidden matrix; opens: where it begins.
    """
    q, keys, values = (beside(x) for x in qkv)
    *scalars, gamma = gates
    degree, (x, asked), scales = _asked(spec, keys, q, constants)
    (W,), (H,), (start,) = now.W, now.H, now.H_start
    (b, h, c, dk), (dv, n), D = keys.shape, W.shape[2:], H.shape[3]
    heavy, optimizer = spec.optimizer.heavy, spec.optimizer
    kind = 1 if heavy else 2 if optimizer.orthogonal else 0
    S, R = (*now.S, W)[0], (*now.R, H)[0]  # where there is none, any stands for it
    recent = now.d[0] if now.d else W
    y, to_W, to_H = q.new_empty(b, h, 1, dv), _like(W), _like(H)
    to_S, to_R = (_like(S) if heavy else to_W), (_like(R) if kind else to_H)
    kept = W.new_empty(b, h, c - 1, n)
    sizes = (
        h,
        c,
        dk,
        D,
        n,
        dv,
        degree,
        spec.architecture.residual,
        spec.retention.forgets,
        kind,
        opens is True,
    )
    matrices = (beside(m) for m in (W, S, start, H, R, first, recent))
    call(
        "token",
        sizes,
        *(*scalars, scales, _by_row(opens, q)),
        *(gamma, keys, values, q, x, asked, *matrices),
        *(y, to_W, to_S, to_H, to_R, kept),
    )
    S_after, R_after = (to_S,) if heavy else (), (to_R,) if kind else ()
    return y, Learner((to_W,), S_after, (to_H,), R_after, (start,), (kept,) if now.d else ())


def _asked(
    spec: MemorySpec, keys: Tensor, q: Tensor, constants: Tensor | None
) -> tuple[int, tuple[Tensor, Tensor], Tensor | None]:
    """The degree of powers that the kernel takes itself, of what it does, and their scales."""
    if isinstance(spec.features, Elementwise):
        assert constants is not None
        scales = constants.sqrt()[..., 1:].expand(q.shape[1], -1)[None]
        return spec.features.degree, (keys, q), beside(scales)
    phi_k, phi_q = features(spec, keys, q, constants)
    return 0, (beside(phi_k), beside(phi_q)), None


def _like(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _by_row(opens: Tensor | bool, like: Tensor) -> Tensor | None:
    """[b, 1, 1], 0 or 1, where rows differ."""
    return opens.to(like.dtype)[:, None, None] if isinstance(opens, Tensor) else None
