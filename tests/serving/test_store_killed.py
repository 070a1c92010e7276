"""kill -9 while memories are written: what was acknowledged is there and whole, nothing else is."""

import os
import random
import re
import subprocess
import sys
import threading

import openai
import pytest
from saved import save_model
from served import client

from atlas_memory.reading.memory_file import inspect


class Process:
    """`atlas serve` with a store."""

    def __init__(self, run, store):
        command = [sys.executable, "-m", "atlas_memory.cli", "serve", str(run), "--port", "0"]
        command += ["--store", str(store), "--max-memories", "100000", "--resident", "1MB"]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=environment
        )
        line = self._process.stderr.readline()
        self.api = client(re.search(r"at (http://\S+);", line)[1])

    def kill(self):
        self._process.kill()
        self._process.wait()
        self._process.stderr.close()


def write(api, kept, acknowledged, seed):
    """Read and delete until the server is gone; `kept` holds what was acknowledged."""
    draw, mine = random.Random(seed), []
    try:
        while True:
            text = "".join(draw.choices("abc ", k=draw.randrange(1, 80)))
            made = api.post("/memories", body={"text": text, "name": text}, cast_to=dict)
            kept[made["id"]] = made
            acknowledged.release()
            mine.append(made["id"])
            if draw.random() < 0.3:
                gone = mine.pop(draw.randrange(len(mine)))
                kept.pop(gone)  # from now on it may be there or not
                api.delete(f"/memories/{gone}", cast_to=dict)
    except (openai.APIConnectionError, openai.APIStatusError):
        pass


def rounds(count, tmp_path):
    run, store = save_model(tmp_path / "model"), tmp_path / "store"
    kept, draw, written = {}, random.Random(count), 0
    for number in range(count):
        server = Process(run, store)
        listed = {m["id"]: m for m in server.api.get("/memories", cast_to=dict)["data"]}
        files = {path.name.removesuffix(".memory") for path in store.iterdir()}
        assert files == set(listed)
        assert {name: listed.get(name) for name in kept} == kept
        # Of each client one request may have been cut off between its end and its answer.
        assert len(listed) - len(kept) <= 2
        for path in store.iterdir():
            inspect(path)
        kept = listed
        acknowledged = threading.Semaphore(0)
        clients = [
            threading.Thread(target=write, args=(server.api, kept, acknowledged, 2 * number + i))
            for i in (0, 1)
        ]
        for thread in clients:
            thread.start()
        for _ in range(draw.randrange(1, 9)):
            assert acknowledged.acquire(timeout=120)
        threading.Event().wait(draw.uniform(0, 0.1))  # somewhere in the middle of the next ones
        server.kill()
        for thread in clients:
            thread.join()
        written = max(written, len(kept))
    return written


def test_acknowledged_memories_survive(tmp_path):
    assert rounds(4, tmp_path) > 0


@pytest.mark.slow
def test_acknowledged_memories_survive_fifty_times(tmp_path):
    print(rounds(51, tmp_path), "memories at most")
