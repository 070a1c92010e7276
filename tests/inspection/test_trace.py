"""trace: what it tells is what the model computes, and the model is not touched by it."""

import math

import pytest
import torch
from models import build, shared, text

import atlas_memory as am
from atlas_memory.family import VARIANTS

TIME = 45


def losses_by_hand(model, ids):
    """-log2 p of every token but the first, one whole forward, no cross entropy of torch."""
    with torch.no_grad():
        logits = model(ids[None]).logits[0]
    probabilities = logits.exp() / logits.exp().sum(-1, keepdim=True)
    return [-math.log2(probabilities[t, ids[t + 1]].item()) for t in range(len(ids) - 1)]


@pytest.mark.parametrize("variant", VARIANTS)
def test_surprise_is_the_loss_of_every_variant(variant):
    model = shared(variant)
    ids = text(model, 1, TIME)[0]
    found = am.trace(model, ids, every=13)
    assert math.isnan(found.surprise[0])
    assert found.surprise[1:].tolist() == pytest.approx(losses_by_hand(model, ids), rel=1e-10)
    assert found.mean_surprise == pytest.approx(sum(losses_by_hand(model, ids)) / (TIME - 1))
    assert found.points.tolist() == [13, 26, 39, 45]
    assert len(found.layers) == len(model.model.layers)


@pytest.mark.parametrize("variant", ["titans", "atlas", "atlas_mac", "gla", "retnet", "deltanet"])
def test_gates_are_those_of_the_layers_inputs(variant):
    """Recomputed from what each layer reads, by the layer's own projections, in one go."""
    from atlas_memory.layers.gates import largest_step
    from atlas_memory.layers.memory_layer import MemoryLayer

    model = shared(variant)
    ids = text(model, 1, TIME)[0]
    found = am.trace(model, ids, every=16)
    inputs = []
    layers = [m for m in model.modules() if isinstance(m, MemoryLayer)]
    handles = [
        layer.register_forward_pre_hook(lambda m, args: inputs.append((m, args[0])))
        for layer in layers
    ]
    with torch.no_grad():
        model(ids[None])
    for handle in handles:
        handle.remove()
    for layer, traced in zip(layers, found.layers, strict=True):
        x = torch.cat([part for module, part in inputs if module is layer], dim=1)
        bound = largest_step(layer.spec, layer.initial_weights(), layer.coefficients())
        with torch.no_grad():
            gates = layer.gates(x, bound)
        memory = traced.memory
        for name in ("eta", "theta", "gamma"):
            wanted, given = getattr(gates, name), getattr(memory, name)
            assert (wanted is None) == (given is None)
            if wanted is not None:
                torch.testing.assert_close(given, wanted[0], rtol=1e-8, atol=1e-12)
        assert memory.eta.shape == (2, TIME)
        if variant == "deltanet":
            assert memory.alpha is None
        elif variant == "retnet":
            torch.testing.assert_close(memory.alpha, gates.alpha[:, None].expand(-1, TIME))
        else:
            alpha = gates.alpha[0]
            alpha = alpha.mean(-1) if alpha.dim() == 3 else alpha
            torch.testing.assert_close(memory.alpha, alpha, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("every", [1, 7, 100])
def test_norms_are_those_of_the_state(every):
    """At each point the memory of that many tokens, whatever the pieces."""
    model = shared("atlas")
    ids = text(model, 1, 23)[0]
    found = am.trace(model, ids, every=every)
    assert found.points[-1] == 23
    for n, point in list(enumerate(found.points.tolist()))[::7]:
        with torch.no_grad():
            states = model(ids[None, :point], use_cache=True).past_key_values.states
        for state, layer in zip(states, found.layers, strict=True):
            for matrices, norms in (
                (state.memory.weights, layer.memory.weights),
                (state.memory.momentum, layer.memory.momentum),
            ):
                flat = torch.cat([m[0].flatten(1) for m in matrices], dim=1)
                torch.testing.assert_close(norms[:, n], flat.norm(dim=1), rtol=1e-8, atol=1e-12)


def test_contributions_are_lengths_of_what_is_added():
    model = shared("omeganet")
    ids = text(model, 1, 20)[0]
    found = am.trace(model, ids, every=6)
    with torch.no_grad():
        hidden = model(ids[None], output_hidden_states=True).hidden_states
        for block, x, layer in zip(model.model.layers, hidden, found.layers, strict=False):
            mixed, _ = block.mixer(block.mixer_norm(x))
            fed = block.mlp(block.mlp_norm(x + mixed))
            share = mixed[0].norm(dim=-1) / (x + mixed)[0].norm(dim=-1)
            torch.testing.assert_close(layer.contribution, share)
            share = fed[0].norm(dim=-1) / (x + mixed + fed)[0].norm(dim=-1)
            torch.testing.assert_close(layer.feed_forward_contribution, share)
            torch.testing.assert_close(layer.stream, x[0].norm(dim=-1))


def hooks_of(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.mark.parametrize("training", [True, False])
def test_nothing_is_left_on_the_model(training):
    model = build("atlas_mag").train(training)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    attributes = [set(vars(module)) for module in model.modules()]
    am.trace(model, text(model, 1, 20))
    with pytest.raises(ValueError, match="token id 999 is not in the vocabulary"):
        am.trace(model, [1, 2, 999], every=1)
    assert model.training is training
    assert hooks_of(model) == 0
    assert [set(vars(module)) for module in model.modules()] == attributes
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


@pytest.mark.parametrize(
    ("tokens", "every", "message"),
    [
        ([], 4, "give one text of at least one id"),
        ([[1, 2], [3, 4]], 4, "give one text of at least one id"),
        ([0.5], 4, "give one text of at least one id"),
        ([1, 2], 0, "every=0"),
    ],
)
def test_bad_input(tokens, every, message):
    with pytest.raises(ValueError, match=message):
        am.trace(shared("atlas"), tokens, every=every)


def test_one_token_is_a_text():
    found = am.trace(shared("atlas"), [3])
    assert math.isnan(found.mean_surprise)
    assert found.layers[0].memory.eta.shape == (2, 1)
