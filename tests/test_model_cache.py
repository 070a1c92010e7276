"""A cache that does not grow, and the Auto classes that find the model."""

import subprocess
import sys

import pytest
import torch
from models import build, logits, shared, text
from test_model_equivalences import CLOSE

from atlas_memory.blocks import MAC, MAG, MAL
from atlas_memory.cache import AtlasCache
from atlas_memory.cli.costs import costs
from atlas_memory.family import VARIANTS, variants

GROWING = {"attention", "transformer_plus", "deeptransformer", "swdt", "dot"}
BOUNDED = [variant for variant in variants() if variant not in GROWING]
NARROWEST = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8}


def bytes_after(model, *counts):
    """Size of the cache after so many tokens, read in pieces."""
    cache, sizes = AtlasCache(), []
    with torch.no_grad():
        for count in counts:
            while cache.seen < count:
                ids = torch.zeros(1, min(1_000, count - cache.seen), dtype=torch.long)
                out = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
                cache = out.past_key_values
                assert out.logits.isfinite().all()
            sizes.append(cache.num_bytes)
    return sizes


@pytest.mark.parametrize("variant", BOUNDED)
def test_the_cache_does_not_grow(variant):
    one, some, many = bytes_after(shared(variant), 1, 33, 130)
    assert one == some == many


@pytest.mark.slow
@pytest.mark.parametrize("variant", BOUNDED)
def test_the_cache_does_not_grow_in_100_000_tokens(variant):
    model = build(variant, **NARROWEST, num_hidden_layers=len(VARIANTS[variant].mixers)).float()
    thousand, many = bytes_after(model, 1_000, 100_000)
    assert thousand == many == costs(model.config, context=100_000).state_bytes


@pytest.mark.parametrize("variant", sorted(GROWING))
def test_the_cache_grows_where_every_token_is_kept(variant):
    some, many = bytes_after(shared(variant), 33, 130)
    assert many > some


@pytest.mark.parametrize("mixer", [MAC(segment=7), MAG(window=7), MAL(window=7)])
@pytest.mark.parametrize("persistent", [0, 3])
def test_hybrids_with_and_without_persistent_tokens(mixer, persistent):
    from dataclasses import replace

    model = build("omeganet", mixers=[replace(mixer, persistent=persistent)])
    names = [name for name, _ in model.named_parameters() if name.endswith("persistent")]
    assert len(names) == (2 if persistent else 0)
    ids, cache, parts = text(model, 2, 25), AtlasCache(), []
    for part in ids.split([3, 4, 11, 7], dim=1):
        out = model(part, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        parts.append(out.logits)
    torch.testing.assert_close(torch.cat(parts, dim=1), logits(model, ids), **CLOSE)


@pytest.mark.parametrize(
    "code",
    [
        "import atlas_memory; from transformers import AutoConfig, AutoModelForCausalLM",
        "from transformers import AutoConfig, AutoModelForCausalLM; import atlas_memory",
    ],
)
def test_auto_classes_know_the_model(code):
    code += "\nconfig = AutoConfig.for_model('atlas_memory', vocab_size=9)"
    code += "\nprint(type(AutoModelForCausalLM.from_config(config)).__name__)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.splitlines()[-1] == "AtlasForCausalLM"


def test_the_package_alone_imports_neither_torch_nor_transformers():
    code = "import sys, atlas_memory; print({'torch', 'transformers'} & set(sys.modules))"
    code += "\nprint(len(atlas_memory.variants()), len(atlas_memory.variants()))"
    code += "\natlas_memory.AtlasConfig; print(len(atlas_memory.variants()))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.splitlines() == ["set()", "34 34", "34"]
