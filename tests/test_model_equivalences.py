"""One function, however it is asked: what every variant promises, in float64."""

import pytest
import torch
from models import build, logits, shared, text
from transformers import AutoConfig, AutoModelForCausalLM

from atlas_memory.cache import AtlasCache
from atlas_memory.family import variants

SHAPES = ["narrow", pytest.param("tiny", marks=pytest.mark.slow)]
CLOSE = {"rtol": 0, "atol": 1e-7}


@pytest.fixture(params=SHAPES)
def shape(request):
    return request.param


@pytest.fixture(params=variants())
def model(request, shape):
    return shared(request.param, shape)


def test_no_token_sees_the_future(model):
    ids = text(model, 1, 77)
    changed = ids.clone()
    changed[0, 50] = (ids[0, 50] + 1) % model.config.vocab_size
    before, after = logits(model, ids), logits(model, changed)
    assert (before - after)[:, :50].abs().max() < 1e-9
    assert (before - after)[:, 50:].abs().max() > 1e-6


def test_rows_do_not_see_each_other(model):
    ids = text(model, 3, 29)
    torch.testing.assert_close(logits(model, ids)[1:2], logits(model, ids[1:2]), **CLOSE)


@pytest.mark.parametrize("cuts", [[1] * 37, [17, 1, 19], [5, 30, 2]])
def test_any_cut_with_the_cache_gives_the_same(model, cuts):
    ids, cache, parts = text(model, 2, 37), AtlasCache(), []
    with torch.no_grad():
        for part in ids.split(cuts, dim=1):
            out = model(part, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            parts.append(out.logits)
    torch.testing.assert_close(torch.cat(parts, dim=1), logits(model, ids), **CLOSE)
    assert cache.get_seq_length() == 37


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(model, side):
    ids, lengths = text(model, 3, 23), [23, 1, 14]
    places = [slice(23 - n, 23) if side == "left" else slice(0, n) for n in lengths]
    mask = torch.zeros(3, 23, dtype=torch.long)
    for row, place in enumerate(places):
        mask[row, place] = 1
    out = model(ids, attention_mask=mask, use_cache=True)
    more = text(model, 3, 9, seed=2)
    after = logits(model, more, past_key_values=out.past_key_values)
    for row, place in enumerate(places):
        whole = torch.cat([ids[row, place], more[row]])[None]
        alone = logits(model, whole)
        torch.testing.assert_close(out.logits[row : row + 1, place], alone[:, :-9], **CLOSE)
        torch.testing.assert_close(after[row : row + 1], alone[:, -9:], **CLOSE)


def test_packed_documents_are_separate_documents(model):
    ids, lengths = text(model, 2, 31), [3, 19, 1, 8]
    position = torch.cat([torch.arange(n) for n in lengths]).expand(2, -1)
    out = model(ids, position_ids=position, use_cache=True)
    alone = torch.cat([logits(model, part) for part in ids.split(lengths, dim=1)], dim=1)
    torch.testing.assert_close(out.logits, alone, **CLOSE)
    more = text(model, 2, 5, seed=2)
    after = logits(model, more, past_key_values=out.past_key_values)
    whole = logits(model, torch.cat([ids[:, -8:], more], dim=1))
    torch.testing.assert_close(after, whole[:, -5:], **CLOSE)


def test_the_loss_of_padded_and_packed_rows(model):
    ids, lengths = text(model, 1, 17), [9, 8]
    parts = ids.split(lengths, dim=1)
    alone = [model(part, labels=part).loss * (part.shape[1] - 1) for part in parts]
    expected = sum(alone) / (17 - 2)
    position = torch.cat([torch.arange(n) for n in lengths])[None]
    torch.testing.assert_close(model(ids, position_ids=position, labels=ids).loss, expected)
    padded, mask = torch.zeros(2, 9, dtype=torch.long), torch.zeros(2, 9, dtype=torch.long)
    for row, part in enumerate(parts):
        padded[row, 9 - part.shape[1] :], mask[row, 9 - part.shape[1] :] = part[0], 1
    torch.testing.assert_close(model(padded, attention_mask=mask, labels=padded).loss, expected)


def test_training_is_the_same_function(model):
    ids = text(model, 2, 21)
    try:
        torch.testing.assert_close(logits(model.train(), ids), logits(model.eval(), ids), **CLOSE)
    finally:
        model.eval()


def test_generate_is_the_argmax_of_full_forwards(model):
    ids = text(model, 2, 19)
    out = model.generate(ids, max_new_tokens=6, do_sample=False)
    for _ in range(6):
        ids = torch.cat([ids, logits(model, ids)[:, -1:].argmax(dim=-1)], dim=1)
    assert out.tolist() == ids.tolist()


def test_generate_with_prompts_of_different_lengths(model):
    ids, mask = text(model, 2, 13), torch.ones(2, 13, dtype=torch.long)
    mask[1, :6] = 0
    together = model.generate(ids, attention_mask=mask, max_new_tokens=5, do_sample=False)
    alone = model.generate(ids[1:, 6:], max_new_tokens=5, do_sample=False)
    assert together[1, 6:].tolist() == alone[0].tolist()


def test_beam_search_is_that_of_the_uncached_model(model):
    ids = text(model, 2, 7)
    beams = {"num_beams": 3, "max_new_tokens": 5, "do_sample": False, "length_penalty": 0.0}
    beams |= {"return_dict_in_generate": True, "output_scores": True}
    cached = model.generate(ids, use_cache=True, **beams)
    uncached = model.generate(ids, use_cache=False, **beams)
    assert cached.sequences.tolist() == uncached.sequences.tolist()
    torch.testing.assert_close(cached.sequences_scores, uncached.sequences_scores, **CLOSE)


@pytest.mark.parametrize("variant", variants())
def test_gradients_are_whole_and_nothing_is_written(variant, shape):
    model = build(variant, shape)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    ids = text(model, 2, 37)
    model.train()(ids, labels=ids).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 0, name
    assert_same_tensors(model.state_dict(), before)


@pytest.mark.parametrize("variant", variants())
def test_save_and_load(variant, shape, tmp_path):
    model = shared(variant, shape)
    model.save_pretrained(tmp_path)
    assert {file.suffix for file in tmp_path.iterdir()} == {".json", ".safetensors"}
    config = AutoConfig.from_pretrained(tmp_path)
    assert config.to_dict() == {**model.config.to_dict(), "_name_or_path": str(tmp_path)}
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64).eval()
    assert_same_tensors(loaded.state_dict(), model.state_dict())
    ids = text(model, 2, 21)
    # Equal up to where the numbers lie in memory, which is what the last digits depend on.
    torch.testing.assert_close(logits(loaded, ids), logits(model, ids), rtol=0, atol=1e-12)


def assert_same_tensors(one, other):
    assert list(one) == list(other)
    assert [name for name, x in one.items() if not torch.equal(x, other[name])] == []
