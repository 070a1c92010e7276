"""The chunkwise form must equal the recurrent one and the oracle: outputs, state and gradients."""

import random
from dataclasses import replace
from functools import partial

import pytest
import torch

import atlas_memory as am
from atlas_memory.memory import graphs
from tests.memory.cases import Sizes, assert_same, describe, draw, oracle, package, run
from tests.memory.grid import (
    ALL,
    ARCHITECTURES,
    BEFORE,
    BIASES,
    CHUNK_WINDOW,
    EXTRA,
    FEATURES,
    FEW,
    GRID,
    KERNELS,
    ONLINE,
    OPTIMIZERS,
    RETENTIONS,
    SLOW,
    STOPPED,
    matrix,
)

ALL_FEATURES = (*FEATURES, am.Exponential(), am.Exponential(normalize=False))
ALL_OPTIMIZERS = (*OPTIMIZERS, am.Implicit())
ALL_RETENTIONS = (*RETENTIONS, am.ChannelRetention(), BEFORE)

# Every fourth row of the grid goes long; four offsets so that each length meets its own rows.
LONG = [(spec, 64) for spec in GRID[0::4]]
# A cubic surprise that vanishes and is then orthogonalized is chaos after a hundred tokens.
LONG += [(spec, 40 if isinstance(spec.bias, am.Lp) else 150) for spec in GRID[2::8]]
LONG += [(spec, 64) for spec in EXTRA[0::2]] + [(spec, 150) for spec in EXTRA[1::2]]
LONG += [(spec, 64) for spec in STOPPED[0::2]]
LONG += [(spec, 64) for spec in ONLINE[0::7]]
# Newton-Schulz at every token doubles rounding errors every few tokens.
LONG += [(spec, 40 if spec.optimizer == am.Muon(5) else 149) for spec in ONLINE[3::7]]
LONG += [(spec, 64) for spec in KERNELS[0::2]] + [(spec, 150) for spec in KERNELS[1::3]]


@pytest.mark.parametrize("spec", [*ALL, *SLOW], ids=describe)
def test_chunkwise_equals_oracle(spec: am.MemorySpec) -> None:
    problem = draw(spec, 9 if spec.online else 13, seed=1)
    assert_same(run(problem, spec, "chunkwise"), run(problem, spec, "oracle"))


@pytest.mark.parametrize("spec", FEW, ids=describe)
def test_one_token(spec: am.MemorySpec) -> None:
    problem = draw(spec, 1, seed=2)
    expected = run(problem, spec, "oracle")
    assert_same(run(problem, spec, "chunkwise"), expected)
    assert_same(run(problem, spec, "recurrent"), expected)


@pytest.mark.parametrize(
    ("spec", "t"), LONG, ids=lambda x: x if isinstance(x, int) else describe(x)
)
def test_chunkwise_equals_recurrent(spec: am.MemorySpec, t: int) -> None:
    problem = draw(spec, t, seed=3)
    assert_same(run(problem, spec, "chunkwise"), run(problem, spec, "recurrent"))


@pytest.mark.parametrize("spec", FEW, ids=describe)
def test_gates_at_their_ends(spec: am.MemorySpec) -> None:
    """alpha = 0 forgets all, theta = 0 stops the momentum, eta = gamma = 0 write nothing: exact."""
    problem = draw(spec, 11, seed=6)
    generator = torch.Generator().manual_seed(7)

    def shut(gate: torch.Tensor) -> torch.Tensor:
        return gate * (torch.rand(gate.shape, generator=generator) > 0.3)

    skip = ("alpha",) if spec.retention.mapped else ()
    gates = {n: shut(gate) for n, gate in problem.gates.named().items() if n not in skip}
    problem = replace(problem, gates=replace(problem.gates, **gates))
    expected = run(problem, spec, "oracle")
    for form in ("recurrent", "chunkwise"):
        assert_same(run(problem, spec, form), expected)


def test_any_combination_works_or_is_refused() -> None:
    """A sample of the whole product of choices; what can be built must run, and run right."""
    pick = random.Random(0)
    built = 0
    for n in range(250):
        chunk, window = pick.choice(CHUNK_WINDOW)
        choices = (pick.choice(ARCHITECTURES), pick.choice(BIASES), pick.choice(ALL_OPTIMIZERS))
        try:
            spec = am.MemorySpec(
                pick.choice(ALL_FEATURES), *choices, pick.choice(ALL_RETENTIONS), window, chunk
            )
        except ValueError as error:
            assert "does not go with" in str(error)  # noqa: PT017
            continue
        built += 1
        problem = draw(spec, 6, Sizes(rows=1, heads=1), seed=n)
        expected = oracle(problem, spec).y.detach()
        for form in ("recurrent", "chunkwise"):
            y, _ = package(problem, spec, form)
            close = torch.allclose(y, expected, rtol=1e-9, atol=1e-9)
            assert close, f"{form} {describe(spec)}: {(y - expected).abs().max()}"
    assert built > 80


@pytest.mark.parametrize("form", ["chunkwise", "recurrent"])
def test_coefficients_of_every_head(form: str) -> None:
    """a_i [h, p + 1]: each head alone with its own."""
    spec = matrix(features=am.Polynomial(2), architecture=am.MLP(2), chunk=4, window=2)
    p = draw(spec, 9)
    own = torch.stack([p.coefficients, p.coefficients.flip(0)])
    y, _ = package(replace(p, coefficients=own), spec, form)
    for h in range(2):
        one = p.each(lambda x, h=h: x[:, h : h + 1])
        weights = tuple(w[h : h + 1] for w in p.weights)
        alone, _ = package(replace(one, weights=weights, coefficients=own[h]), spec, form)
        torch.testing.assert_close(y[:, h : h + 1], alone, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("spec", [GRID[2], GRID[21], EXTRA[0], KERNELS[2]], ids=describe)
def test_autocast_does_not_reach_the_memory(spec: am.MemorySpec) -> None:
    problem = draw(spec, 20).each(torch.Tensor.float)
    problem = replace(problem, weights=tuple(w.float() for w in problem.weights))
    expected, _ = package(problem, spec, "chunkwise")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, state = package(problem, spec, "chunkwise")
    torch.testing.assert_close(y, expected, rtol=0, atol=0)
    assert {w.dtype for w in state.weights} == {torch.float32}


@pytest.mark.parametrize("spec", [GRID[2], GRID[21], EXTRA[0], KERNELS[2]], ids=describe)
@pytest.mark.parametrize("form", ["chunkwise", "recurrent"])
def test_inference_needs_no_graph(spec: am.MemorySpec, form: str) -> None:
    problem, _ = draw(spec, 20).leaves()
    expected, _ = package(problem, spec, form)
    with torch.inference_mode():
        y, state = package(problem, spec, form)
        assert not any(w.requires_grad for w in state.weights)
    torch.testing.assert_close(y, expected.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("spec", [GRID[5], EXTRA[0], EXTRA[5], KERNELS[2]], ids=describe)
@pytest.mark.parametrize("form", ["chunkwise", "recurrent"])
def test_gradient_equals_finite_differences(spec: am.MemorySpec, form: str) -> None:
    """Guards the one thing that autograd in both the oracle and the package could share."""
    problem, leaf = draw(spec, 5, seed=4).leaves()
    weight = torch.linspace(-1, 1, problem.v.numel(), dtype=torch.float64).view_as(problem.v)

    def loss() -> torch.Tensor:
        return (package(problem, spec, form)[0] * weight).sum()

    gradients = torch.autograd.grad(loss(), list(leaf.values()))
    generator = torch.Generator().manual_seed(5)
    for (name, x), gradient in zip(leaf.items(), gradients, strict=True):
        direction = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        sides = []
        for sign in (1e-5, -1e-5):
            with torch.no_grad():
                x += sign * direction
                sides.append(loss())
                x -= sign * direction
        slope = (sides[0] - sides[1]) / 2e-5
        torch.testing.assert_close(
            (gradient * direction).sum(),
            slope,
            rtol=1e-6,
            atol=1e-7,
            msg=lambda m, n=name: f"{n} {m}",
        )


EXACT = {"retention": am.ScalarRetention(), "chunk": 8, "output": "online", "window": 2}
COMPILED = [
    am.MemorySpec(architecture=am.MLP(2), optimizer=am.Momentum(), window=3, chunk=8),
    am.MemorySpec(architecture=am.MLP(2, normalize=True), **EXACT),
    am.MemorySpec(architecture=am.MLP(2, normalize=True), optimizer=am.Muon(period=8), **EXACT),
]


def _run_compiled(spec: am.MemorySpec, products: str) -> tuple[list[torch.Tensor], ...]:
    """Eager and compiled: the output, the state and gradients; in double unless factors are
    rounded, for kernels and torch add up in another order.
    """
    torch.manual_seed(0)
    q, k = (torch.nn.functional.normalize(torch.randn(1, 2, 21, 4), dim=-1) for _ in range(2))
    weights = (torch.randn(2, 4, 8), torch.randn(2, 8, 4))
    dtype = torch.float64 if products == "float32" else torch.float32
    given = (q, k, torch.randn(1, 2, 21, 4), *weights)
    leaves = [x.to(dtype).requires_grad_() for x in given]
    alpha, eta = (torch.rand(1, 2, 21, dtype=dtype) for _ in range(2))
    gates = am.Gates(alpha=alpha, eta=eta / 5)

    def run() -> list[torch.Tensor]:
        y, state = am.memorize(*leaves[:3], gates, tuple(leaves[3:]), spec, products=products)
        return [y, *state.weights, *torch.autograd.grad(y.cos().sum(), leaves)]

    eager = run()
    am.compile_chunks()
    try:
        return eager, run()
    finally:
        am.compile_chunks(False)


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler itself
@pytest.mark.parametrize("spec", COMPILED, ids=describe)
def test_compiled_chunks_equal_eager_ones(spec: am.MemorySpec) -> None:
    for theirs, ours in zip(*_run_compiled(spec, "float32"), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler itself
@pytest.mark.parametrize(
    ("spec", "products"),
    list(zip(COMPILED, ("float32", "bfloat16", "float32"), strict=True)),
)
def test_a_chunk_is_one_graph(spec, products, monkeypatch) -> None:
    """Traced as a whole, for no function of ours may end a graph or be traced again and again."""
    whole = partial(torch.compile, backend="eager", fullgraph=True)
    monkeypatch.setattr(torch, "compile", whole)
    graphs._compiled.cache_clear()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    try:
        eager, compiled = _run_compiled(spec, products)
    finally:
        graphs._compiled.cache_clear()
    rough, fine = {"rtol": 0.05, "atol": 0.05}, {"rtol": 1e-9, "atol": 1e-11}
    for theirs, ours in zip(eager, compiled, strict=True):
        torch.testing.assert_close(ours, theirs, **(rough if products == "bfloat16" else fine))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 3  # whole chunks, the rest
