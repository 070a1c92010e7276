"""A server of a small model on a port of its own, in this process."""

import json
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

from saved import byte_model

from atlas_memory.data.tokenizer import load_tokenizer
from atlas_memory.reading.loading import Loaded


def small(variant="omeganet", **overrides):
    return Loaded(byte_model(variant, **overrides), load_tokenizer("bytes"))


@contextmanager
def serving(loaded=None, name="small", **settings):
    """The address of a server that is up; at the end it shuts down as a signal would make it."""
    from atlas_memory.serving.server.app import Settings
    from atlas_memory.serving.server.listening import address, listen, server

    bound = listen("127.0.0.1", 0)
    running = server(loaded or small(), Settings(name, **settings))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        while not running.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield address(bound)
    finally:
        running.should_exit = True
        thread.join()
        bound.close()


def client(address, token="none", **options):
    from openai import OpenAI

    return OpenAI(base_url=f"{address}/v1", api_key=token, max_retries=0, **options)


def events(address, path, body):
    """What a stream tells, without its end."""
    sent, kind = json.dumps({**body, "stream": True}).encode(), {"content-type": "application/json"}
    with urlopen(Request(f"{address}/v1/{path}", sent, kind)) as answer:
        told = [line.decode().strip().removeprefix("data: ") for line in answer]
    return [json.loads(line) for line in told if line not in ("", "[DONE]")]


def open_files():
    """Every file that this process holds open."""
    links = (link for link in Path("/proc/self/fd").iterdir() if link.is_symlink())
    return {str(link.readlink()) for link in links}


def upload(api, data, name=None, filename="a.memory"):
    """POST /v1/memories with a file, as OpenAI's client sends files."""
    return api.post(
        "/memories",
        body={} if name is None else {"name": name},
        files={"file": (filename, data, "application/octet-stream")},
        options={"headers": {"Content-Type": "multipart/form-data"}},
        cast_to=dict,
    )
