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
from atlas_memory.cli.serve import size


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


def test_options_from_a_file(run, tmp_path, capsys):
    """They are the flags by another way: the same checks, and a flag comes first."""
    config = tmp_path / "serve.toml"

    def refused(text, *flags):
        config.write_text(text)
        return refusal(capsys, "--config", config, *flags)

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        whole = f"""run = "{run}"
        port = {port}
        max-prompt-tokens = 100
        prefix_cache = "1.5MB"
        timeout = 2.5
        """
        assert f"cannot listen at 127.0.0.1 port {port}" in refused(whole)
        assert "--prefix-cache '5 apples' is no size" in refused(
            whole, "--prefix-cache", "5 apples"
        )
    assert "unknown option 'prot'; did you mean 'port'" in refused("prot = 1")
    assert "give a text or a number" in refused("[port]\nx = 1")
    assert "is no TOML file" in refused("port = ")
    assert "no RUN to serve" in refused("port = 0")
    assert "Invalid value for" in refused(f'run = "{run}"\nrows = 0')
    assert "cannot read" in refusal(capsys, run, "--config", tmp_path / "nothing.toml")
    memories = f'run = "{run}"\nmemory = "{tmp_path}/nothing.memory"'
    assert "nothing.memory" in refused(memories)


@pytest.mark.parametrize(
    ("text", "found"),
    [("0", 0), ("512MB", 2**29), ("1.5 gb", 3 * 2**29), ("7", 7), ("2K", None), ("-1MB", None)],
)
def test_sizes(text, found):
    if found is None:
        with pytest.raises(ValueError, match="is no size; give a number with B, KB, MB"):
            size("--x", text)
    else:
        assert size("--x", text) == found


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
