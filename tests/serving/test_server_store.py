"""Memories that outlive the server, and files that are sent to it."""

import gzip
import io
import json
import zipfile
from http.client import HTTPConnection
from urllib.parse import urlsplit

import openai
import pytest
import torch
from safetensors.torch import save as serialize
from saved import byte_model, greedy, same
from served import client, serving, upload

import atlas_memory as am
from atlas_memory.family import variants
from atlas_memory.reading.memory_file import MemoryFile, _checksum, inspect_bytes, to_bytes
from atlas_memory.serving.memory_check import MemoryCheck
from atlas_memory.serving.server.limits import Limits
from atlas_memory.serving.server.store import Store

TEXT = "The tide came in. \u2603 The tide went out. " * 5


@pytest.fixture(scope="module")
def api(loaded):
    with serving(loaded, limits=Limits(upload=5_000_000)) as address:
        yield client(address)


@pytest.fixture(scope="module")
def file(loaded):
    return to_bytes(MemoryFile(am.read(loaded.model, [[*TEXT.encode()]]), ("tide.txt",)))


def ask(api, memory, prompt=" So"):
    options = {"model": "small", "prompt": prompt, "temperature": 0, "max_tokens": 8}
    return api.completions.create(**options, extra_body={"memory": memory["id"]}).choices[0].text


def download(api, memory):
    path = f"/memories/{memory['id']}/file"
    return api.get(path, cast_to=openai.HttpxBinaryResponseContent).content


def alike(one, two):
    """The same entries and tensors; safetensors does not order its entries."""
    a, b = inspect_bytes(one, "one"), inspect_bytes(two, "two")
    same_tensors = all(torch.equal(a.tensors[name], b.tensors[name]) for name in a.tensors)
    return len(one) == len(two) and a.header == b.header and same_tensors


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_memories_survive_a_restart(loaded, tmp_path):
    with serving(loaded, store=Store(tmp_path, loaded.model)) as address:
        api = client(address)
        tide = api.post("/memories", body={"text": TEXT, "name": "tide"}, cast_to=dict)
        fork = api.post(f"/memories/{tide['id']}/fork", body={"text": " But."}, cast_to=dict)
        gone = api.post("/memories", body={"text": "x"}, cast_to=dict)
        api.delete(f"/memories/{gone['id']}", cast_to=dict)
        told = [ask(api, memory) for memory in (tide, fork)]
        surprise = api.get(f"/memories/{tide['id']}/surprise", cast_to=dict)
        kept = download(api, tide)
    assert names(tmp_path) == sorted(f"{m['id']}.memory" for m in (tide, fork))
    (tmp_path / f".{tide['id']}.memory.17.draft").write_bytes(b"half")
    (tmp_path / ".tmpSiJiCX").write_bytes(b"half, by safetensors")
    with serving(loaded, store=Store(tmp_path, loaded.model)) as address:
        api = client(address)
        listed = api.get("/memories", cast_to=dict)["data"]
        assert sorted(m["id"] for m in listed) == sorted([tide["id"], fork["id"]])
        assert [m for m in listed if m["id"] == tide["id"]] == [tide]
        assert [ask(api, memory) for memory in (tide, fork)] == told
        assert api.get(f"/memories/{tide['id']}/surprise", cast_to=dict) == surprise
        assert alike(download(api, tide), kept)
        assert alike(kept, (tmp_path / f"{tide['id']}.memory").read_bytes())
        assert len(names(tmp_path)) == 2


def test_stored_memories_need_not_be_in_ram(loaded, tmp_path):
    with serving(
        loaded, store=Store(tmp_path, loaded.model), limits=Limits(resident_bytes=0)
    ) as address:
        api = client(address)
        made = [api.post("/memories", body={"text": TEXT[i:]}, cast_to=dict) for i in range(3)]
        for i, memory in enumerate(made):
            expected = am.read(loaded.model, [[*TEXT[i:].encode()]])
            tokens = greedy(loaded.model, expected, [[*b" So"]])[0]
            assert ask(api, memory) == loaded.tokenizer.fast.decode(
                tokens, skip_special_tokens=True
            )


def test_a_damaged_file_is_named_and_the_others_are_there(loaded, tmp_path, caplog):
    with serving(loaded, store=Store(tmp_path, loaded.model)) as address:
        api = client(address)
        made = [api.post("/memories", body={"text": TEXT}, cast_to=dict) for _ in range(3)]
    whole, cut, changed = (tmp_path / f"{memory['id']}.memory" for memory in made)
    cut.write_bytes(cut.read_bytes()[:-10])
    data = bytearray(changed.read_bytes())
    data[-10] ^= 1
    changed.write_bytes(data)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "mine.memory").write_bytes(whole.read_bytes())
    with serving(loaded, store=Store(tmp_path, loaded.model)) as address:
        api = client(address)
        assert cut.name in caplog.text
        assert "mine.memory" in caplog.text
        listed = [m["id"] for m in api.get("/memories", cast_to=dict)["data"]]
        assert sorted(listed) == sorted([made[0]["id"], made[2]["id"]])
        ask(api, made[0])
        with pytest.raises(openai.InternalServerError, match="altered or damaged"):
            ask(api, made[2])
        ask(api, made[0])
    assert len(names(tmp_path)) == 5
    caplog.clear()


def test_a_folder_is_one_servers_and_one_models(loaded, tmp_path, caplog):
    store = Store(tmp_path, loaded.model)
    with pytest.raises(ValueError, match="another server keeps its memories in"):
        Store(tmp_path, loaded.model)
    with serving(loaded, store=store) as address:
        client(address).post("/memories", body={"text": TEXT}, cast_to=dict)
    other = Store(tmp_path, byte_model(seed=1))
    assert other.entries() == []
    assert "belongs to another model" in caplog.text
    other.close()
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"cannot keep memories in .*file"):
        Store(tmp_path / "file", loaded.model)
    caplog.clear()


def test_upload_and_download_are_inverse(api, loaded, file):
    memory = upload(api, file)
    assert memory["name"] == "tide.txt"
    assert memory["position"] == len(TEXT.encode())
    mine = am.read(loaded.model, [[*TEXT.encode()]])
    assert ask(api, memory) == loaded.tokenizer.fast.decode(
        greedy(loaded.model, mine, [[*b" So"]])[0]
    )
    made = api.post("/memories", body={"text": TEXT, "name": "tide"}, cast_to=dict)
    once = download(api, made)
    again = upload(api, once)
    assert again["id"] != made["id"]
    assert alike(download(api, again), once)
    surprise = [api.get(f"/memories/{m['id']}/surprise", cast_to=dict) for m in (made, again)]
    assert surprise[0]["pieces"] == surprise[1]["pieces"]
    assert upload(api, once, name="another")["name"] == "another"
    first = to_bytes(MemoryFile(am.read(loaded.model, [[7]])))
    assert upload(api, first)["position"] == 1


@pytest.mark.parametrize("variant", variants())
def test_every_memory_of_a_model_passes_its_check(variant):
    model = byte_model(variant)
    check = MemoryCheck(model)
    for length in (1, 2, 7, 65, 130):
        memory = am.read(model, [[*range(length)]])
        check.contents(inspect_bytes(to_bytes(MemoryFile(memory)), "it"), "it")
        check.trial(memory, "it")


def forged(file, tensors=None, **header):
    """The file with other contents and the right checksum."""
    contents = inspect_bytes(file, "it")
    plain = {"format": "atlas memory 2"}
    plain |= {name: json.dumps(value) for name, value in contents.header.items()}
    plain |= {name: json.dumps(value) for name, value in header.items()}
    tensors = {**contents.tensors, **(tensors or {})}
    return serialize(tensors, plain | {"checksum": _checksum(plain, tensors)})


def nested(file):
    deep = "[" * 100_000 + "]" * 100_000
    plain = {"format": "atlas memory 2", "model": deep}
    return serialize({}, plain | {"checksum": _checksum(plain, {})})


def swapped_state(file):
    states = inspect_bytes(file, "it").header["states"]
    return forged(file, states=[{**states[0], "state": "cli.__main__.main"}, *states[1:]])


def first_tensor(file):
    return next(name for name in sorted(inspect_bytes(file, "it").tensors) if "layers" in name)


HOSTILE = {
    "empty": lambda file: b"",
    "text": lambda file: b"a text and no memory at all",
    "cut": lambda file: file[:-1],
    "cut in the header": lambda file: file[:60],
    "more behind it": lambda file: file + b"x",
    "flipped bit": lambda file: file[:-9] + bytes([file[-9] ^ 1]) + file[-8:],
    "a header of a gigabyte": lambda file: (2**30).to_bytes(8, "little") + file[8:],
    "a header of 2^64": lambda file: b"\xff" * 8 + file[8:],
    "zip": lambda file: zipped(file),
    "gzip bomb": lambda file: gzip.compress(bytes(50_000_000)),
    "nested": nested,
    "code": swapped_state,
    "no states": lambda file: forged(file, states=[]),
    "half the states": lambda file: forged(
        file, states=inspect_bytes(file, "it").header["states"][:1]
    ),
    "states of a number": lambda file: forged(file, states=7),
    "position": lambda file: forged(file, position=2**60),
    "position of a text": lambda file: forged(file, position="7"),
    "two rows": lambda file: forged(file, rows=2),
    "model": lambda file: forged(file, model={"layers": "x"}),
    "model of a list": lambda file: forged(file, model=[]),
    "last": lambda file: forged(file, {"last": torch.tensor([[256]])}),
    "last of floats": lambda file: forged(file, {"last": torch.zeros(1, 1)}),
    "bits": lambda file: forged(file, {"bits": torch.zeros(3, dtype=torch.float64)}),
    "not finite": lambda file: forged(
        file, {"bits": torch.full((1,), float("nan"), dtype=torch.float64)}
    ),
    "another shape": lambda file: forged(file, {first_tensor(file): torch.zeros(1, 9, 9, 9)}),
    "another type": lambda file: forged(
        file, {first_tensor(file): inspect_bytes(file, "").tensors[first_tensor(file)].double()}
    ),
    "note": lambda file: forged(file, note={"name": 7}),
    "long name": lambda file: forged(file, note={"name": "x" * 300}),
    "sources": lambda file: forged(file, sources=7),
    "another model": lambda file: to_bytes(MemoryFile(am.read(byte_model(seed=1), [[1, 2]]))),
    "another variant": lambda file: to_bytes(MemoryFile(am.read(byte_model("titans"), [[1, 2]]))),
}


def zipped(file):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../etc/tide.memory", file)
    return data.getvalue()


@pytest.mark.parametrize("how", HOSTILE)
def test_what_is_no_memory_of_this_model_is_refused(how, api, file):
    before = len(api.get("/memories", cast_to=dict)["data"])
    with pytest.raises(openai.BadRequestError, match=r"the file|its name"):
        upload(api, HOSTILE[how](file))
    assert len(api.get("/memories", cast_to=dict)["data"]) == before
    assert api.get("/status", cast_to=dict)["running"] == 0


def test_a_text_is_no_damaged_memory(api):
    with pytest.raises(openai.BadRequestError, match=r"the file is no memory file; `atlas memor"):
        upload(api, HOSTILE["text"](b""))


def test_names_are_never_paths(loaded, file, tmp_path):
    with serving(loaded, store=Store(tmp_path / "store", loaded.model)) as address:
        api = client(address)
        for name in ("../../evil", "/etc/passwd", "a\0b", "..", "c:\\x", "\u202egpj"):
            made = upload(api, file, name=name, filename=name)
            assert made["name"] == name
        with pytest.raises(openai.NotFoundError):
            api.get("/memories/..%2f..%2fetc%2fpasswd/file", cast_to=dict)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    assert len(names(tmp_path / "store")) == 6
    assert all(name.startswith("mem_") for name in names(tmp_path / "store"))


def test_too_large_and_too_many(loaded, file):
    with serving(loaded, limits=Limits(upload=len(file) + 1_000, memories=1)) as address:
        api = client(address)
        with pytest.raises(openai.APIStatusError, match="the body is larger than") as refused:
            upload(api, file + bytes(2_000))
        assert refused.value.status_code == 413
        upload(api, file)
        with pytest.raises(openai.PermissionDeniedError, match="1 memories are kept"):
            upload(api, file)
    size = am.read(loaded.model, [[1, 2]]).num_bytes
    with serving(loaded, limits=Limits(memory_bytes=size + 10)) as address:
        api = client(address)
        upload(api, file)
        with pytest.raises(openai.PermissionDeniedError, match="memories may have"):
            api.post("/memories", body={"text": "abc"}, cast_to=dict)


def test_a_form_without_a_file(api):
    url = urlsplit(str(api.base_url))
    begin = b'--x\r\nContent-Disposition: form-data; name="file"'
    for body in (b"", b"--x--\r\n", b"nonsense", begin + b"\r\n\r\nabc\r\n--x--\r\n", begin):
        connection = HTTPConnection(url.hostname, url.port)
        kind = {"content-type": "multipart/form-data; boundary=x"}
        connection.request("POST", "/v1/memories", body, kind)
        answer = connection.getresponse()
        assert answer.status == 400
        assert "error" in json.loads(answer.read())
        connection.close()


def test_what_was_stored_is_the_same_memory(loaded, tmp_path):
    from atlas_memory.serving.server.kept import Kept

    store = Store(tmp_path, loaded.model)
    kept = Kept(am.read(loaded.model, [[*TEXT.encode()]]), "tide")
    store.write(kept)
    found = store.read(kept.id)
    assert same(found.memory, kept.memory)
    assert found.entry == kept.entry == store.entries()[0]
    store.close()
