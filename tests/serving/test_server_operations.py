"""Health, figures, tokens and the description."""

import json
import re
import urllib.error
import urllib.request

import openai
import pytest
from served import client, serving, small

from atlas_memory.serving.engine import Capacity
from atlas_memory.serving.server.guard import Access


def fetch(url, **headers):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return answer.status, answer.read().decode(), answer.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(), error.headers


@pytest.fixture(scope="module")
def address():
    with serving(small(), capacity=Capacity(block=16, prefix_bytes=10**7)) as address:
        yield address


def samples(address):
    status, text, headers = fetch(f"{address}/metrics")
    assert status == 200
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {}
    for line in text.splitlines():
        if line.startswith("#"):
            assert re.fullmatch(r"# (HELP|TYPE) atlas_[a-z_]+ .+", line)
        else:
            name, value = re.fullmatch(r"(atlas_[a-z_]+(?:\{[^}]*\})?) (\S+)", line).groups()
            found[name] = float(value)
    return found


def test_figures(address):
    api, before = client(address), samples(address)
    prompt = "A prompt of more than one block of tokens."
    for _ in range(2):
        api.completions.create(model="small", prompt=prompt, max_tokens=5, temperature=0)
    with pytest.raises(openai.NotFoundError):
        api.get("/nothing/at/all", cast_to=dict)
    memory = api.post("/memories", body={"text": "abc"}, cast_to=dict)
    after = samples(address)
    path = 'atlas_requests_total{method="POST",path="/v1/completions",status="200"}'
    assert after[path] - before.get(path, 0) == 2
    assert after['atlas_requests_total{method="any",path="none",status="404"}'] == 1
    assert after['atlas_tokens_total{kind="written"}'] == 10
    assert after['atlas_tokens_total{kind="reused"}'] == 32
    assert after['atlas_tokens_total{kind="read"}'] == len(prompt) + len(prompt) - 32 + 2
    assert after["atlas_first_token_seconds_count"] == 2
    assert after['atlas_first_token_seconds_bucket{le="+Inf"}'] == 2
    assert after["atlas_memories"] == 1
    assert after["atlas_memories_bytes"] == memory["num_bytes"]
    assert 0 < after["atlas_prefix_cache_bytes"] <= 10**7
    assert after["atlas_requests_running"] == after["atlas_requests_waiting"] == 0


def test_health_and_description(address):
    assert fetch(f"{address}/health")[:2] == (200, '{"status":"ok"}')
    described = json.loads(fetch(f"{address}/openapi.json")[1])
    assert {"/v1/completions", "/v1/memories", "/v1/tokenize"} <= set(described["paths"])
    status, page, headers = fetch(f"{address}/docs")
    assert status == 200
    assert "default-src 'none'" in headers["content-security-policy"]
    for path in described["paths"]:
        assert f" {path}</code>" in page
    assert "frequency_penalty" in page
    assert not re.search(r"<script|https?://", page)


def test_what_is_open_to_all():
    with serving(small(), access=Access("secret", None)) as address:
        for path in ("/health", "/docs"):
            assert fetch(f"{address}{path}")[0] == 200
        for path in ("/metrics", "/openapi.json", "/v1/tokenize"):
            assert fetch(f"{address}{path}")[0] == 401
        assert fetch(f"{address}/metrics", Authorization="Bearer secret")[0] == 200


def test_tokens(address):
    api = client(address)
    told = api.post("/tokenize", body={"text": "a\u2603"}, cast_to=dict)
    assert told["tokens"] == [97, 0xE2, 0x98, 0x83]
    assert told["texts"] == ["a", "bytes:\\xe2", "bytes:\\x98", "bytes:\\x83"]
    assert api.post("/tokenize", body={"text": ""}, cast_to=dict)["count"] == 0
    with pytest.raises(openai.BadRequestError, match="text: Field required"):
        api.post("/tokenize", body={}, cast_to=dict)
