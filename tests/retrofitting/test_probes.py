"""A retrofitted model is a model: the probes that every variant of ours has to pass."""

import pytest
import torch
from bases import FAMILIES, base, retrofitted, shared
from models import logits, recomputed_gradients_are_the_same, text
from test_cache_join import feed, step
from test_model_equivalences import (  # noqa: F401
    test_any_cut_with_the_cache_gives_the_same,
    test_beam_search_is_that_of_the_uncached_model,
    test_generate_is_the_argmax_of_full_forwards,
    test_generate_with_prompts_of_different_lengths,
    test_no_token_sees_the_future,
    test_packed_documents_are_separate_documents,
    test_padding_changes_nothing,
    test_rows_do_not_see_each_other,
    test_the_loss_of_padded_and_packed_rows,
    test_training_is_the_same_function,
)
from test_model_transformers import (  # noqa: F401
    test_a_cache_is_a_value,
    test_a_conversation_goes_on_from_its_cache,
    test_beams_go_on_from_a_cache,
    test_hidden_states,
    test_inputs_embeds,
    test_logits_to_keep,
    test_prefill_in_chunks,
    test_sampling_is_that_of_the_uncached_model,
    test_truncated_backpropagation,
)
from transformers import AutoConfig, AutoModelForCausalLM

import atlas_memory as am
from atlas_memory.cache import AtlasCache

KINDS = [("llama", {}), ("qwen3", {"variant": "omeganet"}), ("mistral", {"sinks": 0})]
KINDS += [("gemma", {"variant": "gated_deltanet", "lora": 2}), ("qwen2", {"window": None})]


@pytest.fixture(params=KINDS, ids=lambda kind: kind[0])
def model(request):
    family, choices = request.param
    return shared(family, **choices)


def test_gradients_are_whole_and_nothing_is_written(model):
    before = {name: x.clone() for name, x in model.state_dict().items()}
    ids = text(model, 2, 37)
    model.zero_grad()
    model(ids, labels=ids).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0 or name.endswith("k_proj.bias"), name
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    model.zero_grad()


def test_recomputed_layers_give_the_same_gradients(model):
    family = model.config.base["model_type"]
    both = (retrofitted(family), retrofitted(family))
    recomputed_gradients_are_the_same(*both, text(model, 2, 21))


def test_save_and_load(model, tmp_path):
    model.save_pretrained(tmp_path)
    assert {file.suffix for file in tmp_path.iterdir()} == {".json", ".safetensors"}
    config = AutoConfig.from_pretrained(tmp_path)
    assert config.to_dict() == {**model.config.to_dict(), "_name_or_path": str(tmp_path)}
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64).eval()
    kept = model.state_dict()
    assert list(loaded.state_dict()) == list(kept)
    assert all(torch.equal(x, kept[name]) for name, x in loaded.state_dict().items())
    ids = text(model, 2, 21)
    torch.testing.assert_close(logits(loaded, ids), logits(model, ids), rtol=0, atol=1e-12)


def test_rows_that_stand_anywhere_are_joined(model):
    texts = [text(model, 1, n, seed=n) for n in (40, 3, 9)]
    batch = AtlasCache.join([feed(model, ids)[1] for ids in texts])
    found, _ = step(model, batch, 2)
    more = [logits(model, torch.cat([ids, torch.tensor([[2]])], 1))[:, -1] for ids in texts]
    torch.testing.assert_close(found, torch.cat(more), rtol=0, atol=1e-9)
    long = text(model, 3, 20, seed=5)  # a piece longer than the window, after the rows were joined
    after = logits(model, long, past_key_values=batch)
    alone = [logits(model, torch.cat([ids, long[n : n + 1]], 1)) for n, ids in enumerate(texts)]
    expected = torch.cat([x[:, -20:] for x in alone])
    torch.testing.assert_close(after, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
def test_half_precision(family):
    half = retrofitted(family).bfloat16()
    ids = text(half, 2, 33)
    out = half(ids, labels=ids, use_cache=True)
    out.loss.backward()
    assert out.logits.dtype == torch.bfloat16
    assert all(p.grad.isfinite().all() for p in half.parameters())
    single = retrofitted(family).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = single(ids, labels=ids, use_cache=True)
    out.loss.backward()
    assert all(p.grad.isfinite().all() for p in single.parameters())


def test_the_vocabulary_can_grow():
    model = retrofitted("qwen2")
    ids = text(model, 1, 9)
    before = logits(model, ids)
    model.resize_token_embeddings(60)
    torch.testing.assert_close(logits(model, ids)[..., :50], before, rtol=0, atol=1e-9)
    assert model.config.base_config.vocab_size == 60
    assert am.base_of(model)(torch.full((1, 3), 59)).logits.shape == (1, 3, 60)


@pytest.mark.parametrize("tokens", [8_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_the_cache_is_constant(tokens):
    model, sizes, cache = retrofitted("llama", window=64).float(), set(), None
    with torch.no_grad():
        for block in text(model, 1, tokens).split(1_000, dim=1):
            cache = model.model(block, past_key_values=cache, use_cache=True).past_key_values
            sizes.add(cache.num_bytes)
    assert cache.seen == tokens
    assert len(sizes) == 1


def test_sinks_are_seen_as_if_they_lay_before_the_window():
    """Against the definition: one query, its window, and the first pairs moved up to it."""
    model = retrofitted("llama", layers=(), window=8, sinks=2)
    ids = text(model, 1, 30)
    near = torch.cat([ids[:, :2], ids[:, -8:]], dim=1)
    whole = am.base_of(model)
    # One layer: what a deeper one sees depends on more than the last window.
    for part in (model.model.base, whole.model):
        part.config.num_hidden_layers = 1
    torch.testing.assert_close(logits(model, ids)[:, -1], logits(whole, near)[:, -1])


def test_a_windowed_base_needs_no_memory():
    model = am.retrofit(base("llama"), layers=(), window=8)
    assert model.memories() == []
    ids = text(model, 2, 8)
    assert torch.equal(logits(model, ids), logits(base("llama"), ids))
