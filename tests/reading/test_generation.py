"""Text that is written as it comes, and transformers' options."""

import pytest
import torch
from saved import byte_model, same

import atlas_memory as am
from atlas_memory.data.tokenizer import load_tokenizer
from atlas_memory.reading.generation import Stream, generate, generation_config

WORDS = "caf\u00e9 \u2603 \U0001f600 ok"


def written(tokenizer, tokens):
    parts = []
    stream = Stream(tokenizer, parts.append)
    stream.put(torch.tensor([[1, 2]]))
    for token in tokens:
        stream.put(torch.tensor([token]))
    stream.end()
    return parts


def test_whole_characters_come_one_by_one():
    parts = written(load_tokenizer("bytes"), WORDS.encode())
    assert parts == list(WORDS)


def test_broken_characters_do_not_stop_the_text():
    parts = written(load_tokenizer("bytes"), [0xE2] * 30 + [*b"end"])
    assert "".join(parts).endswith("end")
    assert len(parts) > 4


def test_generate_is_transformers_own_and_remembers():
    model, tokenizer = byte_model(), load_tokenizer("bytes")
    config = generation_config(model, {"max_new_tokens": 6, "do_sample": False})
    prompt, parts = [*b"a prompt"], []
    stream = Stream(tokenizer, parts.append)
    after = generate(model, None, prompt, config, stream)
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    expected = model.generate(ids, attention_mask=mask, generation_config=config)[0].tolist()
    assert prompt + stream.tokens == expected
    assert "".join(parts) == tokenizer.fast.decode(stream.tokens, skip_special_tokens=True)
    assert same(after, am.read(model, [prompt, stream.tokens]))


def test_any_field_of_transformers_and_no_other():
    model = byte_model()
    config = generation_config(model, {"typical_p": 0.9, "no_repeat_ngram_size": 3})
    assert (config.typical_p, config.no_repeat_ngram_size, config.pad_token_id) == (0.9, 3, 0)
    assert model.generation_config.typical_p != 0.9
    with pytest.raises(ValueError, match=r"unknown option 'temprature'.*'temperature'"):
        generation_config(model, {"temprature": 1.0})
    with pytest.raises(ValueError, match="max_new_tokens"):
        generation_config(model, {"max_new_tokens": "many"})
