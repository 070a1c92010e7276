"""atlas serve: mistakes in one sentence, and a process that ends when it is told to."""

import os
import re
import signal
import socket
import subprocess
import sys

import pytest
from saved import byte_model, save_model
from served import client

import atlas_memory as am
from atlas_memory.cli.main import main


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("run") / "model")


def refusal(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["serve", *map(str, arguments)])
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_mistakes_are_one_sentence(run, tmp_path, capsys):
    assert "is no folder" in refusal(capsys, tmp_path / "nothing")
    assert "printable ASCII" in refusal(capsys, run, "--port", 0, "--token", "caf\u00e9")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        message = f"cannot listen at 127.0.0.1 port {port}: Address already in use"
        assert message in refusal(capsys, run, "--port", port)
    am.read(byte_model(seed=1), [[1, 2, 3]]).save(tmp_path / "other.memory")
    assert "belongs to another model" in refusal(capsys, run, "--memory", tmp_path / "other.memory")
    am.read(byte_model(), [[1, 2, 3]]).fork(2).save(tmp_path / "two.memory")
    assert "has several rows" in refusal(capsys, run, "--memory", tmp_path / "two.memory")


def test_a_process_that_finishes_what_runs_when_it_is_told_to_end(run):
    command = [sys.executable, "-m", "atlas_memory.cli", "serve", str(run), "--port", "0"]
    environment = os.environ | {"ATLAS_TOKEN": "s3cret", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        line = process.stderr.readline()
        address = re.search(r"serving model at (http://127\.0\.0\.1:\d+);", line)[1]
        options = {"model": "model", "prompt": "abc", "max_tokens": 40, "temperature": 0}
        whole = client(address, "s3cret").completions.create(**options).choices[0].text
        stream = client(address, "s3cret").completions.create(**options, stream=True)
        first = next(stream).choices[0].text
        process.send_signal(signal.SIGTERM)
        assert first + "".join(event.choices[0].text for event in stream) == whole
        assert process.wait(60) in (0, -signal.SIGTERM)
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.stderr.close()
