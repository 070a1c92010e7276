"""Matrix memories as plain recurrences, and the comparison of the package with one."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import atlas_memory as am
from tests.memory.cases import Problem, package

FORMS = pytest.mark.parametrize("form", ["recurrent", "chunkwise"])
T = 150
LINEAR = am.DotProduct()


def outer(a: Tensor, b: Tensor) -> Tensor:
    return a[..., :, None] * b[..., None, :]


def wide(gate: Tensor) -> Tensor:
    return gate[..., None, None]


def recurrence(p: Problem, step: Callable[[Tensor, int], Tensor]) -> tuple[Tensor, Tensor]:
    """M_t = step(M_{t-1}, t), y_t = M_t q_t, from the given first matrix."""
    M, y = p.weights[0].expand(*p.q.shape[:2], -1, -1), []
    for t in range(p.q.shape[2]):
        M = step(M, t)
        y.append((M @ p.q[:, :, t, :, None])[..., 0])
    return torch.stack(y, 2), M


def agree(
    p: Problem, spec: am.MemorySpec, form: str, step: Callable[[Tensor, int], Tensor]
) -> None:
    y, state = package(p, spec, form)
    expected, M = recurrence(p, step)
    torch.testing.assert_close(y, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(state.weights[0], M, rtol=1e-9, atol=1e-9)


def tokens(p: Problem) -> list[tuple[Tensor, Tensor]]:
    return list(zip(p.k.unbind(2), p.v.unbind(2), strict=True))


def erase(M: Tensor, k: Tensor, beta: Tensor) -> Tensor:
    """M (I - beta k k^T)"""
    return M - wide(beta) * outer((M @ k[..., None])[..., 0], k)
