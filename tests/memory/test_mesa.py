"""The global least-squares memory against the normal equations, solved anew at every token."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import atlas_memory as am
from tests.memory.cases import draw
from tests.memory.grid import matrix


class Pairs(NamedTuple):
    q: Tensor
    k: Tensor
    v: Tensor
    alpha: Tensor

    def cut(self, start: int, end: int | None) -> "Pairs":
        return Pairs(*(x[:, :, start:end] for x in self))


RIDGE = torch.tensor([0.3, 2.0], dtype=torch.float64)


def pairs(t: int, decay: bool = True, seed: int = 0) -> Pairs:
    problem = draw(matrix(retention=am.ScalarRetention()), t, seed=seed)
    alpha = problem.gates.alpha if decay else torch.ones_like(problem.gates.alpha)
    return Pairs(problem.q, problem.k, problem.v, alpha)


def explicit(p: Pairs, ridge: Tensor) -> tuple[Tensor, Tensor]:
    """M_t = (sum zeta v k^T) (sum zeta k k^T + lambda I)^-1, zeta the product of decays."""
    rows, heads, t, _ = p.k.shape
    answers, last = [], []
    for row in range(rows):
        for head in range(heads):
            one = Pairs(*(x[row, head] for x in p))
            fits = [fit(one, ridge[head], now) for now in range(t)]
            answers.append(torch.stack([M @ q for M, q in zip(fits, one.q, strict=True)]))
            last.append(fits[-1])
    grid = (rows, heads)
    return torch.stack(answers).unflatten(0, grid), torch.stack(last).unflatten(0, grid)


def fit(p: Pairs, ridge: Tensor, now: int) -> Tensor:
    left = ridge * torch.eye(p.k.shape[-1]).double()
    right = torch.zeros(p.v.shape[-1], p.k.shape[-1]).double()
    for i in range(now + 1):
        zeta = p.alpha[i + 1 : now + 1].prod()
        left = left + zeta * torch.outer(p.k[i], p.k[i])
        right = right + zeta * torch.outer(p.v[i], p.k[i])
    return torch.linalg.solve(left, right.T).T


@pytest.mark.parametrize("decay", [False, True])
@pytest.mark.parametrize("t", [1, 13, 40])
def test_equals_the_normal_equations(t: int, decay: bool) -> None:
    p = pairs(t, decay)
    y, state = am.mesa(*p, RIDGE)
    expected, M = explicit(p, RIDGE)
    torch.testing.assert_close(y, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(state.weights[0], M, rtol=1e-9, atol=1e-9)


def test_every_cut() -> None:
    p = pairs(13)
    whole, last = am.mesa(*p, RIDGE)
    for cut in range(1, 13):
        left, state = am.mesa(*p.cut(0, cut), RIDGE)
        right, state = am.mesa(*p.cut(cut, None), RIDGE, state)
        torch.testing.assert_close(torch.cat([left, right], 2), whole, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(state.weights[0], last.weights[0], rtol=1e-9, atol=1e-9)


def test_documents_and_lengths() -> None:
    p = pairs(12)
    starts = torch.zeros(2, 12, dtype=torch.bool)
    starts[0, 5] = starts[1, 9] = True
    y, _ = am.mesa(*p, RIDGE, starts=starts)
    for row, border in ((0, 5), (1, 9)):
        for piece in (slice(None, border), slice(border, None)):
            alone, _ = am.mesa(*(x[row : row + 1, :, piece] for x in p), RIDGE)
            torch.testing.assert_close(y[row : row + 1, :, piece], alone, rtol=1e-9, atol=1e-9)
    _, state = am.mesa(*p, RIDGE, lengths=torch.tensor([4, 12]))
    _, short = am.mesa(*p.cut(0, 4), RIDGE)
    torch.testing.assert_close(state.weights[0][0], short.weights[0][0], rtol=1e-9, atol=1e-9)


def test_gradients() -> None:
    p = Pairs(*(x.clone().requires_grad_() for x in pairs(6)))
    ridge = RIDGE.clone().requires_grad_()
    y, _ = am.mesa(*p, ridge)
    expected, _ = explicit(p, ridge)
    for name, a, b in zip(
        (*p._fields, "ridge"),
        torch.autograd.grad(y.sin().sum(), (*p, ridge)),
        torch.autograd.grad(expected.sin().sum(), (*p, ridge)),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7, msg=lambda m, n=name: f"{n}: {m}")


def test_one_key_for_ever_stays_finite() -> None:
    """Directions that no key excites vanish from the sum; their inverse must not explode."""
    k = torch.zeros(1, 2, 2500, 4, dtype=torch.float64)
    k[..., 0] = 1
    alpha = torch.full((1, 2, 2500), 0.5, dtype=torch.float64)
    q = torch.full_like(k, 0.5)
    y, state = am.mesa(q, k, k, alpha, RIDGE)
    assert y.isfinite().all()
    assert state.weights[0].isfinite().all()


def test_shapes_are_checked() -> None:
    p = pairs(5)
    with pytest.raises(ValueError, match=r"alpha.*2, 2, 4.*2, 2, 5"):
        am.mesa(p.q, p.k, p.v, p.alpha[:, :, :4], RIDGE)
    with pytest.raises(ValueError, match=r"ridge.*1\.0, 1\.0, 1\.0.*2"):
        am.mesa(*p, torch.ones(3, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"2, 2, 4, 4"):
        am.mesa(p.q, p.k[:, :, :4], p.v, p.alpha, RIDGE)
