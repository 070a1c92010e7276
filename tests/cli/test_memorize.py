"""atlas memorize and atlas memory: interrupted or not, the same memory; mistakes in a sentence."""

import json
import subprocess
import time
from functools import partial

import pytest
import torch
from commands import command_line
from safetensors.torch import load_file
from saved import byte_model, save_model
from small_runs import command, environment

WORDS = b"no length of this text is a multiple of anything; it is read to the end. "


def book(size):
    return (WORDS * (size // len(WORDS) + 1))[:size]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    return str(save_model(tmp_path_factory.mktemp("run")))


@pytest.fixture
def atlas(capsys):
    """The command in this process: exit code, stdout, stderr."""

    return partial(command_line, capsys)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_bytes(book(997))
    (tmp_path / "empty.txt").touch()
    (tmp_path / "binary.txt").write_bytes(bytes(range(256)) * 9)
    return tmp_path


def kill_in_the_middle(arguments, out, home):
    """Start a reading in a process of its own and kill it once it has saved something."""
    partial = out.with_name(f"{out.name}.partial")
    with (home / "stderr").open("w") as errors:
        process = subprocess.Popen(command(*arguments), env=environment(home), stderr=errors)
        while not partial.exists() and process.poll() is None:
            time.sleep(0.005)
        process.kill()
        process.wait()
    assert partial.exists(), (home / "stderr").read_text()
    assert not out.exists()
    return partial


@pytest.mark.parametrize("variant", ["omeganet", "atlas"])
def test_killed_and_resumed_is_never_interrupted(variant, atlas, tmp_path):
    run_folder = save_model(tmp_path / "run", byte_model(variant))
    (tmp_path / "one.txt").write_bytes(book(2011))
    (tmp_path / "two.txt").write_bytes(book(1013))
    files, out, whole = [tmp_path / "one.txt", tmp_path / "two.txt"], tmp_path / "b", tmp_path / "w"
    reading = ["memorize", run_folder, *files, "--block", 32, "--save-every", 0]

    partial = kill_in_the_middle([*reading, "--out", out], out, tmp_path)
    _, described, _ = atlas("memory", partial, "--json")
    assert 0 < json.loads(described)["position"] < 3024
    assert json.loads(described)["finished"] is False
    code, _, err = atlas(*reading, "--out", out)
    assert (code, "holds an interrupted reading; go on with --resume" in err) == (2, True)
    code, said, err = atlas(*reading, "--out", out, "--resume")
    assert (code, "3,024 tokens" in said, "going on behind" in err) == (0, True, True)
    assert not partial.exists()

    assert atlas(*reading, "--out", whole)[0] == 0
    resumed, never_interrupted = load_file(out), load_file(whole)
    assert all(torch.equal(resumed[name], never_interrupted[name]) for name in resumed)
    answers = [
        atlas("generate", run_folder, "--memory", file, "--prompt", "and then", "--json")[1]
        for file in (out, whole)
    ]
    assert answers[0] == answers[1]


def test_a_memory_is_described(run_folder, folder, atlas):
    code, said, _ = atlas("memorize", run_folder, "book.txt", "--out", "book.memory", "--json")
    assert code == 0
    shown = json.loads(said)
    assert shown["position"] == 997
    assert shown["sources"] == ["book.txt"]
    assert shown["finished"] is True
    code, said, _ = atlas("memory", "book.memory")
    assert code == 0
    assert "position     997 tokens" in said
    assert "precision    float32" in said
    assert f"surprise     {shown['surprise']:.4f} bits per token" in said


def test_reading_on_from_a_memory(run_folder, folder, atlas):
    atlas("memorize", run_folder, "book.txt", "--out", "first")
    code, said, _ = atlas(
        "memorize", run_folder, "book.txt", "--memory", "first", "--out", "second", "--json"
    )
    assert code == 0
    shown = json.loads(said)
    assert (shown["position"], shown["sources"]) == (2 * 997, ["book.txt", "book.txt"])


def test_standard_input_and_a_polite_stop(run_folder, folder):
    """A pipe that does not end is read until the reader is asked to stop, and read on later."""
    reading = ["memorize", run_folder, "-", "--out", "b", "--block", 512, "--save-every", 0]
    ways = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    text = book(1 << 20) + b"\n"
    process = subprocess.Popen(command(*reading), env=environment(folder), **ways)
    process.stdin.write(text)
    process.stdin.flush()
    while not (folder / "b.partial").exists() and process.poll() is None:
        time.sleep(0.005)
    process.terminate()
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert err.decode().endswith("stopped; go on with the same command and --resume\n")
    assert not (folder / "b").exists()
    process = subprocess.Popen(command(*reading, "--resume"), env=environment(folder), **ways)
    _, err = process.communicate(b"another text\n", timeout=120)
    assert process.returncode == 2
    assert "standard input has changed since the reading was interrupted" in err.decode()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{run}", "empty.txt"], "empty.txt is empty"),
        (["{run}", "book.txt", "empty.txt"], "empty.txt is empty"),
        (["{run}", "binary.txt"], "binary.txt is not UTF-8 text"),
        (["{run}", "nothing.txt"], "cannot read nothing.txt: No such file"),
        (["nowhere", "book.txt"], "nowhere is no folder"),
        ([".", "book.txt"], "holds no model of atlas_memory"),
        (["{run}", "book.txt", "--out", "nowhere/b"], "cannot write to nowhere/b"),
        (["{run}", "book.txt", "--out", "book.txt/b"], "cannot write to book.txt/b"),
        (["{run}", "book.txt", "--out", "."], "it is a folder"),
        (["{run}", "book.txt", "--out", "binary.txt"], "binary.txt exists; give another --out"),
        (["{run}", "book.txt", "--memory", "binary.txt"], "binary.txt is no memory file"),
        (["{run}", "book.txt", "--precision", "int8"], "unknown precision 'int8'; choose from"),
        (["{run}", "book.txt", "--device", "cuda:x"], "unknown device 'cuda:x'; choose from: cpu"),
        (["{run}", "book.txt", "--device", "cuda:99"], "device 'cuda:99' is not there"),
        (["{run}", "book.txt", "--tokenizer", "nowhere"], "tokenizer 'nowhere' is neither"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, message, run_folder, folder, atlas):
    given = [argument.format(run=run_folder) for argument in arguments]
    given += [] if "--out" in given else ["--out", "b.memory"]
    before = sorted(path.name for path in folder.iterdir())
    code, out, err = atlas("memorize", *given)
    assert (code, out) == (2, "")
    assert err.startswith("atlas: ")
    assert message in err
    assert err.count("\n") == 1
    assert sorted(path.name for path in folder.iterdir()) == before


def test_the_same_reading_gives_the_same_file(run_folder, folder, atlas):
    for out in ("one", "two", "three"):
        atlas("memorize", run_folder, "book.txt", "--out", out)
    one, two, three = ((folder / name).read_bytes() for name in ("one", "two", "three"))
    assert one == two == three


def test_bytes_are_what_the_memory_says(run_folder, folder, atlas):
    """The number that the server tells of the same memory."""
    from pathlib import Path

    from atlas_memory.reading.loading import load_run
    from atlas_memory.reading.read import Memory

    atlas("memorize", run_folder, "book.txt", "--out", "b.memory")
    _, out, _ = atlas("memory", "b.memory", "--json")
    shown = json.loads(out)
    memory = Memory.load("b.memory", load_run(Path(run_folder)).model)
    assert shown["bytes"] == memory.num_bytes
    assert shown["file bytes"] == (folder / "b.memory").stat().st_size


def test_a_reading_says_how_long_it_takes(run_folder, folder, atlas):
    _, _, err = atlas("memorize", run_folder, "book.txt", "--out", "b.memory", "--block", 100)
    assert "997 tokens" in err
    assert "0:00 left" in err


def test_memories_that_cannot_be_used(run_folder, folder, atlas):
    atlas("memorize", run_folder, "book.txt", "--out", "whole")
    whole = (folder / "whole").read_bytes()
    (folder / "truncated").write_bytes(whole[:-100])
    (folder / "edited").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    save_model(folder / "other", byte_model(seed=1))
    for arguments, message in [
        (["memory", "truncated"], "truncated is no whole memory file"),
        (["memory", "edited"], "edited was altered or damaged"),
        (["memory", "nothing"], "cannot read nothing: No such file"),
        (["generate", "other", "--memory", "whole"], "whole belongs to another model"),
        (
            ["generate", run_folder, "--memory", "whole", "--precision", "bfloat16"],
            "whole was made in float32 and this model is in bfloat16",
        ),
        (["generate", run_folder, "--memory", "edited"], "edited was altered or damaged"),
    ]:
        code, out, err = atlas(*arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert message in err


def test_a_model_without_its_tokenizer(folder, atlas):
    byte_model().save_pretrained(folder / "bare")
    code, _, err = atlas("memorize", "bare", "book.txt", "--out", "b")
    assert code == 2
    assert "bare has no tokenizer; name one with --tokenizer" in err
    code, _, _ = atlas("memorize", "bare", "book.txt", "--out", "b", "--tokenizer", "bytes")
    assert code == 0
