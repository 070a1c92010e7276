"""Tokens that are taken back leave no trace, and assisted generation writes what greedy does."""

import copy
from functools import cache

import pytest
import torch
from models import build, logits, shared, text

from atlas_memory.cache import AtlasCache
from atlas_memory.family import variants

CLOSE = {"rtol": 1e-9, "atol": 1e-10}
ASSISTED = ["atlas", "omeganet", "titans", "gated_deltanet", "mamba2", "swa"]
ASSISTED += ["atlas_mac", "atlas_mag", "atlas_mal", "samba", "gated_deltanet_h2"]
GREEDY = {"max_new_tokens": 24, "do_sample": False, "pad_token_id": 49}  # 49 is in no prompt


@cache
def with_rollback(variant, tokens):
    return build(variant, rollback=tokens)


def prompt(model, tokens):
    return text(model, 1, tokens) % 49


@torch.no_grad()
def feed(model, ids, cache=None, **inputs):
    return model(ids, past_key_values=cache, use_cache=True, **inputs)


@pytest.mark.parametrize("variant", variants())
def test_cropped_tokens_leave_no_trace(variant):
    model = with_rollback(variant, 6)
    ids = text(model, 2, 60)
    expected = logits(model, ids)
    cache = feed(model, ids[:, :33]).past_key_values
    for wrong in (1, 2, 6, 3):  # read something else, take it back, read on
        cache = feed(model, text(model, 2, wrong, seed=wrong), cache).past_key_values
        cache.crop(-wrong)
        start = cache.seen
        out = feed(model, ids[:, start : start + 4], cache)
        torch.testing.assert_close(out.logits, expected[:, start : start + 4], **CLOSE)
        cache = out.past_key_values
        assert cache.seen == start + 4


@pytest.mark.parametrize("sizes", [(40,), (1,) * 40, (3, 30, 7), (17, 1, 1, 1, 20)])
@pytest.mark.parametrize("horizon", [1, 5, 16])
def test_every_number_of_tokens_within_the_horizon(sizes, horizon):
    model = with_rollback("omeganet", horizon)
    ids, cache = text(model, 1, 40), None
    for part in ids.split(sizes, dim=1):
        cache = feed(model, part, cache).past_key_values
    expected = logits(model, ids)
    for tokens in range(1, horizon + 1):
        cropped = copy.copy(cache)
        cropped.crop(tokens)
        assert cropped.get_seq_length() == 40 - tokens
        out = feed(model, ids[:, -tokens:], cropped)
        torch.testing.assert_close(out.logits, expected[:, -tokens:], **CLOSE)
    assert cache.seen == 40
    assert len(cache.past.segments) <= 3


def test_crop_again_and_again():
    model = with_rollback("titans", 20)
    ids = text(model, 1, 50)
    cache = feed(model, ids).past_key_values
    for tokens in (1, 0, 4, 15):
        cache.crop(-tokens)
    assert (cache.seen, cache.batch_size) == (30, 1)
    out = feed(model, ids[:, 30:], cache)
    torch.testing.assert_close(out.logits, logits(model, ids)[:, 30:], **CLOSE)


def test_the_whole_text_can_be_taken_back():
    model = with_rollback("omeganet", 30)
    ids = text(model, 2, 9)
    cache = feed(model, text(model, 2, 7, seed=3)).past_key_values
    cache.crop(-7)
    out = feed(model, ids, cache)
    torch.testing.assert_close(out.logits, logits(model, ids), **CLOSE)


def test_padded_rows_and_documents():
    model = with_rollback("omeganet", 4)
    ids = text(model, 2, 20)
    mask = torch.ones_like(ids)
    mask[1, :9] = 0
    expected = logits(model, ids, attention_mask=mask)
    cache = feed(model, ids[:, :18], attention_mask=mask[:, :18]).past_key_values
    cache.crop(-4)
    out = feed(model, ids[:, 14:], cache, attention_mask=mask)
    torch.testing.assert_close(out.logits, expected[:, 14:], **CLOSE)
    position = torch.cat([torch.arange(13), torch.arange(7)])[None].expand(2, -1)
    expected = logits(model, ids, position_ids=position)
    cache = feed(model, ids[:, :18], position_ids=position[:, :18]).past_key_values
    cache.crop(-4)
    out = feed(model, ids[:, 14:], cache, position_ids=position[:, 14:])
    torch.testing.assert_close(out.logits, expected[:, 14:], **CLOSE)


def test_rows_are_chosen_between_a_crop_and_the_next_pass():
    model = with_rollback("omeganet", 4)
    ids = text(model, 3, 20)
    cache = feed(model, ids).past_key_values
    cache.crop(-3)
    rows = torch.tensor([2, 0])
    out = feed(model, ids[rows, 17:], cache.select(rows).detach().to("cpu"))
    torch.testing.assert_close(out.logits, logits(model, ids[rows])[:, 17:], **CLOSE)
    for forbidden in (lambda: AtlasCache.join([cache, cache]), lambda: cache.save("never")):
        with pytest.raises(ValueError, match="between a crop and the next forward pass"):
            forbidden()


def test_beyond_the_horizon_is_one_sentence():
    model = with_rollback("omeganet", 4)
    cache = feed(model, text(model, 1, 90)).past_key_values
    with pytest.raises(ValueError, match=r"take back 9 of 90 tokens.* by 4; set rollback=9"):
        cache.crop(-9)
    assert cache.seen == 90
    with pytest.raises(ValueError, match="can go back by 0; set rollback=1"):
        feed(shared("omeganet"), text(model, 1, 5)).past_key_values.crop(1)
    with pytest.raises(ValueError, match="rollback=-1: it must be a whole number"):
        build("omeganet", rollback=-1)


@pytest.mark.parametrize("variant", ["atlas", "samba"])
def test_the_bytes_of_a_horizon_are_bounded(variant):
    model, sizes = with_rollback(variant, 8), []
    cache = feed(model, text(model, 1, 40)).past_key_values
    for _ in range(6):
        for part in text(model, 1, 24).split(1, dim=1):
            cache = feed(model, part, cache).past_key_values
        sizes.append(cache.num_bytes)
    plain = feed(shared(variant), text(model, 1, 40)).past_key_values.num_bytes
    assert len(set(sizes)) == 1
    assert plain < sizes[0] < 4 * plain


@pytest.mark.parametrize("variant", ASSISTED)
def test_assisted_generation_writes_what_greedy_decoding_writes(variant):
    model = shared(variant)
    draft = build("omeganet", num_hidden_layers=1)
    ids = prompt(model, 21).repeat(1, 4)
    expected = model.generate(ids, **GREEDY)
    assert torch.equal(model.generate(ids, assistant_model=draft, **GREEDY), expected)
    assert torch.equal(model.generate(ids, prompt_lookup_num_tokens=5, **GREEDY), expected)
    assert torch.equal(model.generate(ids, assistant_model=model, **GREEDY), expected)


def test_assisted_generation_goes_on_from_a_cache_and_returns_one():
    model = shared("atlas")
    ids = prompt(model, 40)
    options = {**GREEDY, "return_dict_in_generate": True, "prompt_lookup_num_tokens": 4}
    cache = feed(model, ids[:, :30]).past_key_values
    out = model.generate(ids, past_key_values=cache, **options)
    assert torch.equal(out.sequences, model.generate(ids, **GREEDY))
    left = out.sequences[:, out.past_key_values.seen :]
    more = torch.cat([left, text(model, 1, 3)], dim=1)
    whole = torch.cat([out.sequences, text(model, 1, 3)], dim=1)
    found = feed(model, more, out.past_key_values).logits
    torch.testing.assert_close(found[:, -3:], logits(model, whole)[:, -3:], **CLOSE)


def test_recording_keeps_few_states():
    """Every round of assisted generation crops, so what is recorded does not pile up."""
    model = shared("omeganet")
    out = model.generate(
        prompt(model, 21).repeat(1, 4),
        **{**GREEDY, "max_new_tokens": 120, "prompt_lookup_num_tokens": 5},
        return_dict_in_generate=True,
    )
    assert len(out.past_key_values.past.segments) <= 2
