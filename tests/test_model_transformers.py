"""What users of transformers expect of a model: every corner, of every kind of state."""

import pytest
import torch
import torch.nn.functional as F
from models import build, logits, recomputed_gradients_are_the_same, shared, text
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import DataCollatorWithFlattening, PreTrainedTokenizerFast, pipeline

from atlas_memory.cache import AtlasCache
from atlas_memory.family import variants

KINDS = ["transformer_plus", "swa", "gated_deltanet", "omeganet", "deeptransformer"]
KINDS += ["atlas_mac", "samba", "gated_deltanet_h2"]
# The variants that are not the first of their kind of state run in `make test-all`.
EVERY = [
    name if name in KINDS else pytest.param(name, marks=pytest.mark.slow) for name in variants()
]
EVERY_BUT_ONE = [
    name if name == "omeganet" else pytest.param(name, marks=pytest.mark.slow)
    for name in variants()
]
CLOSE = {"rtol": 0, "atol": 1e-9}


@pytest.fixture(params=EVERY)
def model(request):
    return shared(request.param)


@pytest.fixture(scope="module")
def byte_tokenizer():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytes_ = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    bytes_.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=bytes_, pad_token="!", eos_token="!", padding_side="left"
    )


def test_logits_to_keep(model):
    ids = text(model, 2, 12)
    whole = logits(model, ids)
    torch.testing.assert_close(logits(model, ids, logits_to_keep=3), whole[:, -3:], **CLOSE)
    places = torch.tensor([0, 7])
    torch.testing.assert_close(logits(model, ids, logits_to_keep=places), whole[:, places], **CLOSE)


def test_inputs_embeds(model):
    ids = text(model, 2, 12)
    embedded = model.get_input_embeddings()(ids)
    torch.testing.assert_close(logits(model, None, inputs_embeds=embedded), logits(model, ids))
    out = model.generate(inputs_embeds=embedded, max_new_tokens=4, do_sample=False)
    assert out.tolist() == model.generate(ids, max_new_tokens=4, do_sample=False)[:, 12:].tolist()


def test_hidden_states(model):
    ids = text(model, 2, 12)
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    out = model(ids, attention_mask=mask, output_hidden_states=True)
    assert len(out.hidden_states) == model.config.num_hidden_layers + 1
    torch.testing.assert_close(out.hidden_states[0], model.get_input_embeddings()(ids))
    torch.testing.assert_close(model.lm_head(out.hidden_states[-1]), out.logits)
    assert isinstance(model(ids, return_dict=False), tuple)


def test_a_conversation_goes_on_from_its_cache(model):
    first, second = text(model, 1, 9), text(model, 1, 4, seed=2)
    options = {"max_new_tokens": 5, "do_sample": False, "return_dict_in_generate": True}
    said = model.generate(first, **options)
    whole = torch.cat([said.sequences, second], dim=1)
    again = model.generate(whole, past_key_values=said.past_key_values, **options)
    fresh = model.generate(whole, **options)
    assert again.sequences.tolist() == fresh.sequences.tolist()
    only_new = whole[:, said.past_key_values.seen :]
    mask = torch.ones_like(whole)
    third = model.generate(
        only_new, attention_mask=mask, past_key_values=said.past_key_values, **options
    )
    assert third.sequences[:, only_new.shape[1] :].tolist() == fresh.sequences[:, -5:].tolist()


def test_beams_go_on_from_a_cache(model):
    ids = text(model, 1, 11)
    cache = model(ids[:, :7], use_cache=True).past_key_values
    beams = {"num_beams": 3, "max_new_tokens": 4, "do_sample": False}
    with pytest.raises(ValueError, match=r"holds 1 rows and the input 3; .*select"):
        model.generate(ids, past_key_values=cache, **beams)
    forked = cache.select(torch.zeros(3, dtype=torch.long))
    again = model.generate(ids, past_key_values=forked, **beams)
    assert again.tolist() == model.generate(ids, **beams).tolist()


def test_a_cache_is_a_value(model, tmp_path):
    ids, more = text(model, 2, 19), text(model, 2, 7, seed=2)
    cache = model(ids, use_cache=True).past_key_values
    size = cache.num_bytes
    expected = logits(model, more, past_key_values=cache)
    torch.testing.assert_close(logits(model, more, past_key_values=cache), expected, **CLOSE)
    assert (cache.seen, cache.num_bytes, cache.batch_size) == (19, size, 2)
    cache.save(tmp_path / "cache.safetensors")
    loaded = AtlasCache.load(tmp_path / "cache.safetensors")
    assert (loaded.seen, loaded.num_bytes, loaded.batch_size) == (19, size, 2)
    torch.testing.assert_close(logits(model, more, past_key_values=loaded), expected, **CLOSE)
    rows = torch.tensor([1, 0, 1])
    forked = logits(model, more[rows], past_key_values=cache.select(rows))
    torch.testing.assert_close(forked, expected[rows], **CLOSE)
    cache.reorder(torch.tensor([1, 1]))
    reordered = logits(model, more[rows[[0, 2]]], past_key_values=cache)
    torch.testing.assert_close(reordered, expected[[1, 1]], **CLOSE)


def test_truncated_backpropagation(model):
    ids = text(model, 2, 24)
    cache = None
    for part in ids.split(8, dim=1):
        out = model(part, labels=part, past_key_values=cache, use_cache=True)
        out.loss.backward()
        cache = out.past_key_values.detach()
    model.zero_grad()


def test_gradient_checkpointing_gives_the_same_gradients(model):
    both = (build(model.config.variant), build(model.config.variant))
    recomputed_gradients_are_the_same(*both, text(model, 2, 21))


def test_bfloat16(model):
    half = build(model.config.variant).bfloat16()
    ids = text(model, 2, 33)
    out = half(ids, labels=ids, use_cache=True)
    out.loss.backward()
    assert out.logits.dtype == torch.bfloat16
    assert all(p.grad.isfinite().all() for p in half.parameters())
    assert (out.logits.double() - logits(model, ids)).abs().mean() < 0.1
    assert half.generate(ids, max_new_tokens=3, do_sample=False).shape == (2, 36)


def test_autocast(model):
    single = build(model.config.variant).float()
    ids = text(model, 2, 33)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = single(ids, labels=ids, use_cache=True)
    out.loss.backward()
    assert all(p.grad.isfinite().all() for p in single.parameters())
    assert (out.logits.double() - logits(model, ids)).abs().mean() < 0.1


@pytest.mark.parametrize("variant", EVERY_BUT_ONE)
@pytest.mark.parametrize("tied", [True, False])
def test_resizing_the_vocabulary(variant, tied):
    model = build(variant, tie_word_embeddings=tied)
    ids = text(model, 1, 9)
    before = logits(model, ids)
    model.resize_token_embeddings(60)
    assert model.config.vocab_size == 60
    assert (model.lm_head.weight is model.get_input_embeddings().weight) is tied
    torch.testing.assert_close(logits(model, ids)[..., :50], before, **CLOSE)
    assert model(torch.full((1, 3), 59)).logits.shape == (1, 3, 60)


def test_sampling_is_that_of_the_uncached_model(model):
    ids = text(model, 2, 11)
    drawn = []
    for cached in (True, False):
        torch.manual_seed(0)
        drawn.append(
            model.generate(
                ids, do_sample=True, top_k=5, temperature=0.7, max_new_tokens=6, use_cache=cached
            )
        )
    assert drawn[0].tolist() == drawn[1].tolist()


def test_prefill_in_chunks(model):
    ids = text(model, 2, 23)
    options = {"max_new_tokens": 4, "do_sample": False}
    chunked = model.generate(ids, prefill_chunk_size=7, **options)
    assert chunked.tolist() == model.generate(ids, **options).tolist()


def test_rows_as_the_flattening_collator_packs_them(model):
    documents = [text(model, 1, n, seed=n)[0].tolist() for n in (5, 1, 12)]
    batch = DataCollatorWithFlattening()([{"input_ids": ids} for ids in documents])
    out = model(**{name: torch.as_tensor(batch[name]) for name in ("input_ids", "position_ids")})
    alone = torch.cat([logits(model, torch.tensor([ids])) for ids in documents], dim=1)
    torch.testing.assert_close(out.logits, alone, rtol=0, atol=1e-7)


@pytest.mark.parametrize("variant", EVERY_BUT_ONE)
def test_text_generation_pipeline(variant, byte_tokenizer):
    model = build(variant, vocab_size=256).float()
    write = pipeline("text-generation", model=model, tokenizer=byte_tokenizer)
    out = write(["a memory", "b"], max_new_tokens=4, do_sample=False, batch_size=2)
    one = write("b", max_new_tokens=4, do_sample=False)
    assert out[1][0]["generated_text"] == one[0]["generated_text"]


@pytest.mark.parametrize("variant", EVERY_BUT_ONE)
def test_lora_on_the_projections(variant, tmp_path):
    from peft import LoraConfig, PeftModel, get_peft_model

    model = build(variant).float()
    ids = text(model, 2, 15)
    before = logits(model, ids)
    projections = ["q_proj", "v_proj", "in_proj", "x_proj"]  # the last two are Mamba's
    adapted = get_peft_model(model, LoraConfig(target_modules=projections, r=2))
    torch.testing.assert_close(logits(adapted, ids), before)
    adapted.train()(input_ids=ids, labels=ids).loss.backward()
    trained = [name for name, p in adapted.named_parameters() if p.grad is not None]
    assert trained
    assert all("lora_" in name for name in trained)
    for name, p in adapted.named_parameters():
        if "lora_B" in name:
            p.data.normal_()
    adapted.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(build(variant).float(), tmp_path)
    torch.testing.assert_close(logits(loaded.eval(), ids), logits(adapted.eval(), ids))
    assert adapted.generate(input_ids=ids, max_new_tokens=2, do_sample=False).shape == (2, 17)


@pytest.mark.parametrize("variant", EVERY_BUT_ONE)
def test_lm_eval_harness(variant, byte_tokenizer):
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    model = build(variant, vocab_size=256).float()
    pairs = [("a memory", " remembers"), ("it", " does"), ("", "x y")]
    requests = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)]
    scores = HFLM(pretrained=model, tokenizer=byte_tokenizer, batch_size=2).loglikelihood(requests)
    for (context, continuation), (score, _) in zip(pairs, scores, strict=True):
        before = byte_tokenizer(context or "!").input_ids
        after = byte_tokenizer(continuation).input_ids
        given = logits(model, torch.tensor([before + after]))[0, len(before) - 1 : -1]
        expected = -F.cross_entropy(given, torch.tensor(after), reduction="sum")
        assert score == pytest.approx(expected.item(), abs=1e-3)
