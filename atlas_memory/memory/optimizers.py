"""Inner optimizers: how the gradient of the window changes the memory.

`step` is one token of the recurrent form. The chunkwise forms read off the same recurrences what a
whole chunk adds up to (`omega.py`, `chunkwise.py`, `per_token.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from atlas_memory.memory.newton_schulz import KELLER, newton_schulz


class InnerOptimizer:
    """What the engine and the layers ask of an optimizer, besides `step`.

    momentum: it carries S. heavy: S holds the steps already taken, and W moves by S itself.
    orthogonal: a step is no sum of pairs, so the matrices are made at every token that steps.
    implicit: the step has a closed form of its own, for which `memorize` shortens eta.
    period: tokens r, 2r, .. of a chunk step.
    """

    momentum = False
    heavy = False
    orthogonal = False
    implicit = False
    period = 1

    @property
    def stepping(self) -> slice:
        """The tokens of a chunk that take the step."""
        return slice(self.period - 1, None, self.period)

    def orthogonalize(self, S: Tensor) -> Tensor:
        """The direction of a step whose gradients add up to S."""
        return S

    def products(self, out: int, into: int) -> int:
        """Multiply-adds of `orthogonalize` for one matrix."""
        return 0


@dataclass(frozen=True)
class TokenGates:
    """The gates of one token, shaped to multiply matrices; `steps` is Muon's period mask."""

    alpha: Tensor
    eta: Tensor
    theta: Tensor
    steps: Tensor


@dataclass(frozen=True)
class GradientDescent(InnerOptimizer):
    """W_t = alpha_t W_{t-1} - eta_t g_t.   [Atlas Eq. 19, 50]"""

    def step(self, L: Tensor, S: Tensor, g: Tensor, gates: TokenGates) -> tuple[Tensor, Tensor]:
        return gates.alpha * L - gates.eta * g, S


@dataclass(frozen=True)
class Implicit(InnerOptimizer):
    """The proximal step on one pair of a linear memory.   [Longhorn]

        W_t = alpha_t W_{t-1} - delta_t (W_{t-1} k - v) k^T,  delta_t = eta_t / (1 + eta_t k . k)

    `memorize` turns eta into delta; what is left is gradient descent.
    """

    implicit = True

    def step(self, L: Tensor, S: Tensor, g: Tensor, gates: TokenGates) -> tuple[Tensor, Tensor]:
        return GradientDescent().step(L, S, g, gates)


@dataclass(frozen=True)
class Momentum(InnerOptimizer):
    """S_t = theta_t S_{t-1} - eta_t g_t,  W_t = alpha_t W_{t-1} + S_t.   [Atlas Eq. 12, 13]"""

    momentum = True
    heavy = True

    def step(self, L: Tensor, S: Tensor, g: Tensor, gates: TokenGates) -> tuple[Tensor, Tensor]:
        S = gates.theta * S - gates.eta * g
        return gates.alpha * L + S, S


@dataclass(frozen=True)
class Muon(InnerOptimizer):
    """S_t = theta_t S_{t-1} + g_t,  W_t = alpha_t W_{t-1} - eta_t NS_k(S_t).   [Atlas Eq. 32, 33]

    Tokens r, 2r, .. of a chunk (r = period) take the step, the others only decay; S advances at
    every token. Differs from the paper's appendix: eta stays outside Newton-Schulz, which would
    swallow it.   [Atlas Eq. 57, 58]
    """

    steps: int = 5
    period: int = 1
    coefficients: tuple[float, float, float] = KELLER
    momentum = True
    orthogonal = True

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError(f"steps={self.steps}: Muon needs 0 or more Newton-Schulz steps")
        if self.period < 1:
            raise ValueError(f"period={self.period}: Muon steps every period >= 1 tokens")
        if len(self.coefficients) != 3:
            raise ValueError(
                f"coefficients={self.coefficients}: Newton-Schulz needs three, (a, b, c)"
            )
        object.__setattr__(self, "coefficients", tuple(self.coefficients))

    def orthogonalize(self, S: Tensor) -> Tensor:
        return newton_schulz(S, self.steps, self.coefficients)

    def products(self, out: int, into: int) -> int:
        """Gram matrix, (4k - 3) products of it, and one with the matrix itself."""
        m, n = sorted((out, into))
        return 2 * m * m * n + max(0, 4 * self.steps - 3) * m**3

    def step(self, L: Tensor, S: Tensor, g: Tensor, gates: TokenGates) -> tuple[Tensor, Tensor]:
        S = gates.theta * S + g
        return gates.alpha * L - gates.steps * gates.eta * self.orthogonalize(S), S


Optimizer = GradientDescent | Momentum | Muon | Implicit

OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "gradient_descent": GradientDescent,
    "momentum": Momentum,
    "muon": Muon,
    "implicit": Implicit,
}
