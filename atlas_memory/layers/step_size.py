"""How large a step eta may be so that no input makes the memory diverge.

All gradients of a chunk are taken at one point, so on a repeated token a chunk acts like one step
of size s = sum of its eta. Three facts bound it, for keys, values and queries of length one:

- Linear memory, L2: e <- (1 - s ||phi||^2) e, no growth while s ||phi||^2 <= 1.
- Deep memory, surprise no longer than delta (Huber): along the direction in which W1 and W2 feed
  each other a step multiplies by 1 - s' or by 1 + s', s' = s delta ||phi|| max|gelu'|, as the sign
  of the surprise is; y beyond v turns the sign, and (1 - s')(1 + s') < 1 while s' < sqrt(2).
- Deep memory, dot product: nothing turns the sign, |W| grows by 1 + s'. Only forgetting at the
  same rate bounds it, which `forgetting` asks for.

- Exact output, hidden features of length one at most: e <- (1 - s) e at every token, whatever came
  before, so s <= 1 is the delta rule's own bound, and ||W1|| grows by at most ||v - r|| <= 2 in a
  step. A pair moves a hidden matrix by d with ||d|| < 1, times a step of at most 1/2.

Muon's steps have a fixed length and the weights of Memora and Moneta are normalized: there s only
says how far a memory may travel in a chunk.
"""

import torch
from torch import Tensor

from atlas_memory.memory import MemorySpec

GELU_SLOPE = 1.13  # the largest |gelu'|
STEEPNESS = 8.0  # of W = A / ||A||^(q-2) where A is small; at 1 gradients grew 10x in 100 tokens


def forgetting(spec: MemorySpec) -> bool:
    """Whether a step has to forget as much as it may write: alpha <= 1 - s'."""
    return spec.bias.hebbian and spec.architecture.deep and not spec.materialized


def largest_step(
    spec: MemorySpec, weights: tuple[Tensor, ...], coefficients: Tensor | None
) -> Tensor | None:
    """The bound on eta before its division by window and momentum, one per head [h]; None: 1."""
    if spec.online:
        return None
    heads = weights[0].new_ones(weights[0].shape[0])
    if spec.optimizer.orthogonal:
        return heads * spec.optimizer.period / spec.chunk
    if spec.optimizer.implicit or spec.retention.positive:
        return None
    if spec.bias.hebbian and not spec.architecture.deep:
        return None
    with torch.no_grad():
        energy = spec.features.energy(coefficients)
        return heads / (spec.rhythm * _rate(spec, weights, energy))


def _rate(spec: MemorySpec, weights: tuple[Tensor, ...], energy: Tensor) -> Tensor:
    """s' / s: how fast a unit of step can make the memory move."""
    if spec.retention.steep:
        return STEEPNESS * energy * _curvature(spec, weights, energy)
    if not spec.architecture.deep:
        return energy * _curvature(spec, weights, energy)
    rate = GELU_SLOPE * energy.sqrt()
    if spec.architecture.gated:
        rate = rate * energy.sqrt() * _largest(weights).clamp(min=1.0)
    if spec.bias.longest is not None:
        return rate * spec.bias.longest
    return (
        rate * energy.sqrt() * (1 + _largest(weights).square()) * _curvature(spec, weights, energy)
    )


def _curvature(spec: MemorySpec, weights: tuple[Tensor, ...], energy: Tensor) -> Tensor:
    """The bias' second derivative at the longest error that W_0 can make: (p - 1) |e|^(p - 2)."""
    p = spec.bias.power
    if p <= 2:
        return torch.ones_like(energy)
    reach = _largest(weights) * energy.sqrt()
    error = 2 + (reach if len(weights) == 1 else reach * _largest(weights))
    return (p - 1) * error ** (p - 2)


def _largest(weights: tuple[Tensor, ...]) -> Tensor:
    """The largest singular value of all matrices of a head, [h]."""
    return torch.stack([torch.linalg.matrix_norm(w, ord=2) for w in weights]).amax(dim=0)
