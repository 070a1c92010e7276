"""am.retrofit: at step 0 the base itself, and what cannot be retrofitted is refused."""

import pytest
import torch
from bases import FAMILIES, base, retrofitted
from models import logits, text
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
)

import atlas_memory as am
from atlas_memory.retrofitting.build import head_size


@pytest.mark.parametrize("family", FAMILIES)
def test_at_step_0_it_is_the_base(family):
    window = FAMILIES[family].get("sliding_window", 24)
    plain = base(family)
    new = am.retrofit(plain, layers=(0, 2), window=24, lora=2)
    ids = text(new, 3, window)
    assert torch.equal(logits(new, ids), logits(plain, ids))
    assert torch.equal(logits(new, ids), logits(base(family), ids)), "the base was changed"
    single = base(family, torch.float32)
    close = {"rtol": 0, "atol": 1e-6}
    torch.testing.assert_close(logits(am.retrofit(single), ids), logits(single, ids), **close)
    options = {"max_new_tokens": window - 3, "do_sample": False}
    assert (
        new.generate(ids[:, :3], **options).tolist()
        == plain.generate(
            ids[:, :3], attention_mask=torch.ones(3, 3, dtype=torch.long), **options
        ).tolist()
    )


def test_the_window_of_mistral_stays():
    """Its own window is smaller than ours: without sinks it is the base at any length."""
    plain = base("mistral")
    new = am.retrofit(plain, layers=(1,), window=16)
    ids = text(new, 2, 40)
    torch.testing.assert_close(logits(new, ids), logits(plain, ids), rtol=0, atol=1e-12)


def test_weights_that_transformers_did_not_make_are_kept():
    """A base put together by hand is not marked as initialized."""
    plain = base("llama")
    for part in plain.modules():
        part.__dict__.pop("_is_hf_initialized", None)
    ids = text(plain, 2, 9)
    before = logits(plain, ids)
    new = am.retrofit(plain, lora=2)
    assert torch.equal(logits(plain, ids), before)
    assert torch.equal(logits(new, ids), before)


def test_without_a_window_it_is_the_base_at_any_length():
    plain = base("qwen3")
    new = am.retrofit(plain, window=None)
    ids = text(new, 2, 60)
    assert torch.equal(logits(new, ids), logits(plain, ids))


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma"])
def test_the_memory_starts_from_the_attention(family):
    new = am.retrofit(base(family), layers=(1,))
    beside = new.model.layers[1].self_attn
    memory, attention = beside.memory, beside.attention
    size, heads = memory.head_dim, new.config.heads
    queries = attention.q_proj.weight.unflatten(0, (-1, size))
    group = queries.shape[0] // (attention.k_proj.weight.shape[0] // size)
    keys = attention.k_proj.weight.unflatten(0, (-1, size))
    ours = memory.projections.q_proj.weight.unflatten(0, (heads, size))
    theirs = memory.projections.k_proj.weight.unflatten(0, (heads, size))
    for head in range(heads):
        chosen = head * queries.shape[0] // heads
        assert torch.equal(ours[head], queries[chosen])
        assert torch.equal(theirs[head], keys[chosen // group])


@pytest.mark.parametrize(("largest", "size"), [(8, 8), (64, 64), (72, 72), (200, 192)])
def test_the_largest_head_of_a_memory(largest, size):
    """Parts of the base's heads of 64, or more than one of them: what divides a width of 576."""
    shape = {"hidden_size": 576, "num_attention_heads": 9, "head_dim": 64}
    assert head_size(LlamaConfig(**shape), largest) == size


def test_a_large_head_starts_as_the_base_too():
    plain = base("llama")
    dim = plain.config.hidden_size
    heads = am.retrofit(plain, layers=(1,), head=8 * dim).config.heads
    assert heads == 1
    new = am.retrofit(plain, layers=(1,), window=24, head=8 * dim)
    ids = text(new, 2, 24)
    assert torch.equal(logits(new, ids), logits(plain, ids))


def test_the_base_comes_back():
    model = retrofitted("llama", lora=2)
    ids = text(model, 2, 30)
    whole = am.base_of(model)
    plain = base("llama")
    names = dict(whole.named_parameters())
    plain.load_state_dict(names)
    assert type(whole) is type(plain)
    assert whole.config.to_dict().keys() == plain.config.to_dict().keys()
    assert torch.equal(logits(whole, ids), logits(plain, ids))
    assert names["model.layers.0.self_attn.q_proj.weight"].data_ptr() in {
        p.data_ptr() for p in model.parameters()
    }


def test_layers_are_counted_from_either_end():
    assert am.retrofit(base("llama"), layers=(-1, 0)).config.layers == [0, 2]
    assert am.retrofit(base("llama")).config.layers == [1, 2]


def refused(config, **changes):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(config, **changes))


SMALL = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (lambda: GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=16, n_head=2)), "GPT2LMHeadModel"),
        (lambda: refused("gemma2", **SMALL, head_dim=4), r"gemma2 cannot .* caps its scores"),
        (lambda: refused("gemma3_text", **SMALL, head_dim=4), r"gemma3_text .* several kinds"),
        (lambda: refused("llama", **SMALL, rope_parameters=DYNAMIC), r"llama .* 'dynamic'"),
        (lambda: refused("phi", **{**SMALL, "num_key_value_heads": 4}), r"phi cannot .* o_proj"),
        (lambda: refused("cohere", **SMALL, logit_scale=0.1), r"cohere .* would be lost"),
    ],
)
def test_other_models_are_refused(model, sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        am.retrofit(model())
    assert "use Llama, SmolLM, Qwen2" in str(error.value)


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        ({"layers": (0, 3)}, r"layers=\[0, 3\]: .* from 0 to 2"),
        ({"layers": (1, 1)}, "give different layers"),
        ({"window": 0}, "window=0"),
        ({"sinks": -1}, "sinks=-1"),
        ({"variant": "atlass"}, "did you mean 'atlas'"),
        ({"variant": "mamba"}, "'mamba' is no memory that can stand beside attention"),
    ],
)
def test_wrong_choices_are_refused(choices, sentence):
    with pytest.raises(ValueError, match=sentence):
        am.retrofit(base("llama"), **choices)
