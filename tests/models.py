"""Small models of every variant for the tests, in float64, with their parameters shaken."""

from functools import cache

import torch

from atlas_memory.config import AtlasConfig
from atlas_memory.family import SIZES, VARIANTS
from atlas_memory.model import AtlasForCausalLM

NARROW = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 50}


def config(variant, shape="narrow", **overrides):
    if shape == "narrow":
        layers = max(2, len(VARIANTS[variant].mixers))
        overrides = {**NARROW, "num_hidden_layers": layers, **overrides}
        shape = "tiny"
    assert shape in SIZES
    return AtlasConfig.from_variant(variant, shape, **overrides)


def shaken(model, seed=0):
    """Every parameter moved a little, so that nothing is zero, one or equal by its start."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
        parameter.data += 0.05 * noise.to(parameter)
    return model


def build(variant, shape="narrow", **overrides):
    torch.manual_seed(0)
    return shaken(AtlasForCausalLM(config(variant, shape, **overrides)).double().eval())


@cache
def shared(variant, shape="narrow"):
    """A model that several tests read; whoever changes it builds its own."""
    return build(variant, shape)


def text(model, rows, tokens, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, model.config.vocab_size, (rows, tokens), generator=generator)


def recomputed_gradients_are_the_same(plain, saving, ids):
    """Of two equal models, one of which keeps nothing of its layers for the backward pass."""
    saving.train().gradient_checkpointing_enable()
    for model in (plain.train(), saving):
        model(ids, labels=ids).loss.backward()
    for (name, p), other in zip(plain.named_parameters(), saving.parameters(), strict=True):
        torch.testing.assert_close(p.grad, other.grad, rtol=1e-9, atol=1e-12, msg=name)


@torch.no_grad()
def logits(model, ids, **inputs):
    return model(ids, **inputs).logits
