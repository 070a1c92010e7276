"""A user's mistake costs one sentence that names the value and what would be right."""

import json

import pytest
import torch
from models import build, shared, text
from transformers import AutoModelForCausalLM, DynamicCache

from atlas_memory.cache import AtlasCache
from atlas_memory.config import AtlasConfig
from atlas_memory.memory import DotProduct, Huber, MemorySpec


@pytest.fixture(params=["transformer_plus", "swa", "omeganet", "atlas_mac", "mamba"])
def model(request):
    return shared(request.param)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"variant": "atlass"}, "unknown variant 'atlass'; did you mean 'atlas'.*omeganet"),
        ({"variant": "atlas", "size": "7b"}, "unknown size '7b'; choose from: tiny, small, 170m"),
        ({"variant": "atlas", "hiden_size": 8}, "unknown field 'hiden_size'.*'hidden_size'"),
        ({"variant": "atlas", "temperature": 8}, "unknown field 'temperature' of AtlasConfig"),
        ({"variant": "atlas", "memory.windw": 8}, "unknown field 'windw'.*'window'"),
        ({"variant": "atlas", "memory.optimizer.stps": 8}, "unknown field 'stps'.*'steps'"),
        ({"variant": "atlas", "memory": {"bais": 8}}, "unknown field 'bais'.*'bias'"),
        ({"variant": "atlas", "memory": {"bias": "l3"}}, "bias='l3' is unknown"),
        ({"variant": "atlas", "mixers.window": 8}, "mixers.window=8: atlas has no memory"),
        ({"variant": "swa", "memory.window": 8}, "memory.window=8: swa has no memory"),
        ({"variant": "swa", "num_attention_heads": 5}, "num_attention_heads=5 does not divide"),
        ({"variant": "swa", "hidden_size": 0}, "hidden_size=0: .* at least 1"),
        ({"variant": "swa", "vocab_size": 2.5}, "vocab_size=2.5: .* whole number"),
        ({"variant": "swa", "mixers": [{"mixer": "atention"}]}, "'atention'.*'attention'"),
        ({"variant": "swa", "mixers": [{"mixer": "mal", "windo": 3}]}, "'windo'.*'window'"),
        ({"variant": "swa", "mixers": []}, "mixers=\\[\\]"),
    ],
)
def test_variants_and_overrides(arguments, message):
    with pytest.raises(ValueError, match=message):
        AtlasConfig.from_variant(**arguments)


def test_a_config_with_an_unknown_field():
    with pytest.raises(ValueError, match="unknown field 'widow' of AtlasConfig"):
        AtlasConfig(widow=3)


def test_a_saved_config_with_an_unknown_field(tmp_path):
    shared("omeganet").config.save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    plain = json.loads(file.read_text())
    file.write_text(json.dumps({**plain, "widow": 3}))
    with pytest.raises(ValueError, match="unknown field 'widow' of AtlasConfig; choose from: var"):
        AutoModelForCausalLM.from_pretrained(tmp_path)
    file.write_text(json.dumps({**plain, "memory": {**plain["memory"], "widow": 3}}))
    with pytest.raises(ValueError, match=r"unknown field 'widow' of MemorySpec.*'window'"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_a_memory_that_is_missing():
    with pytest.raises(ValueError, match="needs a memory, got memory=None"):
        build("omeganet", memory=None)


def test_overrides_reach_the_memory():
    config = AtlasConfig.from_variant("atlas", "tiny", **{"memory.optimizer.period": 4})
    assert config.memory_spec.optimizer.period == 4
    config = AtlasConfig.from_variant("atlas", "tiny", memory={"window": 3, "bias": "dot_product"})
    assert (config.memory_spec.window, config.memory_spec.bias) == (3, DotProduct())
    letter = {"output": "chunk", "bias": "huber"}
    config = AtlasConfig.from_variant("atlas", "tiny", memory=letter)
    assert (config.memory_spec.output, config.memory_spec.bias) == ("chunk", Huber())
    spec = MemorySpec(window=5)
    assert AtlasConfig.from_variant("atlas", "tiny", memory=spec).memory_spec == spec


@pytest.mark.parametrize("token", [-1, 50, 99])
def test_token_ids_out_of_range(model, token):
    with pytest.raises(ValueError, match=f"token id {token} .* from 0 to 49"):
        model(torch.tensor([[3, token, 4]]))


def test_an_empty_text(model):
    empty = torch.zeros(1, 0, dtype=torch.long)
    with pytest.raises(ValueError, match="the text is empty"):
        model(empty)
    with pytest.raises(ValueError, match="empty"):
        model.generate(empty, max_new_tokens=2)
    mask = torch.tensor([[1, 1], [0, 0]])
    with pytest.raises(ValueError, match="a prompt is empty"):
        model.generate(text(model, 2, 2), attention_mask=mask, max_new_tokens=2)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"input_ids": torch.zeros(5).long()}, r"input_ids has shape \[5\]; give \[rows, tokens\]"),
        ({"input_ids": torch.zeros(1, 2, 3).long()}, r"input_ids has shape \[1, 2, 3\]"),
        ({"input_ids": torch.zeros(1, 2)}, "input_ids is torch.float32; give whole numbers"),
        ({"inputs_embeds": torch.zeros(1, 2)}, r"give \[rows, tokens, 16\]"),
        ({"inputs_embeds": torch.zeros(1, 0, 16)}, "the text is empty"),
    ],
)
def test_a_text_of_another_shape(wrong, message):
    with pytest.raises(ValueError, match=message):
        shared("omeganet")(**wrong)


def test_ids_and_embeddings_at_once(model):
    ids = text(model, 1, 3)
    for both in ({}, {"input_ids": ids, "inputs_embeds": model.get_input_embeddings()(ids)}):
        with pytest.raises(ValueError, match="either input_ids or inputs_embeds"):
            model(**both)


@pytest.mark.parametrize("shape", [(2, 4), (1, 5), (2, 2, 5)])
def test_a_mask_that_does_not_fit(model, shape):
    with pytest.raises(ValueError, match=r"attention_mask has shape .* give \[2, 5\]"):
        model(text(model, 2, 5), attention_mask=torch.ones(shape))


def test_positions_that_jump(model):
    with pytest.raises(ValueError, match="go from 1 to 5 in row 0"):
        model(text(model, 1, 4), position_ids=torch.tensor([[0, 1, 5, 6]]))


def test_labels_for_logits_that_were_not_kept(model):
    ids = text(model, 2, 5)
    with pytest.raises(ValueError, match="one label per token and logits_to_keep=0"):
        model(ids, labels=ids, logits_to_keep=2)


def test_a_cache_of_another_kind_or_model_or_batch(model):
    ids = text(model, 2, 5)
    with pytest.raises(ValueError, match="is a DynamicCache; give an AtlasCache"):
        model(ids, past_key_values=DynamicCache())
    other = shared("gated_deltanet")(ids, use_cache=True).past_key_values
    with pytest.raises(ValueError, match=f"made by gated_deltanet-.*{model.config.variant}-"):
        model(ids, past_key_values=other)
    own = model(ids, use_cache=True).past_key_values
    with pytest.raises(ValueError, match="holds 2 rows and the input 1"):
        model(ids[:1], past_key_values=own)


def test_a_text_that_is_shorter_than_its_cache(model):
    ids = text(model, 1, 9)
    cache = model(ids, use_cache=True).past_key_values
    for shorter in (4, 9):
        with pytest.raises(ValueError, match=f"has read 9 tokens, the text has {shorter}"):
            model.generate(ids[:, :shorter], past_key_values=cache, max_new_tokens=2)


def test_a_cache_of_transformers_own_making(model):
    with pytest.raises(ValueError, match="cache_implementation='static'"):
        model.generate(text(model, 1, 5), cache_implementation="static", max_new_tokens=2)


def test_attention_maps_do_not_exist(model):
    with pytest.raises(ValueError, match="no attention maps"):
        model(text(model, 1, 5), output_attentions=True)


def test_files_that_hold_no_cache(model, tmp_path):
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="holds no AtlasCache"):
        AtlasCache.load(tmp_path / "model.safetensors")
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"nothing")
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        AtlasCache.load(broken)
