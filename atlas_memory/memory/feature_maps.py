"""Feature maps phi of keys and queries: how much a memory can hold.   [Atlas Sec. 3.1]"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement, pairwise
from math import comb, factorial, sqrt

import torch
from torch import Tensor


class FeatureMap:
    """A map R^dk -> R^D; `constants` is what it multiplies with: learned, or random.

    kernel: D is infinite, and a memory keeps pairs instead of the matrices that act on phi.
    tables: it needs lists of monomials, which a compiler would write out in every graph.
    """

    learned = False
    kernel = False
    tables = False
    normalize = False

    def dim(self, dk: int) -> int:
        return dk

    def constants(self, dk: int) -> Tensor | None:
        return None

    def per_row(self, constants: Tensor | None, rows: int) -> Tensor | None:
        """Those per head [h, ..] as often as rows b * h have them; those of all heads broadcast."""
        shared = self.constants(1)
        if constants is None or shared is None or constants.dim() == shared.dim():
            return constants
        return constants.repeat(rows // len(constants), *(1,) * shared.dim())

    def energy(self, constants: Tensor | None) -> Tensor:
        """The largest ||phi(k)||^2 of a key of length one: a scalar, or one per head."""
        return torch.ones(())

    def __call__(self, x: Tensor, constants: Tensor | None) -> Tensor:
        return x


@dataclass(frozen=True)
class Identity(FeatureMap):
    """phi(x) = x."""


@dataclass(frozen=True)
class _Monomials:
    """All monomials of degree <= p, by degree. steps: for every degree from 2 on the monomial one
    degree lower and the variable it is multiplied with. degrees, weights [D]: the degree of each,
    and the square root of its multinomial.
    """

    steps: tuple[tuple[Tensor, Tensor], ...]
    degrees: Tensor
    weights: Tensor


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _monomials(dk: int, degree: int) -> _Monomials:
    """Kept for later calls: ordinary tensors on the CPU, wherever the first call comes from."""
    names = [list(combinations_with_replacement(range(dk), i)) for i in range(degree + 1)]
    flat = [name for group in names for name in group]
    steps = []
    for lower, group in pairwise(names[1:]):
        rows = {name: row for row, name in enumerate(lower)}
        parents = _column([rows[name[:-1]] for name in group])
        steps.append((parents, _column([name[-1] for name in group])))
    counts = [factorial(len(name)) / _repeats(name) for name in flat]
    degrees = _column([len(name) for name in flat])
    return _Monomials(tuple(steps), degrees, _column(counts).sqrt())


def _column(values: Sequence[float]) -> Tensor:
    dtype = torch.float64 if isinstance(values[0], float) else torch.long
    return torch.tensor(values, dtype=dtype, device="cpu")


def _repeats(name: tuple[int, ...]) -> int:
    """beta! of the exponent vector beta that a sorted tuple of variables stands for."""
    product = 1
    for variable in set(name):
        product *= factorial(name.count(variable))
    return product


def _pick(x: Tensor, columns: Tensor) -> Tensor:
    return x.index_select(-1, columns.to(x.device))


def _require_degree(degree: int) -> None:
    if degree < 1:
        raise ValueError(f"degree={degree}: a polynomial feature map needs a degree of at least 1")


@dataclass(frozen=True)
class Polynomial(FeatureMap):
    """All monomials of degree <= p, weighted so that the kernel is exact.   [Atlas Eq. 4, 5]

        phi(q) . phi(k) = sum_{i=0..p} a_i (q . k)^i

    a_i > 0, 1/i! unless `constants` says otherwise; D = binomial(dk + p, p).
    """

    degree: int = 2
    learned = True
    tables = True

    def __post_init__(self) -> None:
        _require_degree(self.degree)

    def dim(self, dk: int) -> int:
        return comb(dk + self.degree, self.degree)

    def constants(self, dk: int) -> Tensor | None:
        return torch.tensor([1 / factorial(i) for i in range(self.degree + 1)], dtype=torch.float64)

    def energy(self, constants: Tensor | None) -> Tensor:
        assert constants is not None
        return constants.sum(dim=-1)

    def __call__(self, x: Tensor, constants: Tensor | None) -> Tensor:
        assert constants is not None
        table = _monomials(x.shape[-1], self.degree)
        powers = [torch.ones_like(x[..., :1]), x]
        for parent, last in table.steps:
            powers.append(_pick(powers[-1], parent) * _pick(x, last))
        scale = _pick(constants.sqrt(), table.degrees) * table.weights.to(x)
        return torch.cat(powers, dim=-1) * scale[..., None, :]


@dataclass(frozen=True)
class Elementwise(FeatureMap):
    """Powers of every coordinate: phi(x) = (sqrt(a_1) x, sqrt(a_2) x^2, ..), D = p dk.

    The cheap stand-in for Polynomial: phi(q) . phi(k) = sum_i a_i sum_j (q_j k_j)^i.
    """

    degree: int = 2
    learned = True

    def __post_init__(self) -> None:
        _require_degree(self.degree)

    def dim(self, dk: int) -> int:
        return self.degree * dk

    def constants(self, dk: int) -> Tensor | None:
        return Polynomial(self.degree).constants(dk)

    def energy(self, constants: Tensor | None) -> Tensor:
        assert constants is not None
        return constants[..., 1:].sum(dim=-1)

    def __call__(self, x: Tensor, constants: Tensor | None) -> Tensor:
        assert constants is not None
        scales, power, powers = constants.sqrt()[..., None, None], x, []
        for i in range(1, self.degree + 1):
            powers.append(power * scales[..., i, :, :])
            power = power * x if i < self.degree else power
        return torch.cat(powers, dim=-1)


@dataclass(frozen=True)
class Sketch(FeatureMap):
    """Random sketch of the polynomial kernel, never negative.   [PolySketchFormer]

        s(x) = prod_{m=1..p/2} (G_m x) / sqrt(size)     phi(x) = s(x) (x) s(x)
        phi(q) . phi(k) = (s(q) . s(k))^2 ~ (q . k)^p

    G [p/2, size, dk] are standard normal; D = size (size + 1) / 2, the symmetric half of s (x) s.
    Differs from PolySketchFormer: one product of p/2 projections, not a tree of sketches.
    """

    degree: int = 2
    size: int = 16
    seed: int = 0
    tables = True

    def __post_init__(self) -> None:
        if self.degree < 2 or self.degree % 2:
            raise ValueError(
                f"degree={self.degree}: Sketch squares a sketch, it needs an even degree"
            )
        if self.size < 1:
            raise ValueError(f"size={self.size}: Sketch needs at least one random direction")

    def dim(self, dk: int) -> int:
        return self.size * (self.size + 1) // 2

    def constants(self, dk: int) -> Tensor | None:
        generator = torch.Generator().manual_seed(self.seed)
        shape = (self.degree // 2, self.size, dk)
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def energy(self, constants: Tensor | None) -> Tensor:
        assert constants is not None
        norms = torch.linalg.matrix_norm(constants, ord=2).square().prod()
        return (norms / self.size).square()

    def __call__(self, x: Tensor, constants: Tensor | None) -> Tensor:
        assert constants is not None
        s = (x[..., None, :, :] @ constants.mT).prod(dim=-3) / sqrt(self.size)
        table = _monomials(self.size, 2)
        ((parent, last),) = table.steps
        return _pick(s, parent) * _pick(s, last) * table.weights[1 + self.size :].to(x)


@dataclass(frozen=True)
class Exponential(FeatureMap):
    """phi*(x) = (1, x, x (x) x / sqrt(2!), ..), infinite, never truncated.   [Atlas Eq. 22]

    The first matrix of the memory becomes a kernel expansion; see `kernel.py`. The matrix that
    `weights` holds for it acts on x itself, so D = dk.
    """

    normalize: bool = True
    kernel = True


Features = Identity | Polynomial | Elementwise | Sketch | Exponential

FEATURE_MAPS: dict[str, Callable[..., Features]] = {
    "identity": Identity,
    "polynomial": Polynomial,
    "elementwise": Elementwise,
    "sketch": Sketch,
    "exponential": Exponential,
}
