"""Memories over HTTP: read a text once, ask it often, fork it, take it home."""

import openai
import pytest
from saved import greedy
from served import client, events, open_files, serving

import atlas_memory as am
from atlas_memory.reading.memory_file import MemoryFile, inspect, load
from atlas_memory.serving.engine import Capacity
from atlas_memory.serving.server.limits import Limits

TEXT = "The tide came in. \u2603 The tide went out. " * 9


@pytest.fixture(scope="module")
def api(loaded):
    with serving(loaded) as address:
        yield client(address)


@pytest.fixture
def memory(api):
    made = api.post("/memories", body={"text": TEXT, "name": "tide"}, cast_to=dict)
    yield made
    api.delete(f"/memories/{made['id']}", cast_to=dict)


def read(loaded, *texts):
    return am.read(loaded.model, [[*text.encode()] for text in texts])


def ask(api, memory, prompt="", **options):
    options = {"temperature": 0, "max_tokens": 8, **options}
    extra = {"memory": memory["id"]}
    answer = api.completions.create(model="small", prompt=prompt, extra_body=extra, **options)
    return answer.choices[0].text


def written(loaded, memory, prompt=""):
    tokens = greedy(loaded.model, memory, [[*prompt.encode()]])[0]
    return loaded.tokenizer.fast.decode(tokens, skip_special_tokens=True)


def test_a_text_becomes_a_memory_that_answers(api, loaded, memory):
    expected = read(loaded, TEXT)
    assert memory["position"] == len(TEXT.encode())
    assert memory["surprise"] == pytest.approx(expected.surprise, rel=1e-4)
    assert memory["num_bytes"] == expected.num_bytes
    assert (memory["name"], memory["parent"]) == ("tide", None)
    assert ask(api, memory, " Then") == written(loaded, expected, " Then")
    assert ask(api, memory) == written(loaded, expected)
    messages = [{"role": "user", "content": "So?"}]
    chat = api.chat.completions.create(
        model="small",
        messages=messages,
        max_tokens=8,
        temperature=0,
        extra_body={"memory": memory["id"]},
    )
    prompt = "User: So?\n\nAssistant:"
    assert chat.choices[0].message.content == written(loaded, expected, prompt)


def test_a_reading_tells_how_far_it_is(loaded):
    text = TEXT[:300]
    size = len(text.encode())
    with serving(loaded, capacity=Capacity(block=64)) as address:
        told = events(address, "memories", {"text": text, "name": "tide"})
        *progress, made = told
        assert [event["object"] for event in progress] == ["memory.progress"] * len(progress)
        assert [event["read"] for event in progress] == [0, *range(64, size - 1, 64)]
        assert {event["total"] for event in progress} == {size}
        whole = client(address).post("/memories", body={"text": text}, cast_to=dict)
        assert (made["object"], made["position"]) == ("memory", size)
        assert (made["surprise"], made["shown"]) == (whole["surprise"], size)
        *progress, fork = events(address, f"memories/{made['id']}/fork", {"text": text})
        assert (fork["parent"], fork["position"]) == (made["id"], 2 * size)
        assert progress[0]["total"] == size
        (error,) = events(address, "memories", {"text": ""})
        assert "the text is empty" in error["error"]["message"]


def test_list_describe_delete(api, memory):
    listed = api.get("/memories", cast_to=dict)["data"]
    assert memory in listed
    assert api.get(f"/memories/{memory['id']}", cast_to=dict) == memory
    gone = api.post(f"/memories/{memory['id']}/fork", body={}, cast_to=dict)
    api.delete(f"/memories/{gone['id']}", cast_to=dict)
    with pytest.raises(openai.NotFoundError, match="no memory with this id"):
        ask(api, gone)
    assert memory in api.get("/memories", cast_to=dict)["data"]


def test_a_fork_reads_on_and_its_parent_stays(api, loaded, memory):
    more = " But once it stayed."
    body = {"text": more, "name": "stayed"}
    fork = api.post(f"/memories/{memory['id']}/fork", body=body, cast_to=dict)
    assert (fork["parent"], fork["name"]) == (memory["id"], "stayed")
    assert fork["position"] == memory["position"] + len(more)
    assert ask(api, fork, " So") == written(loaded, read(loaded, TEXT, more), " So")
    assert ask(api, memory, " So") == written(loaded, read(loaded, TEXT), " So")
    on = api.post("/memories", body={"text": more, "memory": memory["id"]}, cast_to=dict)
    assert ask(api, on, " So") == ask(api, fork, " So")
    same = api.post(f"/memories/{memory['id']}/fork", body={}, cast_to=dict)
    assert same["id"] != memory["id"]
    assert (same["position"], same["name"]) == (memory["position"], "tide")
    for made in (fork, on, same):
        api.delete(f"/memories/{made['id']}", cast_to=dict)


def test_what_is_downloaded_is_a_memory_file(api, loaded, memory, tmp_path):
    before = open_files()
    content = api.get(f"/memories/{memory['id']}/file", cast_to=openai.HttpxBinaryResponseContent)
    file = tmp_path / "tide.memory"
    file.write_bytes(content.content)
    assert inspect(file).header["position"] == memory["position"]
    mine = am.Memory.load(file, loaded.model)
    assert written(loaded, mine, " x") == ask(api, memory, " x")
    assert {name for name in open_files() - before if not name.startswith("socket")} == set()


def test_surprise_covers_the_text(api, memory):
    told = api.get(f"/memories/{memory['id']}/surprise", cast_to=dict)
    texts, bits = zip(*told["pieces"], strict=True)
    assert "".join(texts) == TEXT
    assert texts[TEXT.index("\u2603")] == "\u2603"
    assert bits[0] is None
    total = memory["surprise"] * (memory["position"] - 1)
    assert sum(bits[1:]) == pytest.approx(total, rel=1e-4)
    fork = api.post(f"/memories/{memory['id']}/fork", body={"text": "abc"}, cast_to=dict)
    told = api.get(f"/memories/{fork['id']}/surprise", cast_to=dict)
    assert [text for text, _ in told["pieces"]] == ["a", "b", "c"]
    assert all(bits > 0 for _, bits in told["pieces"])
    api.delete(f"/memories/{fork['id']}", cast_to=dict)


def test_a_downloaded_file_knows_its_surprise_from_the_start(api, loaded, memory, tmp_path):
    file = tmp_path / "tide.memory"
    told = api.get(f"/memories/{memory['id']}/file", cast_to=openai.HttpxBinaryResponseContent)
    file.write_bytes(told.content)
    with serving(loaded, memories=(load(file, loaded.model),)) as address:
        there = client(address)
        (known,) = there.get("/memories", cast_to=dict)["data"]
        assert (known["name"], known["shown"]) == ("tide", memory["position"])
        pieces = there.get(f"/memories/{known['id']}/surprise", cast_to=dict)["pieces"]
    assert pieces == api.get(f"/memories/{memory['id']}/surprise", cast_to=dict)["pieces"]


def test_memories_are_limited_and_may_be_there_from_the_start(loaded):
    given = (MemoryFile(read(loaded, TEXT), ("book.txt",)),)
    with serving(loaded, limits=Limits(memories=2, shown=5), memories=given) as address:
        api = client(address)
        book = api.get("/memories", cast_to=dict)["data"][0]
        assert book["name"] == "book.txt"
        assert ask(api, book) == written(loaded, given[0].memory)
        made = api.post("/memories", body={"text": TEXT}, cast_to=dict)
        told = api.get(f"/memories/{made['id']}/surprise", cast_to=dict)
        assert "".join(text for text, _ in told["pieces"]) == TEXT[:5]
        for body in ({"text": "one more"}, {"text": ""}):
            with pytest.raises(openai.APIStatusError, match="2 memories are kept already"):
                api.post("/memories", body=body, cast_to=dict)
        with pytest.raises(openai.PermissionDeniedError, match="2 memories are kept already"):
            api.post(f"/memories/{made['id']}/fork", body={}, cast_to=dict)
        api.delete(f"/memories/{book['id']}", cast_to=dict)
        with pytest.raises(openai.BadRequestError, match="the text is empty"):
            api.post("/memories", body={"text": ""}, cast_to=dict)
        assert api.post("/memories", body={"text": "x"}, cast_to=dict)["position"] == 1
