"""OpenAI's own client: completions, chat, streams, models; the texts are those of generate."""

import json
import threading
import urllib.error
import urllib.request

import openai
import pytest
import torch
from openai import OpenAI
from served import client, serving, small

from atlas_memory.serving.engine import Capacity
from atlas_memory.serving.server.limits import Limits

PROMPTS = ["a", "What is it?", "\u2603 snow and \U0001f600", "long " * 30]


@pytest.fixture(scope="module")
def api(loaded):
    limits = Limits(new_tokens=100, prompt_tokens=200)
    with serving(loaded, limits=limits, capacity=Capacity(rows=4, block=64)) as address:
        yield client(address)


def alone(loaded, prompt, tokens=10):
    """What transformers' generate writes after a prompt."""
    ids = torch.tensor([[*prompt.encode()]])
    settings = {"max_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
    out = loaded.model.generate(ids, attention_mask=torch.ones_like(ids), **settings)
    return loaded.tokenizer.fast.decode(out[0, ids.shape[1] :], skip_special_tokens=True)


def complete(api: OpenAI, prompt, **options):
    options = {"temperature": 0, "max_tokens": 10, **options}
    return api.completions.create(model="small", prompt=prompt, **options)


def test_completions_are_those_of_generate(api, loaded):
    for prompt in PROMPTS:
        answer = complete(api, prompt)
        assert answer.choices[0].text == alone(loaded, prompt)
        assert answer.choices[0].finish_reason == "length"
        size = len(prompt.encode())
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (size, 10)
        assert (answer.object, answer.model) == ("text_completion", "small")


def test_many_prompts_ids_and_choices_in_one_request(api, loaded):
    answer = complete(api, PROMPTS, n=2)
    assert [choice.index for choice in answer.choices] == list(range(8))
    expected = [alone(loaded, prompt) for prompt in PROMPTS for _ in range(2)]
    assert [choice.text for choice in answer.choices] == expected
    assert answer.usage.prompt_tokens == sum(len(p.encode()) for p in PROMPTS)
    ids = [[*b"one"], [*b"two"]]
    texts = [choice.text for choice in complete(api, ids).choices]
    assert texts == [alone(loaded, "one"), alone(loaded, "two")]
    assert complete(api, ids[0]).choices[0].text == texts[0]


def test_streams_tell_the_same_text_piece_by_piece(api, loaded):
    options = {"stream": True, "stream_options": {"include_usage": True}}
    events = list(complete(api, PROMPTS[1], **options))
    *pieces, last, usage = events
    assert "".join(e.choices[0].text for e in [*pieces, last]) == alone(loaded, PROMPTS[1])
    assert len(pieces) > 2
    assert last.choices[0].finish_reason == "length"
    assert usage.choices == []
    assert usage.usage.completion_tokens == 10
    both = list(complete(api, PROMPTS[:2], stream=True))
    for index in (0, 1):
        mine = [e.choices[0].text for e in both if e.choices[0].index == index]
        assert "".join(mine) == alone(loaded, PROMPTS[index])


def test_clients_at_the_same_time_get_their_own_answers(api, loaded):
    asked = [f"{'x' * (7 * i % 23)} number {i}" for i in range(12)]
    texts = {}

    def ask(prompt, count):
        texts[prompt] = complete(api, prompt, max_tokens=count).choices[0].text

    counts = [3 + 5 * i % 17 for i in range(12)]
    threads = [threading.Thread(target=ask, args=a) for a in zip(asked, counts, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = {p: alone(loaded, p, n) for p, n in zip(asked, counts, strict=True)}
    assert texts == expected


def test_chat_without_a_template_of_the_tokenizers(api, loaded):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Who?"}]},
    ]
    options = {"model": "small", "messages": messages, "temperature": 0}
    answer = api.chat.completions.create(**options, max_completion_tokens=8)
    expected = alone(loaded, "System: Be brief.\n\nUser: Who?\n\nAssistant:", 8)
    assert answer.choices[0].message.content == expected
    assert answer.choices[0].message.role == "assistant"
    pieces = api.chat.completions.create(**options, max_tokens=8, stream=True)
    assert "".join(p.choices[0].delta.content for p in pieces) == expected


def test_chat_with_the_tokenizers_template():
    loaded = small()
    template = "{% for m in messages %}{{ '[' + m.role + ']' + m.content }}{% endfor %}[a]"
    loaded.tokenizer.fast.chat_template = template
    with serving(loaded) as address:
        api = client(address)
        options = {"model": "small", "temperature": 0, "max_tokens": 5}
        asked = [{"role": "user", "content": "hi"}]
        answer = api.chat.completions.create(messages=asked, **options)
        assert answer.choices[0].message.content == alone(loaded, "[user]hi[a]", 5)
        loaded.tokenizer.fast.chat_template = "{{ raise_exception('roles must alternate') }}"
        with pytest.raises(openai.BadRequestError, match="roles must alternate"):
            api.chat.completions.create(messages=asked, **options)


def test_a_stop_ends_the_text_and_is_not_shown(api, loaded):
    text = alone(loaded, "abc", 30)
    stop = text[4:7]
    cut = text[: text.index(stop)]
    answer = complete(api, "abc", max_tokens=30, stop=[stop, "never"])
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (cut, "stop")
    pieces = list(complete(api, "abc", max_tokens=30, stop=stop, stream=True))
    assert "".join(p.choices[0].text for p in pieces) == cut
    whole = complete(api, "abc", max_tokens=30, stop=text[-1] + "\0never").choices[0].text
    assert whole == text


def test_draws_repeat_with_their_seed(api):
    options = {"temperature": 1.2, "top_p": 0.95, "max_tokens": 20, "seed": 5}
    first, second = (complete(api, "abc", **options).choices[0].text for _ in range(2))
    different = complete(api, "abc", **{**options, "seed": 6}).choices[0].text
    assert first == second != different
    two = complete(api, "abc", **options, n=2, extra_body={"top_k": 50, "min_p": 0.001}).choices
    assert two[0].text != two[1].text


def test_models_and_status(api):
    assert [model.id for model in api.models.list()] == ["small"]
    assert api.models.retrieve("small").owned_by == "atlas-memory"
    with pytest.raises(openai.NotFoundError, match="no such model"):
        complete(api, "x", extra_body={"model": "other"})
    status = api.get("/status", cast_to=dict)
    assert status["running"] == status["waiting"] == 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": -1}, "max_tokens: Input should be greater than or equal to 0"),
        ({"max_tokens": 10**9}, "max_tokens=1000000000: at most 100 tokens"),
        ({"temperature": 3}, "temperature: Input should be less than or equal to 2"),
        ({"n": 33}, "more than 32 answers"),
        ({"extra_body": {"best_off": 1}}, "best_off: Extra inputs are not permitted"),
        ({"suffix": "x"}, "suffix is not supported by this server"),
        ({"prompt": "x" * 201}, "the prompt has 201 tokens, more than 200"),
        ({"prompt": [1, 256]}, "a token id is not in the vocabulary of 256"),
        ({"prompt": [-1]}, "a token id is not in the vocabulary of 256"),
        ({"prompt": ""}, "the prompt is empty"),
    ],
)
def test_a_mistake_is_one_sentence(fields, message, api):
    with pytest.raises(openai.BadRequestError, match=message):
        api.completions.create(model="small", **{"prompt": "x", **fields})


@pytest.mark.parametrize("path", ["completions", "chat/completions", "tokenize"])
@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain"])
def test_a_body_that_is_not_said_to_be_json_is_told_which_header_to_add(path, kind, api):
    """What `curl -d '{"prompt": ..}'` sends without -H."""
    url = f"{api.base_url}{path}"
    asked = urllib.request.Request(url, b'{"prompt": "x"}', {"content-type": kind})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(asked)
    error = json.load(refused.value)["error"]
    assert refused.value.code == 415
    assert error["type"] == "invalid_request_error"
    assert "add the header `Content-Type: application/json`" in error["message"]


def test_a_request_out_of_time_gets_what_there_is(loaded):
    with serving(loaded, limits=Limits(seconds=2.0)) as address:
        answer = complete(client(address), "abc", max_tokens=4096).choices[0]
        assert 0 < len(answer.text) < 4000
        assert answer.finish_reason == "length"


def test_shutting_down_finishes_what_runs(loaded):
    texts = []
    with serving(loaded) as address:
        api = client(address)
        stream = complete(api, "abc", max_tokens=60, stream=True)
        first = next(stream).choices[0].text
        rest = threading.Thread(
            target=lambda: texts.extend(event.choices[0].text for event in stream)
        )
        rest.start()
    rest.join()
    assert first + "".join(texts) == alone(loaded, "abc", 60)
    with pytest.raises(openai.APIConnectionError):
        complete(api, "abc")


def test_a_full_server_says_so(loaded):
    with serving(loaded, capacity=Capacity(rows=1, waiting=2)) as address:
        with pytest.raises(openai.InternalServerError, match="2 requests wait already"):
            complete(client(address), PROMPTS, max_tokens=200)
        assert complete(client(address), "a").choices[0].text == alone(loaded, "a")
