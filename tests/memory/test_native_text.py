"""Kernels that read a whole text, and those of its parts, against torch's operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import atlas_memory as am
from atlas_memory.memory import chunkwise, linear, optimizers, products
from atlas_memory.memory.native import functions, library, texts
from atlas_memory.memory.precision import Rounding
from tests.memory.cases import Problem, Sizes, describe, draw, package

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason="there are no kernels here")

CHUNK, TOKENS = 8, (3, 8, 21, 24)
SIZES = Sizes(rows=2, heads=2, dk=5, dv=5), Sizes(rows=1, heads=3, dk=20, dv=20)


def spec(optimizer: object, window: int, **choices: object) -> am.MemorySpec:
    given = {"features": am.Identity(), "architecture": am.MLP(3, normalize=True)}
    more = {"optimizer": optimizer, "window": window, "chunk": CHUNK, "output": "online"}
    return am.MemorySpec(**(given | more | choices))


EXACT = [
    spec(optimizer, window)
    for optimizer in (am.GradientDescent(), am.Momentum(), am.Muon(3, CHUNK), am.Muon(3, 3))
    for window in (1, 2, 4)
] + [
    spec(am.Muon(5, 2), 2, architecture=am.MLP(1, residual=False, normalize=True)),
    spec(am.Muon(0, 4), 2, retention=am.NoRetention()),
    spec(am.Momentum(), 5, retention=am.NoRetention()),
    spec(am.GradientDescent(), 11, features=am.Elementwise(2)),
    spec(am.GradientDescent(), 2, retention=am.FixedRetention()),
]
FROM_THE_START = [
    spec(optimizer, window, architecture=am.MLP(3), output="chunk")
    for optimizer in (am.GradientDescent(), am.Momentum())
    for window in (1, 2, 11)
] + [
    spec(am.Momentum(), 2, architecture=am.MLP(1, residual=False), output="chunk"),
    spec(am.Momentum(), 3, architecture=am.MLP(2), output="chunk", retention=am.NoRetention()),
    spec(am.Momentum(), 2, architecture=am.MLP(2), output="chunk", features=am.Elementwise(2)),
]

STEP_BY_STEP = [
    spec(am.Muon(5, period), window, architecture=architecture, output="chunk", chunk=16)
    for architecture in (am.MLP(1), am.MLP(3))  # square, and one side more than twice the other
    for window in (1, 5)
    for period in (1, 2, 3)
] + [
    spec(am.Muon(0, 1), 2, architecture=am.MLP(2), output="chunk", chunk=16),
    spec(am.Muon(1, 1), 2, architecture=am.MLP(4, residual=False), output="chunk", chunk=5),
    spec(am.Muon(5, 1), 2, architecture=am.GatedMLP(2), output="chunk", chunk=5),
    spec(am.Muon(5, 2), 1, architecture=am.Matrix(), output="chunk", chunk=9),
    spec(am.Muon(3, 1), 2, output="chunk", chunk=5, retention=am.NoRetention()),
    spec(am.Muon(3, 1), 2, output="chunk", chunk=5, retention=am.FixedRetention()),
]


def off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_found", dict.fromkeys(library.NAMES, "torch is asked"))


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    call: Callable[..., None] = functions.call
    for room in (functions, texts):
        monkeypatch.setattr(
            room, "call", lambda name, *given: (names.append(name), call(name, *given))
        )
    return names


def read(problem: Problem, one: am.MemorySpec, tokens: int, **more: Any) -> list[Tensor]:
    """Answers and all that is known behind a text in two parts, and gradients of them all."""
    problem, leaves = problem.leaves()
    first, state = package(problem.cut(0, tokens), one, "chunkwise", **more)
    rest, end = package(problem.cut(tokens), one, "chunkwise", state=state)
    known = [*state.start, *state.start_momentum, *state.hidden, *state.recent]
    made = [first, rest, *known, *end.weights]
    total = sum(x.cos().sum() for x in made)
    asked = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    return [*made, *(x for x in asked if x is not None)]


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("one", EXACT + FROM_THE_START, ids=describe)
def test_texts_and_gradients(
    one: am.MemorySpec, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for sizes in SIZES:
        problem, names = draw(one, tokens + 5, sizes), counted(monkeypatch)
        found = read(problem, one, tokens)
        kind = "online" if one.online else "deep"
        assert {f"{kind}_forward", f"{kind}_backward"} <= set(names)
        with monkeypatch.context() as without:
            off(without)
            expected = read(problem, one, tokens)
        alike(found, expected)


def alike(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert theirs.isfinite().all()
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("tokens", [3, 16, 37])
@pytest.mark.parametrize("one", STEP_BY_STEP, ids=describe)
def test_matrices_of_every_token(
    one: am.MemorySpec, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for sizes in SIZES:
        problem = draw(one, tokens + 5, sizes, own_weights=True)
        with monkeypatch.context() as watched:
            names = counted(watched)
            found = read(problem, one, tokens)
            assert {"muon_forward", "muon_backward"} <= set(names)
        with monkeypatch.context() as without:
            off(without)
            alike(found, read(problem, one, tokens))


@pytest.mark.parametrize(
    "sizes", [Sizes(1, 2, 3, 20), Sizes(1, 2, 20, 3), Sizes(1, 2, 20, 13), Sizes(1, 2, 1, 5)]
)
def test_matrices_of_every_token_of_any_shape(
    sizes: Sizes, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = spec(am.Muon(5, 2), 3, architecture=am.Matrix(), output="chunk", chunk=9)
    problem = draw(one, 31, sizes)
    found = read(problem, one, 21)
    off(monkeypatch)
    alike(found, read(problem, one, 21))


@pytest.mark.parametrize("one", [STEP_BY_STEP[7], STEP_BY_STEP[11]], ids=describe)
def test_matrices_of_every_token_of_rows_that_differ(
    one: am.MemorySpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = draw(one, 50, SIZES[0])
    starts = torch.zeros(2, 45, dtype=torch.bool)
    starts[0, 20] = starts[1, 0] = starts[1, 33] = True
    for more in ({"lengths": torch.tensor([45, 30])}, {"starts": starts}):
        found = read(problem, one, 45, **more)
        with monkeypatch.context() as without:
            off(without)
            alike(found, read(problem, one, 45, **more))


def test_chunks_that_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of a step is given up where a long text would leave too much of it."""
    one = STEP_BY_STEP[9]
    problem = draw(one, 45, SIZES[1])
    found, names = read(problem, one, 40), counted(monkeypatch)
    monkeypatch.setattr(chunkwise, "KEPT_BYTES", 0)
    assert all(map(torch.equal, found, read(problem, one, 40)))
    assert names.count("muon_forward") == 2 * names.count("muon_backward")


@pytest.mark.parametrize(
    "one", [EXACT[0], EXACT[7], FROM_THE_START[4], STEP_BY_STEP[9]], ids=describe
)
@torch.no_grad()
def test_without_gradients_nothing_else_is_read(one: am.MemorySpec) -> None:
    problem = draw(one, 45, SIZES[1])
    y, state = package(problem, one, "chunkwise")
    with torch.enable_grad():
        leaf, _ = problem.leaves()
        theirs, other = package(leaf, one, "chunkwise")
    torch.testing.assert_close(y, theirs.detach(), rtol=0, atol=1e-13)
    for ours, kept in zip(state.weights, other.weights, strict=True):
        torch.testing.assert_close(ours, kept.detach(), rtol=0, atol=1e-13)


@pytest.mark.parametrize("one", [EXACT[7], FROM_THE_START[4], STEP_BY_STEP[9]], ids=describe)
def test_threads_share_rows_and_change_no_bit(one: am.MemorySpec) -> None:
    problem = draw(one, 29, SIZES[0])
    found = read(problem, one, 24)
    torch.set_num_threads(3)
    try:
        assert all(map(torch.equal, found, read(problem, one, 24)))
    finally:
        torch.set_num_threads(1)


def test_what_they_are_not_for_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    names = counted(monkeypatch)
    for one in (
        replace(EXACT[4], stop_gradient=True),
        replace(EXACT[4], architecture=am.GatedMLP(2, normalize=True)),
        replace(FROM_THE_START[3], bias=am.Huber()),
    ):
        read(draw(one, 21), one, 16)
    assert not {"online_forward", "deep_forward"} & set(names)


# ---- parts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 2, 3, 4])
@pytest.mark.parametrize("before_gradient", [True, False])
@pytest.mark.parametrize("tokens", [5, 8, 21])
def test_coefficients(
    window: int, before_gradient: bool, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = spec(
        am.GradientDescent(),
        window,
        architecture=am.Matrix(),
        retention=am.ScalarRetention(before_gradient=before_gradient),
        output="chunk",
        chunk=1,
    )
    torch.manual_seed(0)
    gates = [torch.rand(3, tokens, *more, dtype=torch.float64) for more in ((), (), (), (window,))]
    gates[0][:, 3], gates[0][1] = 0, 1  # a gate that is shut has a gradient too

    def made() -> list[Tensor]:
        leaves = [x.clone().requires_grad_() for x in gates]
        found = linear.hoist_exact(one, tuple(leaves), 8, 4)
        torch.manual_seed(1)
        total = sum(
            (x * torch.randn_like(x[:, :tokens])).sum() for x in (y[:, :tokens] for y in found)
        )
        return [*found, *torch.autograd.grad(total, [leaves[i] for i in (0, 1, 3)])]

    names, ours = counted(monkeypatch), made()
    assert names == ["coefficients_forward", "coefficients_backward"]
    off(monkeypatch)
    for x, y in zip(ours, made(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("shape", [(3, 4, 16), (3, 16, 5), (2, 6, 12), (2, 40, 100), (2, 33, 40)])
@pytest.mark.parametrize("of", ["random", "rank one", "zero"])
def test_newton_schulz(shape: tuple[int, ...], of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    g, m, n = shape
    S = torch.randn(g, m, 1, dtype=torch.float64) @ torch.randn(g, 1, n, dtype=torch.float64)
    S = {"random": torch.randn(shape, dtype=torch.float64), "rank one": S, "zero": 0 * S}[of]
    S, weight = S.requires_grad_(), torch.randn(shape, dtype=torch.float64)

    def made() -> tuple[Tensor, Tensor]:
        Y = optimizers.newton_schulz(S, 5)
        return Y, torch.autograd.grad(Y, S, weight)[0]

    ours = made()
    off(monkeypatch)
    for x, y in zip(ours, made(), strict=True):
        assert y.isfinite().all()
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("m", [32, 64])
@pytest.mark.parametrize("turned", [False, True])
def test_newton_schulz_of_few_pairs_in_single_precision(m: int, turned: bool) -> None:
    """What is asked of a pair that was written is a small difference of large numbers: S is next
    to nothing in most directions, where it is made some hundreds of times as long.
    """
    torch.manual_seed(0)
    g, n, pairs = 16, 4 * m, m // 2
    d, x = (torch.randn(g, pairs, size, dtype=torch.float64) for size in (m, n))
    S = (d * 0.7 ** torch.arange(pairs)[:, None]).mT @ x
    weight = torch.randn(g, m, n, dtype=torch.float64)

    def asked(dtype: torch.dtype) -> Tensor:
        laid = S.to(dtype).mT.contiguous().mT if turned else S.to(dtype)
        leaf = laid.requires_grad_()
        Y = optimizers.newton_schulz(leaf, 5)
        (dS,) = torch.autograd.grad(Y, leaf, weight.to(dtype))
        return dS.double() @ x[:, 0, :, None]

    exact = asked(torch.float64)
    assert (asked(torch.float32) - exact).norm() < 0.02 * exact.norm()


# ---- rounded factors -----------------------------------------------------------------------------


def rounded(x: Tensor) -> Tensor:
    return x.bfloat16().float()


@pytest.mark.parametrize("m", [1, 7, 33, 64])
@pytest.mark.parametrize("n", [1, 16, 33, 100])
@pytest.mark.parametrize("k", [1, 8, 31, 64, 600])
def test_rounded_products(m: int, n: int, k: int) -> None:
    torch.manual_seed(0)
    wide, tall = torch.randn(2, m, k + 3), torch.randn(2, n, k)
    for a in (wide[..., :k], wide[..., 3:].contiguous(), wide[..., :k].mT.contiguous().mT):
        for b in (tall.mT, tall.mT.contiguous()):
            expected = (rounded(a).double() @ rounded(b).double()).float()
            with Rounding(True):
                found = functions.product(a, b)
                onto = functions.onto(torch.ones(2, m, n), a, b)
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * k**0.5)
            torch.testing.assert_close(onto - 1, expected, rtol=1e-5, atol=1e-5 * k**0.5)


@pytest.mark.parametrize(
    "one", [EXACT[1], EXACT[4], EXACT[7], FROM_THE_START[4], STEP_BY_STEP[7]], ids=describe
)
def test_a_rounded_text_is_near_the_exact_one(
    one: am.MemorySpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As near as torch's own, whose factors are rounded at the same places."""
    problem = draw(one, 24, SIZES[1])
    gates = problem.gates.map(lambda x: x.float())
    weights = tuple(w.float() for w in problem.weights)
    single = replace(problem.each(lambda x: x.float()), gates=gates, weights=weights)

    def made(products: str) -> list[Any]:
        leaf, leaves = single.leaves()
        y, _ = package(leaf, one, "chunkwise", products=products)
        asked = torch.autograd.grad(y.cos().sum(), list(leaves.values()), allow_unused=True)
        return [y.detach(), *asked]

    def far(found: list[Any]) -> list[float]:
        pairs = [(x, y) for x, y in zip(found, exact, strict=True) if x is not None]
        return [float((x - y).norm() / y.norm()) for x, y in pairs]

    exact = made("float32")
    ours = far(made("bfloat16"))
    off(monkeypatch)
    monkeypatch.setattr(products, "PROCESSOR_ROUNDS", False)  # which would round sums as well
    theirs = far(made("bfloat16"))
    assert max(ours) > 1e-4
    for x, y in zip(ours, theirs, strict=True):
        assert x < 2 * y + 0.01


def test_double_numbers_are_not_rounded_by_kernels() -> None:
    a = torch.randn(1, 4, 4, dtype=torch.float64)
    with Rounding(True):
        assert not library.served((a,))
        assert library.served((a.float(),))
