"""Inputs in a memory's own regime, and one way to run and compare its three implementations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

import atlas_memory as am
from tests import online_oracle, oracles

OUTPUT = 1e-9
GRADIENT = 1e-7


@dataclass(frozen=True)
class Problem:
    """Everything `memorize` takes; sliced in time by `cut`, turned into leaves by `leaves`."""

    q: Tensor
    k: Tensor
    v: Tensor
    gates: am.Gates
    weights: tuple[Tensor, ...]
    coefficients: Tensor | None = None

    def cut(self, start: int, end: int | None = None) -> Problem:
        return self.each(lambda x: x[:, :, start:end])

    def rows(self, *rows: int) -> Problem:
        """These rows of the batch, for weights that all rows share."""
        return self.each(lambda x: x[list(rows)])

    def each(self, f: Callable[[Tensor], Tensor]) -> Problem:
        """f of every tensor that has a row and a time axis."""
        gates = {name: gate for name, gate in self.gates.named().items() if gate.ndim > 1}
        changed = replace(self.gates, **{name: f(gate) for name, gate in gates.items()})
        return replace(self, q=f(self.q), k=f(self.k), v=f(self.v), gates=changed)

    def leaves(self) -> tuple[Problem, dict[str, Tensor]]:
        """A copy whose tensors all ask for gradients, and those tensors by name."""
        named = {"q": self.q, "k": self.k, "v": self.v, **self.gates.named()}
        named |= {f"weight {j}": w for j, w in enumerate(self.weights)}
        if self.coefficients is not None:
            named["coefficients"] = self.coefficients
        leaf = {name: x.detach().clone().requires_grad_() for name, x in named.items()}
        gates = replace(self.gates, **{name: leaf[name] for name in self.gates.named()})
        weights = tuple(leaf[f"weight {j}"] for j in range(len(self.weights)))
        qkv = leaf["q"], leaf["k"], leaf["v"]
        return Problem(*qkv, gates, weights, leaf.get("coefficients")), leaf


@dataclass(frozen=True)
class Sizes:
    rows: int = 2
    heads: int = 2
    dk: int = 4
    dv: int = 4


def draw(
    spec: am.MemorySpec,
    t: int,
    sizes: Sizes | None = None,
    seed: int = 0,
    own_weights: bool = False,
) -> Problem:
    """Unit keys and queries, steps that a stale chunk can bear, every gate given."""
    s = sizes or Sizes()
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)

    grid = (s.rows, s.heads, t)
    gamma = uniform(0, 1, *grid, spec.window)
    theta = uniform(0.3, 0.9, *grid)
    width = spec.features.dim(s.dk)
    kind = type(spec.retention).__name__
    eta = uniform(0.1, 0.3, *grid) / (1 + gamma.sum(-1)) / max(1, spec.chunk / s.dk)
    # Orthogonal steps do not shrink near the answer: large ones make the inner loop chaotic.
    eta = eta / 8 if isinstance(spec.optimizer, am.Muon) else eta
    # Moneta's W grows like |A|^(3-q): for q > 3 a decay of A makes W larger, without bound.
    low = 0.998 if kind == "LqRetention" else 0.9
    alpha_shape = {"NoRetention": None, "FixedRetention": (s.heads,)}.get(kind, grid)
    if kind == "ChannelRetention":
        alpha_shape = (*grid, width)
    gates = am.Gates(
        alpha=None if alpha_shape is None else uniform(low, 1.0, *alpha_shape),
        eta=eta,
        theta=None if type(spec.optimizer).__name__ in ("GradientDescent", "Implicit") else theta,
        gamma=None if type(spec.optimizer).__name__ == "Implicit" else gamma,
    )
    if spec.online:  # exact steps bear more, and the hidden matrices have their own
        eta = uniform(0.1, 0.9, *grid) / (1 + gamma.sum(-1))
        gates = replace(gates, eta=eta, hidden=uniform(0.02, 0.2, *grid))
    lead = (s.rows, s.heads) if own_weights else (s.heads,)
    weights = tuple(normal(*lead, *shape) / shape[1] ** 0.5 for shape in shapes(spec, s, width))
    if kind == "SoftmaxRetention":
        weights = tuple(w.abs() + 0.1 for w in weights)
    coefficients = None
    if isinstance(spec.features, am.Polynomial):
        coefficients = uniform(0.5, 1.5, spec.features.degree + 1)
    q, k = (normalize(normal(*grid, s.dk), dim=-1) for _ in range(2))
    return Problem(q, k, normal(*grid, s.dv) / s.dv**0.5, gates, weights, coefficients)


def shapes(spec: am.MemorySpec, s: Sizes, width: int) -> list[tuple[int, int]]:
    if isinstance(spec.architecture, am.Matrix):
        return [(s.dv, width)]
    hidden = spec.architecture.expansion * s.dv
    inner = 1 if isinstance(spec.architecture, am.MLP) else 2
    return [(s.dv, hidden)] + [(hidden, width)] * inner


# ---- the three implementations ----------------------------------------------------------------


def package(problem: Problem, spec: am.MemorySpec, form: str, **more: Any) -> Any:
    p = problem
    extra = {} if p.coefficients is None else {"coefficients": p.coefficients}
    return am.memorize(p.q, p.k, p.v, p.gates, p.weights, spec, form=form, **extra, **more)


def oracle(problem: Problem, spec: am.MemorySpec) -> oracles.Result:
    p = problem
    phi = features_for_oracle(spec, p.q.shape[-1], p.coefficients)
    memorize = online_oracle.memorize if spec.output == "online" else oracles.memorize
    return memorize(p.q, p.k, p.v, p.gates, p.weights, spec, phi)


def features_for_oracle(spec: am.MemorySpec, dk: int, coefficients: Tensor | None) -> Any:
    """The oracle's own monomials; for random or coordinate-wise maps, the package's."""
    features = spec.features
    if isinstance(features, am.Identity | am.Exponential):
        return None

    def theirs(x: Tensor) -> Tensor:
        return features(x[None], features.constants(dk))[0]

    if isinstance(features, am.Polynomial):
        return oracles.polynomial(features.degree, dk, theirs, coefficients)
    return theirs


def run(problem: Problem, spec: am.MemorySpec, how: str) -> dict[str, Tensor]:
    """y, final weights, final momentum, and the gradient of a random function of them all."""
    problem, leaf = problem.leaves()
    if how == "oracle":
        result = oracle(problem, spec)
        found = results(spec, result.y, result.weights, result.momentum)
    else:
        y, state = package(problem, spec, how)
        found = results(spec, y, state.weights, state.momentum)
    generator = torch.Generator().manual_seed(1)
    loss = torch.zeros((), dtype=torch.float64)
    for value in found.values():
        loss = loss + (value * torch.randn(value.shape, generator=generator).double()).sum()
    gradients = torch.autograd.grad(loss, list(leaf.values()), allow_unused=True)
    for (name, x), gradient in zip(leaf.items(), gradients, strict=True):
        found[f"gradient of {name}"] = torch.zeros_like(x) if gradient is None else gradient
    return found


def results(spec: am.MemorySpec, y: Tensor, weights: Any, momentum: Any) -> dict[str, Tensor]:
    found = {"y": y} | {f"final weight {j}": w for j, w in enumerate(weights)}
    if has_momentum(spec):
        found |= {f"final momentum {j}": s for j, s in enumerate(momentum)}
    return found


def has_momentum(spec: am.MemorySpec) -> bool:
    """Whether the state's momentum is a matrix per weight: phi* keeps its own in kernel form."""
    plain = not isinstance(spec.features, am.Exponential)
    return plain and isinstance(spec.optimizer, am.Momentum | am.Muon)


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert value.isfinite().all(), f"{name} is not finite in the reference"
        tolerance = GRADIENT if name.startswith("gradient") else OUTPUT
        torch.testing.assert_close(
            found[name],
            value,
            rtol=tolerance,
            atol=tolerance,
            msg=lambda text, name=name: f"{name}: {text}",
        )


def describe(spec: am.MemorySpec) -> str:
    """A short test id."""
    choices = (spec.features, spec.architecture, spec.bias, spec.optimizer, spec.retention)
    stopped = "-stopped" if spec.stop_gradient else ""
    stopped += "-online" if spec.output == "online" else ""
    return "-".join(map(short, choices)) + f"-b{spec.chunk}-c{spec.window}{stopped}"


def short(choice: object) -> str:
    fields = ",".join(str(x) for x in vars(choice).values() if not isinstance(x, tuple))
    return f"{type(choice).__name__}({fields})" if fields else type(choice).__name__


def inverse_factorials(degree: int) -> Tensor:
    return torch.tensor([1 / math.factorial(i) for i in range(degree + 1)], dtype=torch.float64)
