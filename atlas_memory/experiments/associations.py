"""How many pairs a memory holds: rank, least squares, deep fits and one online pass.

Keys and values are standard normal; K, V hold one pair a row. An error is relative and squared,
||M(K) - V||^2 / ||V||^2; recall is the share of pairs whose value is the nearest to the answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import jacrev, vmap
from torch.nn.functional import gelu, normalize

from atlas_memory.memory.architectures import plain
from atlas_memory.memory.feature_maps import Elementwise, Features, Identity, Polynomial
from atlas_memory.memory.memorize import memorize
from atlas_memory.memory.omega import Gates
from atlas_memory.memory.spec import MemorySpec

FEATURES = {"identity": Identity, "polynomial": Polynomial, "elementwise": Elementwise}


def draw(m: int, dk: int, dv: int, *, unit: bool, seed: int) -> tuple[Tensor, Tensor]:
    """K [m, dk] and V [m, dv] in float64; with `unit` the keys have length one."""
    generator = torch.Generator().manual_seed(seed)
    K = torch.randn(m, dk, generator=generator, dtype=torch.float64)
    V = torch.randn(m, dv, generator=generator, dtype=torch.float64)
    return (normalize(K, dim=-1) if unit else K), V


def make_features(name: str, degree: int) -> Features:
    return Identity() if name == "identity" else FEATURES[name](degree)


def lift(K: Tensor, features: Features, *, constant: bool = False) -> Tensor:
    """phi(K), with a column of ones behind it if `constant`."""
    phi = features(K, features.constants(K.shape[-1]))
    return torch.cat([phi, torch.ones_like(K[:, :1])], dim=-1) if constant else phi


def expected_rank(name: str, degree: int, d: int, *, unit: bool, constant: bool = False) -> int:
    """The dimension that phi spans.   [Atlas Prop. 2]

    all monomials       C(d+p, p);  C(d+p-1, p) + C(d+p-2, p-1) on the sphere
    powers x_j^i        p d, and 1 for a constant unless sum_j x_j^2 = 1 already is one
    """
    if name == "identity":
        return d + constant
    if name == "elementwise":
        return degree * d + (constant and not (unit and degree >= 2))
    if not unit:
        return math.comb(d + degree, degree)
    return math.comb(d + degree - 1, degree) + math.comb(d + degree - 2, degree - 1)


def rank(phi: Tensor) -> int:
    return int(torch.linalg.matrix_rank(phi, rtol=1e-10))


def error(answers: Tensor, V: Tensor) -> float:
    return float(((answers - V) ** 2).sum() / (V**2).sum())


def recall(answers: Tensor, V: Tensor) -> float:
    """Share of answers [.., m, dv] that are nearest to their own value."""
    nearest = torch.cdist(answers, V).argmin(dim=-1)
    return float((nearest == torch.arange(V.shape[-2])).double().mean())


def least_squares(phi: Tensor, V: Tensor) -> Tensor:
    """What the best matrix answers; gradient descent from zero tends to it.   [Atlas Prop. 1]

    Differs from the paper: the interpolant is V K^+, which is V K^T for orthonormal keys only.
    """
    return phi @ (torch.linalg.pinv(phi, rtol=1e-10) @ V)


# ---- deep memories: Levenberg-Marquardt, which stops at the parameters and not at its patience --


def matrices(dk: int, dv: int, layers: int, width: int) -> list[tuple[int, int]]:
    """Shapes [out, in] of a network of `layers` matrices; of one matrix the width is unused."""
    sizes = [dk, *[width] * (layers - 1), dv]
    return [(out, inner) for inner, out in pairwise(sizes)]


def num_parameters(shapes: Sequence[tuple[int, int]]) -> int:
    return sum(out * inner for out, inner in shapes)


def network(flat: Tensor, shapes: Sequence[tuple[int, int]], x: Tensor) -> Tensor:
    """W_L s(.. s(W_1 x)), s = GELU, all matrices in one vector."""
    first = 0
    for layer, (out, inner) in enumerate(shapes):
        W = flat[first : first + out * inner].view(out, inner)
        x = (gelu(x) if layer else x) @ W.mT
        first += out * inner
    return x


def fit_deep(K: Tensor, V: Tensor, layers: int, width: int, steps: int, seed: int) -> Tensor:
    """Answers of a deep memory after all pairs were fitted together.   [Atlas Thm. 1]"""
    shapes = matrices(K.shape[-1], V.shape[-1], layers, width)
    generator = torch.Generator().manual_seed(seed)
    W = torch.cat(
        [
            torch.randn(out * inner, generator=generator, dtype=K.dtype) / math.sqrt(inner)
            for out, inner in shapes
        ]
    )
    damping, best = 1.0, error(network(W, shapes, K), V)
    for _ in range(steps):
        step = _damped_step(W, shapes, K, V, damping)
        reached = error(network(W + step, shapes, K), V)
        if reached < best:
            stalled = best - reached < 1e-9 * best
            W, best, damping = W + step, reached, max(damping / 4, 1e-12)
            if best < 1e-10 or stalled:
                break
        else:
            damping *= 5
    return network(W, shapes, K)


def _damped_step(
    W: Tensor, shapes: Sequence[tuple[int, int]], K: Tensor, V: Tensor, damping: float
) -> Tensor:
    """-(J^T J + damping I)^-1 J^T r, on the smaller side of J."""
    one = jacrev(lambda flat, x: network(flat, shapes, x))
    J = vmap(one, in_dims=(None, 0))(W, K).flatten(0, 1)
    r = (network(W, shapes, K) - V).flatten()
    rows, columns = J.shape
    eye = damping * torch.eye(min(rows, columns), dtype=J.dtype)
    if rows < columns:
        return -J.mT @ _solve(J @ J.mT + eye, r)
    return -_solve(J.mT @ J + eye, J.mT @ r)


def _solve(A: Tensor, b: Tensor) -> Tensor:
    factor, failed = torch.linalg.cholesky_ex(A)
    return torch.linalg.solve(A, b) if failed else torch.cholesky_solve(b[:, None], factor)[:, 0]


# ---- one online pass through the engine ----------------------------------------------------------


class Step(NamedTuple):
    """Gates that are the same at every token; hidden: as in `Gates`."""

    eta: float
    theta: float = 0.0
    hidden: float = 0.0


@dataclass(frozen=True)
class Pass:
    """Error and recall of all pairs after one pass, one entry for every step that was tried.
    numbers: how many a head carries on, all of its state."""

    errors: list[float]
    recalls: list[float]
    numbers: int


def online(
    spec: MemorySpec, pairs: Sequence[tuple[Tensor, Tensor]], steps: Sequence[Step], seed: int
) -> Pass:
    """Read every sequence once with every step; then ask for all of its pairs."""
    K, V = as_rows(pairs, len(steps))
    eta, theta, hidden = (
        torch.tensor(steps, dtype=K.dtype).T[:, None, :, None].expand(-1, *K.shape[:-1])
    )
    gates = Gates(
        eta=eta,
        theta=theta if spec.optimizer.momentum else None,
        hidden=hidden if spec.online else None,
    )
    weights = initial_weights(spec, K.shape[-1], V.shape[-1], len(steps), seed)
    _, state = memorize(K, K, V, gates, weights, spec)
    phi = spec.features(K, spec.features.constants(K.shape[-1]))
    answers, _ = spec.architecture.forward([plain(W) for W in state.weights], phi, K)
    return asked(answers, V, state.num_bytes)


def as_rows(pairs: Sequence[tuple[Tensor, Tensor]], heads: int) -> tuple[Tensor, Tensor]:
    """K [sequences, heads, m, dk] and V: sequences are rows and what is tried on all of them are
    heads of one call, so that they run together."""
    K = torch.stack([k for k, _ in pairs])[:, None].expand(-1, heads, -1, -1)
    V = torch.stack([v for _, v in pairs])[:, None].expand(-1, heads, -1, -1)
    return K, V


def asked(answers: Tensor, V: Tensor, num_bytes: int) -> Pass:
    """answers, V [sequences, heads, m, dv], of memories with so many bytes of state in all."""
    finite = torch.nan_to_num(answers, nan=math.inf, posinf=math.inf, neginf=-math.inf)
    sequences, heads = V.shape[:2]
    recalls = [
        sum(recall(a, v) for a, v in zip(answers[:, h], V[:, h], strict=True)) / sequences
        for h in range(heads)
    ]
    errors = [error(finite[:, h], V[:, h]) for h in range(heads)]
    return Pass(errors, recalls, num_bytes // (sequences * heads * V.element_size()))


def initial_weights(
    spec: MemorySpec, dk: int, dv: int, heads: int, seed: int
) -> tuple[Tensor, ...]:
    """The last matrix is zero: an empty memory answers zero. Those on phi are standard normal, so
    that unit keys give hidden units of size one."""
    generator = torch.Generator().manual_seed(seed)
    shapes = spec.architecture.shapes(spec.features.dim(dk), dv)
    return tuple(
        torch.randn(shape, generator=generator, dtype=torch.float64).expand(heads, -1, -1)
        if index in spec.architecture.inputs and len(shapes) > 1
        else torch.zeros(heads, *shape, dtype=torch.float64)
        for index, shape in enumerate(shapes)
    )
