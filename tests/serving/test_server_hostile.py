"""200 malformed requests, and more: refused in one sentence each, and the server goes on."""

import contextlib
import json
import os
import socket
import sys
import time
from pathlib import Path

import pytest
from served import client, serving

import atlas_memory
from atlas_memory.serving.server.guard import Access
from atlas_memory.serving.server.limits import Limits

LIMITS = Limits(body=20_000, body_seconds=1.0, prompt_tokens=1_000, new_tokens=500, memories=3)
COMPLETE, CHAT, READ = "/v1/completions", "/v1/chat/completions", "/v1/memories"
PENALTIES = ("presence_penalty", "frequency_penalty")
NUMBERS = (*PENALTIES, "max_tokens", "temperature", "top_p", "top_k", "min_p", "n", "seed")
NO_NUMBERS = ('"1"', "[]", "{}", "NaN", "-Infinity", "1e999", "9" * 400, "true", "-" + "9" * 30)
WRONG = {
    COMPLETE: {
        "prompt": (
            "1",
            "{}",
            "true",
            "[null]",
            "[[[1]]]",
            '["a", 1]',
            "[1.5]",
            "[99999999999999999999]",
        ),
        "stop": ("1", '""', '["a", "b", "c", "d", "e"]', "[1]", "[[]]", '"\\ud800"'),
        "stream": ('"yes"', "1", "[]"),
        "stream_options": ("true", "[]", '{"x": 1}'),
        "memory": ("1", "[]", "{}", '"unknown"', '"../../etc/passwd"', '""', '"\\u0000"'),
        "model": ("1", "[]", '"other"', '"../small"'),
        "user": ("1", "[]"),
        "logit_bias": (
            '{"1": 101}',
            '{"-1": 1}',
            '{"999": 1}',
            '{"a": 1}',
            '{"1": "1"}',
            "7",
            "[]",
        ),
        "logprobs": ("6", "-1", "true", '"1"', "1.5"),
        "echo": ("1", '"yes"'),
        "best_of": ("0", "33", "-1", "1e3"),
        "suffix": ('"x"',),
        "unknown": ("1", "null"),
        "__proto__": ("{}",),
        "\\ud800": ("1",),
    },
    CHAT: {
        "messages": (
            "null",
            "[]",
            '"hi"',
            "[1]",
            "[{}]",
            '[{"role": "user"}]',
            '[{"role": 1, "content": "x"}]',
            '[{"role": "USER; DROP", "content": "x"}]',
            '[{"role": "user", "content": [{"type": "image_url", "image_url": "file:///etc"}]}]',
            '[{"role": "user", "content": "\\ud800"}]',
            '[{"role": "user", "content": "x", "more": 1}]',
        ),
        "top_logprobs": ("1", "21", "-1", "true"),
        "logprobs": ("1", '"yes"'),
        "max_completion_tokens": ("0", '"x"', "1e9", "501"),
        "tools": ('[{"type": "function"}]',),
    },
    READ: {
        "text": ("1", "null", "[]", '""', '"\\udfff"'),
        "name": ("1", '"' + "x" * 201 + '"'),
        "memory": ("1", '"unknown"', '"mem_../../x"'),
        "path": ('"/etc/passwd"',),
    },
}
BODIES = (
    b"",
    b"null",
    b"[]",
    b'"x"',
    b"{",
    b'{"prompt": "x"',
    b"{'prompt': 'x'}",
    b'{"prompt": "\xff\xfe"}',
    b"\xff\xfe{\x00}\x00",
    b"\0" * 100,
    b"[" * 19_000,
    b'{"a":' * 3_000,
    b'{"prompt": "x", "max_tokens": ' + b"9" * 10_000 + b"}",
    b"prompt=x&max_tokens=3",
    b"\x80\x04\x95\x10\x00\x00\x00.",  # the beginning of a pickle
    b"PK\x03\x04",
)
IDS = (
    "unknown",
    "mem_" + "A" * 24,
    "..%2f..%2f..%2fetc%2fpasswd",
    "%2e%2e",
    "..%5c..%5cwindows",
    "%00",
    "%ff%fe",
    "a" * 5_000,
    "mem_*",
    "'%20OR%201=1",
    "%F0%9F%92%A9",
    "__class__",
)
LINES = (
    b"GET\r\n\r\n",
    b"\r\n\r\n\r\n\r\n",
    b"GET / HTTP/9.9\r\nhost: localhost\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 200,  # somebody speaks TLS
    b"GET / HTTP/1.1\r\n" + b"x: " + b"y" * 100_000,
    b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: -5\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: many\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nhost: evil\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"sec-websocket-key: x\r\nsec-websocket-version: 13\r\n\r\n",
)
watched: list[tuple[str, str]] = []
watching = False


def _watch(event, arguments):
    """What the process opens and unpickles while hostile requests come in."""
    if watching and event == "open" and isinstance(arguments[0], str | bytes):
        path = arguments[0] if isinstance(arguments[0], str) else arguments[0].decode()
        watched.append((path, str(arguments[1])))
    elif watching and event == "pickle.find_class":
        watched.append(("pickle", str(arguments)))


sys.addaudithook(_watch)


@pytest.fixture
def only_own_files(address):
    """No file but those of installed packages is opened, and none is written."""
    global watching
    assert alive(address)  # the client looks at the machine once
    watched.clear()
    watching = True
    yield
    watching = False
    packages = {Path(atlas_memory.__file__).parents[1], Path(sys.prefix), Path(sys.base_prefix)}
    for path, mode in watched:
        assert path != "pickle", mode
        assert "w" not in mode, path
        own = path == os.devnull or any(Path(path).resolve().is_relative_to(p) for p in packages)
        assert own, path


@pytest.fixture(scope="module")
def address(loaded):
    with serving(loaded, limits=LIMITS) as address:
        yield address


def connect(address):
    host, port = address.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def exchange(address, raw):
    """Send bytes, read all that comes back; the status, 0 where there is none, and the body."""
    with connect(address) as connection:
        with contextlib.suppress(OSError):  # who is refused early may not finish
            connection.sendall(raw)
        received = b""
        with contextlib.suppress(OSError):
            while part := connection.recv(65536):
                received += part
                if b"\r\nconnection: close" not in received and _complete(received):
                    break
    status = int(received.split(b" ")[1]) if received else 0
    return status, received.partition(b"\r\n\r\n")[2]


def _complete(received):
    head, _, body = received.partition(b"\r\n\r\n")
    size = [x for x in head.lower().split(b"\r\n") if x.startswith(b"content-length:")]
    return bool(size) and len(body) >= int(size[0].split(b":")[1])


def request(method, path, body=b"", **headers):
    sent = {"host": "localhost", "connection": "close"}
    if body or method == "POST":
        sent |= {"content-type": "application/json", "content-length": len(body)}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items() if value is not None)
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body


def alive(address):
    answer = client(address).completions.create(model="small", prompt="ok?", max_tokens=2)
    return answer.usage.completion_tokens == 2


def with_field(path, field, value):
    """A request that is right but for one field."""
    others = {
        COMPLETE: ("prompt", '"x"'),
        CHAT: ("messages", '[{"role": "user", "content": "x"}]'),
        READ: ("text", '"x"'),
    }
    fields = dict([others[path], (field, value)])
    return path, "{" + ", ".join(f'"{name}": {value}' for name, value in fields.items()) + "}"


def wrong_fields():
    for path in (COMPLETE, CHAT):
        for field in NUMBERS:
            yield from (with_field(path, field, value) for value in NO_NUMBERS)
    for path, fields in WRONG.items():
        for field, values in fields.items():
            yield from (with_field(path, field, value) for value in values)


def malformed():
    """Name and bytes of every one."""
    for path, body in wrong_fields():
        yield f"{path} {body[:80]}", request("POST", path, body.encode())
    for path in (COMPLETE, READ):
        for body in BODIES:
            yield f"{path} {body[:30]!r}", request("POST", path, body)
    for name in IDS:
        yield f"GET {name[:30]}", request("GET", f"{READ}/{name}")
        yield f"DELETE {name[:30]}", request("DELETE", f"{READ}/{name}")
        yield f"file {name[:30]}", request("GET", f"{READ}/{name}/file")
        yield f"fork {name[:30]}", request("POST", f"{READ}/{name}/fork", b"{}")
    for path in (
        "/etc/passwd",
        "/../x",
        "//",
        "/page.js/../../app.py",
        "/static",
        "/docs/x",
        "/%00",
    ):
        yield f"GET {path}", request("GET", path)
    for method in ("PUT", "PATCH", "TRACE", "CONNECT", "BREW"):
        yield method, request(method, COMPLETE)
    large = b'{"prompt": "' + b"x" * 30_000 + b'"}'
    yield "large", request("POST", COMPLETE, large)
    yield "large, hidden", request("POST", COMPLETE, large, content_length=10**15)
    chunks = b"".join(b"1000\r\n" + b" " * 4096 + b"\r\n" for _ in range(9))
    head = request("POST", COMPLETE, transfer_encoding="chunked", content_length=None)
    yield "large, in chunks", head + chunks
    yield "no JSON", request("POST", COMPLETE, b'{"prompt": "x"}', content_type="text/plain")
    yield "other host", request("GET", "/v1/models", host="evil.example")
    yield "no host", request("GET", "/v1/models", host="")
    yield "other site", request("POST", READ, b'{"text": "x"}', origin="http://evil.example")
    yield "no site", request("POST", READ, b'{"text": "x"}', origin="null")


def test_malformed_requests_are_refused_and_leave_nothing(address, only_own_files):
    cases = list(malformed())
    assert len(cases) >= 200
    answers = [(name, *exchange(address, raw)) for name, raw in cases]
    assert [answer for answer in answers if not 400 <= answer[1] < 500] == []
    for name, _, body in answers:
        if body:
            error = json.loads(body)["error"]
            assert len(error["message"]) <= 500, name
            assert "Traceback" not in error["message"]
    assert alive(address)
    assert client(address).get("/memories", cast_to=dict)["data"] == []


@pytest.mark.parametrize("raw", LINES, ids=range(len(LINES)))
def test_what_is_no_request_is_no_trouble(raw, address, only_own_files):
    status, _ = exchange(address, raw)
    assert status in (0, 200) or 400 <= status < 500
    assert alive(address)


def test_slow_bodies_are_not_waited_for(address):
    head = request("POST", COMPLETE, content_length=100)
    connections = [connect(address) for _ in range(20)]
    for connection in connections:
        connection.sendall(head + b'{"prompt":')
    assert alive(address)
    for connection in connections:
        received = connection.recv(65536)
        assert b" 408 " in received.split(b"\r\n")[0]
        connection.close()


def test_clients_that_leave_stop_what_they_asked_for(address):
    body = b'{"prompt": "x", "max_tokens": 500, "stream": true}'
    whole = body.replace(b', "stream": true', b"")
    for raw in (request("POST", COMPLETE, body), request("POST", COMPLETE, whole)):
        for _ in range(8):
            connection = connect(address)
            connection.sendall(raw)
            if raw.endswith(body):
                assert connection.recv(10)
            connection.close()
    connection = connect(address)
    connection.sendall(request("POST", COMPLETE, body)[:-20])
    connection.close()
    for _ in range(200):
        status = client(address).get("/status", cast_to=dict)
        if status["running"] == status["waiting"] == 0:
            break
        time.sleep(0.05)
    assert (status["running"], status["waiting"]) == (0, 0)
    assert alive(address)


def test_without_the_token_nothing_is_told(loaded):
    with serving(loaded, "n4me", access=Access(token="s3cret", hosts=None)) as address:
        good = client(address, "s3cret")
        made = good.post("/memories", body={"text": "secret"}, cast_to=dict)
        answers = set()
        for given in (
            {},
            {"authorization": "Bearer s3cre"},
            {"authorization": "Bearer  s3cret"},
            {"authorization": "s3cret"},
            {"authorization": "Bearer \xff"},
        ):
            for method, path in (
                ("GET", "/v1/models"),
                ("GET", "/v1/models/n4me"),
                ("GET", "/v1/status"),
                ("GET", "/openapi.json"),
                ("GET", "/nothing"),
                ("PUT", "/v1/models"),
                ("POST", COMPLETE),
                ("POST", CHAT),
                ("POST", READ),
                ("GET", f"{READ}/{made['id']}"),
                ("GET", f"{READ}/unknown"),
                ("DELETE", f"{READ}/{made['id']}"),
                ("GET", f"{READ}/{made['id']}/file"),
            ):
                answers.add(exchange(address, request(method, path, **given)))
        assert len(answers) == 1
        status, body = answers.pop()
        assert status == 401
        assert b"Bearer TOKEN" in body
        for path in ("/", "/page.js", "/page.css"):
            status, body = exchange(address, request("GET", path))
            assert status == 200
            assert b"n4me" not in body and b"s3cret" not in body  # noqa: PT018
        assert good.get(f"/memories/{made['id']}", cast_to=dict) == made


def test_ids_cannot_be_guessed(address):
    api = client(address)
    ids = [api.post("/memories", body={"text": "x"}, cast_to=dict)["id"] for _ in range(3)]
    for name in ids:
        api.delete(f"/memories/{name}", cast_to=dict)
    assert len({*ids}) == 3
    assert all(len(name) == len("mem_") + 24 for name in ids)
