"""A layer's kernels of one token against torch's operations, which are their definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import atlas_memory as am
from atlas_memory.layers.gates import GateProjections
from atlas_memory.layers.projections import ConvState, Projections, rms_norm
from atlas_memory.memory.native import layer, library

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason="there are no kernels here")

EXACT = {torch.float64: 1e-12, torch.float32: 1e-5}
DEEP = am.MLP(2, normalize=True)
SPECS = {
    "Muon": am.MemorySpec(
        architecture=DEEP, optimizer=am.Muon(period=4), window=3, chunk=8, output="online"
    ),
    "momentum": am.MemorySpec(
        architecture=DEEP, optimizer=am.Momentum(), window=2, chunk=8, output="online"
    ),
    "descent": am.MemorySpec(architecture=DEEP, chunk=8, output="online"),
    "keeps": am.MemorySpec(architecture=DEEP, retention=am.NoRetention(), output="online"),
    "linear": am.MemorySpec(architecture=am.Matrix(), optimizer=am.Momentum(), window=2, chunk=1),
}


def both_ways(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], tuple[Tensor | None, ...]], kernel: str
) -> None:
    """What `make` gives by the kernel is what it gives by torch."""
    names: list[str] = []
    call: Callable[..., Any] = layer.call
    monkeypatch.setattr(layer, "call", lambda name, *rest: (names.append(name), call(name, *rest)))
    with torch.no_grad():
        found = make()
        assert names == [kernel]
        monkeypatch.setattr(library, "_found", dict.fromkeys(library.NAMES, "torch is asked"))
        expected = make()
    assert names == [kernel]
    for got, value in zip(found, expected, strict=True):
        if value is None:
            assert got is None
        else:
            assert got is not None
            exact = EXACT[value.dtype]
            torch.testing.assert_close(got, value, rtol=exact, atol=exact)


@pytest.mark.parametrize("dtype", EXACT, ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 128), (5, 7), (3, 5, 7), (2, 3, 4, 33), (40, 20, 24)])
@pytest.mark.parametrize("turned", [None, (0, 1), (0, -1)])
def test_rms_norm(
    shape: tuple[int, ...],
    turned: tuple[int, int] | None,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.randn(shape, dtype=dtype)
    x = x.transpose(*turned) if turned else x
    weight = torch.rand(x.shape[-1], dtype=dtype)
    both_ways(monkeypatch, lambda: (rms_norm(x, weight, 1e-3),), "rms_norm")


@pytest.mark.parametrize("dtype", EXACT, ids=str)
@pytest.mark.parametrize("heads", [1, 3])
def test_projections(heads: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    dim = 7 * heads
    projections = Projections(dim, heads, "none").to(dtype)
    x, tail = torch.randn(4, 1, dim, dtype=dtype), torch.randn(4, 3, 3 * dim, dtype=dtype)
    before = tail.clone()

    def make() -> tuple[Tensor, ...]:
        qkv, state = projections(x, ConvState(tail), None, None)
        return *qkv, state.tail

    both_ways(monkeypatch, make, "mixed_token")
    assert torch.equal(tail, before)


@pytest.mark.parametrize("dtype", EXACT, ids=str)
@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_gates(
    spec: am.MemorySpec, bounded: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates = GateProjections(12, 3, spec).to(dtype)
    torch.nn.init.normal_(gates.weight)
    bound = torch.tensor([0.2, 0.5, 1.0], dtype=dtype) if bounded else None
    x = torch.randn(4, 1, 12, dtype=dtype)

    def make() -> tuple[Tensor | None, ...]:
        made = gates(x, bound)
        return made.alpha, made.eta, made.theta, made.gamma, made.hidden

    both_ways(monkeypatch, make, "gates_token")


@pytest.mark.parametrize("retention", [am.FixedRetention(), am.ChannelRetention()])
def test_other_gates_are_torchs(retention: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer, "call", None)
    spec = am.MemorySpec(architecture=am.Matrix(), retention=retention, chunk=1)
    with torch.no_grad():
        GateProjections(12, 3, spec)(torch.randn(4, 1, 12), None)


def test_gradients_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer, "call", None)
    weight = torch.rand(4, requires_grad=True)
    assert rms_norm(torch.randn(2, 4), weight, 1e-6).requires_grad
