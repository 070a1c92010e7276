"""What OpenAI's API defines beside the text: scores, echo, bias, penalties, the best of several."""

import math
from collections import Counter

import openai
import pytest
import torch
from openai.types import Completion
from openai.types.chat import ChatCompletion
from served import client, serving, small

from atlas_memory.data.tokenizer import PAD, UNUSED
from atlas_memory.serving.engine import Capacity

PROMPT = "What is it? \u2603"
IDS = [*PROMPT.encode()]


@pytest.fixture(scope="module")
def loaded():
    return small(dtype=torch.float64)


@pytest.fixture(scope="module")
def api(loaded):
    with serving(loaded, capacity=Capacity(rows=8, block=8, prefix_bytes=10**7)) as address:
        yield client(address)


def complete(api, prompt=PROMPT, **options):
    options = {"temperature": 0, "max_tokens": 6, **options}
    answer = api.completions.create(model="small", prompt=prompt, **options)
    return answer if options.get("stream") else answer.choices[0]


@torch.no_grad()
def logprobs(loaded, ids):
    """Log p [t, v] of what follows each token."""
    return loaded.model(torch.tensor([ids])).logits[0].log_softmax(-1)


def generated(loaded, ids, tokens=6):
    out = loaded.model.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids)),
        max_new_tokens=tokens,
        do_sample=False,
        pad_token_id=0,
    )
    return out[0, len(ids) :].tolist()


def test_scores_are_those_of_the_model(api, loaded):
    written = generated(loaded, IDS)
    found = logprobs(loaded, IDS + written)[len(IDS) - 1 : -1]
    choice = complete(api, logprobs=3)
    told = choice.logprobs
    expected = [float(row[token]) for row, token in zip(found, written, strict=True)]
    assert told.token_logprobs == pytest.approx(expected)
    for row, top in zip(found, told.top_logprobs, strict=True):
        assert sorted(top.values(), reverse=True) == pytest.approx(row.topk(3).values.tolist())
    assert len(told.tokens) == len(told.text_offset) == 6
    assert told.text_offset[0] == 0
    plain = [(t, o) for t, o in zip(told.tokens, told.text_offset, strict=True) if t.isascii()]
    assert all(t.startswith("bytes:") or choice.text[o : o + len(t)] == t for t, o in plain)
    assert complete(api).logprobs is None
    alone = complete(api, logprobs=0).logprobs
    assert [len(top) for top in alone.top_logprobs] == [1] * 6


def test_a_draw_is_scored_without_its_temperature(api, loaded):
    told = complete(api, temperature=1.7, seed=3, logprobs=5).logprobs
    ids = [int(t[8:], 16) if t.startswith("bytes:") else ord(t) for t in told.tokens]
    found = logprobs(loaded, IDS + ids)[len(IDS) - 1 : -1]
    expected = [float(row[token]) for row, token in zip(found, ids, strict=True)]
    assert told.token_logprobs == pytest.approx(expected)
    sizes = [len(top) for top in told.top_logprobs]
    assert set(sizes) <= {5, 6}


def test_echo_scores_the_prompt(api, loaded):
    found = logprobs(loaded, IDS)
    for tokens in (0, 1, 4):
        choice = complete(api, echo=True, logprobs=1, max_tokens=tokens)
        told = choice.logprobs
        assert choice.text.startswith(PROMPT)
        assert len(told.tokens) == len(IDS) + tokens
        assert told.token_logprobs[0] is told.top_logprobs[0] is None
        expected = [float(found[i, token]) for i, token in enumerate(IDS[1:])]
        assert told.token_logprobs[1 : len(IDS)] == pytest.approx(expected)
        best = [float(row.max()) for row in found[:-1]]
        tops = [max(top.values()) for top in told.top_logprobs[1 : len(IDS)]]
        assert tops == pytest.approx(best)
        assert told.text_offset[: len(IDS)] == [min(i, 12) for i in range(len(IDS))]
        assert told.tokens[12:15] == ["bytes:\\xe2", "bytes:\\x98", "bytes:\\x83"]
    assert complete(api, echo=True).text == PROMPT + complete(api).text
    both = api.completions.create(
        model="small", prompt=[IDS, [97, 98]], echo=True, logprobs=1, max_tokens=1, temperature=0
    )
    assert [len(c.logprobs.tokens) for c in both.choices] == [len(IDS) + 1, 3]


def test_an_echo_behind_a_memory_is_predicted_from_its_first_token(api, loaded):
    made = api.post("/memories", body={"text": "The tide."}, cast_to=dict)
    told = complete(api, " So", echo=True, logprobs=1, extra_body={"memory": made["id"]}).logprobs
    ids = [*b"The tide. So"]
    found = logprobs(loaded, ids)
    expected = [float(found[i - 1, ids[i]]) for i in (9, 10, 11)]
    assert told.token_logprobs[:3] == pytest.approx(expected)


@pytest.mark.parametrize("options", [{}, {"echo": True}])
def test_streams_carry_the_same_scores(api, options):
    whole = complete(api, logprobs=2, max_tokens=12, **options)
    events = list(complete(api, logprobs=2, max_tokens=12, stream=True, **options))
    assert "".join(event.choices[0].text for event in events) == whole.text
    for name in ("tokens", "text_offset"):
        found = [x for e in events for x in getattr(e.choices[0].logprobs, name) or []]
        assert found == getattr(whole.logprobs, name)
    found = [x for e in events for x in e.choices[0].logprobs.token_logprobs]
    assert found[1:] == pytest.approx(whole.logprobs.token_logprobs[1:])


def test_chat_scores(api, loaded):
    options = {"model": "small", "messages": [{"role": "user", "content": "So?"}]}
    options |= {"temperature": 0, "max_tokens": 5, "logprobs": True}
    ids = [*b"User: So?\n\nAssistant:"]
    written = generated(loaded, ids, 5)
    found = logprobs(loaded, ids + written)[len(ids) - 1 : -1]
    answer = api.chat.completions.create(**options, top_logprobs=4)
    content = answer.choices[0].logprobs.content
    assert [c.bytes for c in content] == [[token] for token in written]
    expected = [float(row[token]) for row, token in zip(found, written, strict=True)]
    assert [c.logprob for c in content] == pytest.approx(expected)
    for row, told in zip(found, content, strict=True):
        best = [ord(PAD[0]) if i == UNUSED else i for i in row.topk(4).indices.tolist()]
        assert [t.bytes[0] for t in told.top_logprobs] == best
    assert api.chat.completions.create(**options).choices[0].logprobs.content[0].top_logprobs == []
    events = api.chat.completions.create(**options, top_logprobs=4, stream=True)
    streamed = [c for e in events for c in e.choices[0].logprobs.content]
    assert [c.token for c in streamed] == [c.token for c in content]


def test_bias(api, loaded):
    first = generated(loaded, IDS, 1)[0]
    told = complete(api, logit_bias={str(ord("x")): 100}, logprobs=0)
    assert told.text == "xxxxxx"
    assert told.logprobs.token_logprobs[0] < -1  # of the model, not of the bias
    banned = complete(api, logit_bias={str(first): -100}, logprobs=1, max_tokens=1).logprobs
    second = int(logprobs(loaded, IDS)[-1].topk(2).indices[1])
    assert banned.tokens == [chr(second) if second < 128 else f"bytes:\\x{second:02x}"]
    drawn = complete(api, logit_bias={str(ord("x")): 100}, temperature=1, seed=1)
    assert drawn.text == "xxxxxx"


@pytest.mark.parametrize(("presence", "frequency"), [(1.5, 0), (0, 0.7), (-2, 1), (2, 2)])
def test_penalties(api, loaded, presence, frequency):
    """mu[j] - c[j] * frequency - (c[j] > 0) * presence, c counting what was written."""
    ids, count = list(IDS), Counter()
    for _ in range(12):
        mu = logprobs(loaded, ids)[-1]
        for token, times in count.items():
            mu[token] -= times * frequency + presence
        ids.append(int(mu.argmax()))
        count[ids[-1]] += 1
    options = {"presence_penalty": presence, "frequency_penalty": frequency, "max_tokens": 12}
    text = complete(api, **options).text
    assert text == loaded.tokenizer.fast.decode(ids[len(IDS) :], skip_special_tokens=True)


def test_the_best_of_several(api):
    options = {"temperature": 1.3, "seed": 4, "logprobs": 0, "max_tokens": 5}
    tries = api.completions.create(model="small", prompt=["a", "b"], n=4, **options)
    best = api.completions.create(model="small", prompt=["a", "b"], n=2, best_of=4, **options)
    for i in (0, 1):
        ranked = sorted(
            tries.choices[4 * i : 4 * i + 4],
            key=lambda c: -sum(c.logprobs.token_logprobs) / len(c.logprobs.token_logprobs),
        )
        assert [c.text for c in best.choices[2 * i : 2 * i + 2]] == [c.text for c in ranked[:2]]
    assert [c.index for c in best.choices] == [0, 1, 2, 3]
    assert (best.usage.completion_tokens, best.usage.prompt_tokens) == (40, 2)
    quiet = api.completions.create(
        model="small", prompt="a", best_of=4, **{**options, "logprobs": None}
    )
    assert quiet.choices[0].logprobs is None
    assert quiet.choices[0].text == best.choices[0].text


def test_usage_tells_what_was_known_before(api, loaded):
    prompt = "A prompt of more than two blocks of eight."
    usages = []
    for text in (prompt, prompt, prompt[:20] + "?" * 20):
        answer = api.completions.create(model="small", prompt=text, max_tokens=2, temperature=0)
        usages.append(answer.usage.prompt_tokens_details.cached_tokens)
        new = generated(loaded, [*text.encode()], 2)
        expected = loaded.tokenizer.fast.decode(new, skip_special_tokens=True)
        assert answer.choices[0].text == expected
    assert usages == [0, 40, 16]


def test_openais_types_accept_every_response(api):
    """Validated strictly, which the client itself does not do."""
    options = {"model": "small", "max_tokens": 4}
    for more in ({}, {"logprobs": 2, "n": 2}, {"best_of": 2}, {"stop": "e"}, {"echo": True}):
        raw = api.completions.with_raw_response.create(prompt="abc", **options, **more)
        Completion.model_validate_json(raw.content, strict=False)
    asked = [{"role": "user", "content": "hi"}]
    for more in ({}, {"logprobs": True, "top_logprobs": 2}, {"n": 2}):
        raw = api.chat.completions.with_raw_response.create(messages=asked, **options, **more)
        found = ChatCompletion.model_validate_json(raw.content, strict=False)
        assert all(math.isfinite(len(choice.message.content)) for choice in found.choices)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"logprobs": 6}, "logprobs: Input should be less than or equal to 5"),
        ({"best_of": 1, "n": 2}, "best_of=1 is less than n=2"),
        ({"best_of": 2, "stream": True}, "leave out stream"),
        ({"best_of": 100}, "more than 32 answers"),
        ({"presence_penalty": 3}, "presence_penalty: Input should be less"),
        ({"logit_bias": {"256": 1}}, "a token id is not in the vocabulary of 256"),
        ({"logit_bias": {"x": 1}}, "String should match pattern"),
        ({"logit_bias": {"1": 101}}, "less than or equal to 100"),
        ({"suffix": "x"}, "suffix is not supported by this server"),
        ({"extra_body": {"response_format": {"type": "json_object"}}}, "response_format is not"),
        ({"extra_body": {"tools": [{}]}}, "tools is not supported by this server"),
    ],
)
def test_mistakes(api, fields, message):
    with pytest.raises(openai.BadRequestError, match=message):
        complete(api, **fields)


def test_mistakes_in_chat(api):
    asked = {"model": "small", "messages": [{"role": "user", "content": "hi"}]}
    with pytest.raises(openai.BadRequestError, match="set logprobs to true as well"):
        api.chat.completions.create(**asked, top_logprobs=2)
    with pytest.raises(openai.BadRequestError, match="less than or equal to 20"):
        api.chat.completions.create(**asked, logprobs=True, top_logprobs=21)
