"""Products of rounded factors: close to the exact ones, states unrounded, gradients alike."""

import threading
from dataclasses import replace

import pytest
import torch

from atlas_memory import AtlasConfig, AtlasForCausalLM
from atlas_memory.memory import (
    L2,
    MLP,
    GradientDescent,
    Identity,
    Matrix,
    MemorySpec,
    Momentum,
    Muon,
    NoRetention,
    ScalarRetention,
    products,
)
from atlas_memory.memory.graphs import Rounding, rounds
from atlas_memory.memory.products import baddbmm, baddbmm_, bmm, matmul
from tests.memory.cases import draw, package

SPECS = {
    "delta": MemorySpec(Identity(), Matrix(), L2(), GradientDescent(), ScalarRetention(), 1, 8),
    "exact delta": MemorySpec(
        *(Identity(), Matrix(), L2(), Momentum(), ScalarRetention(), 3, 8), output="online"
    ),
    "exact": MemorySpec(
        *(Identity(), MLP(2, normalize=True), L2(), GradientDescent(), ScalarRetention(), 2, 8),
        output="online",
    ),
    "exact, Muon": MemorySpec(
        *(Identity(), MLP(2, normalize=True), L2(), Muon(period=8), ScalarRetention(), 2, 8),
        output="online",
    ),
    "chunk": MemorySpec(Identity(), MLP(2), L2(), Momentum(), ScalarRetention(), 2, 8),
}


def test_a_rounded_product_is_that_of_rounded_factors(monkeypatch):
    monkeypatch.setattr(products, "PROCESSOR_ROUNDS", False)  # its sums are rounded too
    a, b, x = torch.randn(2, 3, 4), torch.randn(2, 4, 5), torch.randn(2, 3, 5)
    coarse = torch.bmm(a.bfloat16().float(), b.bfloat16().float())
    with Rounding(True):
        assert torch.equal(bmm(a, b), coarse)
        assert torch.equal(matmul(a, b), coarse)
        assert torch.equal(baddbmm(x, a, b, beta=2.0, alpha=-1), 2 * x - coarse)
        assert torch.equal(baddbmm_(x.clone(), a, b), x + coarse)
        assert torch.equal(matmul(a[0], b[0]), a[0] @ b[0])
    torch.testing.assert_close(bmm(a, b), torch.bmm(a, b), atol=1e-6, rtol=1e-5)
    assert (bmm(a, b) - coarse).abs().max() > 1e-3


def test_gradients_are_rounded_as_the_product_was_on_any_thread():
    a, b = (torch.randn(1, 4, 4, requires_grad=True) for _ in range(2))
    with Rounding(True):
        y = bmm(a, b)
    weight = torch.randn(1, 4, 4)
    worker = threading.Thread(target=lambda: (y * weight).sum().backward())
    worker.start()
    worker.join()
    assert not rounds()
    with Rounding(True):
        assert torch.equal(a.grad, bmm(weight, b.mT))


@pytest.mark.parametrize("name", SPECS)
def test_outputs_states_and_gradients_stay_close(name):
    made = {}
    for factors in ("float32", "bfloat16"):
        problem, leaves = draw(SPECS[name], 37).leaves()
        y, state = package(problem, SPECS[name], "chunkwise", products=factors)
        (y.square().sum() + sum(w.square().sum() for w in state.weights)).backward()
        made[factors] = (y, *state.weights, *(x.grad for x in leaves.values()))
    for exact, coarse in zip(*made.values(), strict=True):
        error = (exact - coarse).norm() / exact.norm()
        # Newton-Schulz brings small directions of the momentum to length 1, with their rounding.
        assert 0 < error < (0.15 if "Muon" in name else 0.05), error


def test_a_state_that_nothing_is_written_to_is_not_rounded():
    """Blocks of a list of pairs carry the matrix itself among them."""
    spec = MemorySpec(Identity(), Matrix(), L2(), Momentum(), NoRetention(), 1, 8, output="online")
    problem = draw(spec, 300)
    shut = replace(problem.gates, eta=torch.zeros_like(problem.gates.eta))
    _, state = package(replace(problem, gates=shut), spec, "chunkwise", products="bfloat16")
    assert torch.equal(state.weights[0], problem.weights[0].expand_as(state.weights[0]))


def test_a_model_and_its_config(tmp_path):
    shape = {"vocab_size": 32, "hidden_size": 32, "num_attention_heads": 2}
    config = AtlasConfig.from_variant("atlas", size="tiny", memory_products="bfloat16", **shape)
    torch.manual_seed(0)
    model = AtlasForCausalLM(config)
    model.save_pretrained(tmp_path)
    ids = torch.randint(0, 32, (2, 70))
    loss = model(ids, labels=ids).loss
    loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    again = AtlasForCausalLM.from_pretrained(tmp_path)
    assert again.config.memory_products == "bfloat16"
    assert torch.equal(again(ids).logits, model(ids).logits)
    exact = AtlasForCausalLM.from_pretrained(tmp_path, memory_products="float32")
    far = (exact(ids).logits - model(ids).logits).abs().max()
    assert 0 < far < 0.1
    with pytest.raises(ValueError, match="memory_products='half'; choose from: float32, bfloat16"):
        AtlasConfig.from_variant("atlas", memory_products="half")
