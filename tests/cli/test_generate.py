"""atlas generate: the tokens of transformers' generate, from a prompt, a file or a memory."""

import io
import json
import sys

import pytest
import torch
from saved import byte_model, save_model
from small_runs import atlas as atlas_process, set_options, write_text

from atlas_memory.cli.main import main

TEXT = "It was a dark and stormy night; the rain fell in torrents. " * 3


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    return str(save_model(tmp_path_factory.mktemp("run")))


@pytest.fixture
def atlas(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text(TEXT)

    def run(*arguments, stdin=""):
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as exit_:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return exit_.value.code, captured.out, captured.err

    return run


def expected(prompt, count):
    model = byte_model()
    ids = torch.tensor([[*prompt.encode()]])
    options = {"max_new_tokens": count, "do_sample": False, "pad_token_id": 0}
    new = model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, ids.shape[1] :]
    # 255 is the padding of bytes: no text has it, and nothing is printed for it
    return bytes(n for n in new.tolist() if n != 255).decode(errors="replace")


def test_from_prompt_file_and_memory_come_the_same_tokens(run_folder, atlas):
    few = ("--max-new-tokens", 8)
    wanted = expected(TEXT + "and then", 8)
    assert atlas("generate", run_folder, "--prompt", TEXT + "and then", *few)[1] == wanted + "\n"
    book = ("--file", "book.txt", "--prompt", "and then")
    assert atlas("generate", run_folder, *book, *few)[1] == wanted + "\n"
    atlas("memorize", run_folder, "book.txt", "--out", "book.memory")
    memory = ("--memory", "book.memory", "--prompt", "and then")
    assert atlas("generate", run_folder, *memory, *few)[1] == wanted + "\n"
    without = atlas("generate", run_folder, "--memory", "book.memory", "--json", *few)
    assert json.loads(without[1]) == {"text": expected(TEXT, 8), "position": len(TEXT) + 8}


@pytest.mark.compile
def test_compiled_comes_the_same_text(run_folder, atlas):
    words = ("--prompt", TEXT + "and then", "--max-new-tokens", 40)
    code, out, err = atlas("generate", run_folder, "--compile", *words)
    assert (code, out) == (0, expected(TEXT + "and then", 40) + "\n"), err


def test_compiling_without_a_compiler_is_one_sentence(run_folder, atlas, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    code, out, err = atlas("generate", run_folder, "--prompt", "x", "--compile")
    assert (code, out) == (2, "")
    assert "--compile needs a C++ compiler" in err
    assert err.count("\n") == 1


def test_drawing_depends_on_the_seed_alone(run_folder, atlas):
    draw = ("generate", run_folder, "--prompt", "It", "--max-new-tokens", 12, "--json")
    first, again, other = (
        atlas(*draw, "--temperature", 1.5, "--top-p", 0.95, "--seed", seed)[1] for seed in (1, 1, 2)
    )
    assert first == again != other
    greedy = atlas(*draw)[1]
    assert atlas(*draw, "--top-k", 1)[1] == greedy
    assert atlas(*draw, "--repetition-penalty", 9.5)[1] != greedy
    assert atlas(*draw, "--set", "suppress_tokens=[65]", "--set", "do_sample=true")[0] == 0


def test_a_conversation_is_one_text(run_folder, atlas):
    turn = ("--max-new-tokens", 4)
    code, out, err = atlas("generate", run_folder, "--interactive", *turn, stdin="hello\nyou\n")
    assert code == 0
    assert err.count("> ") == 3
    first = expected("hello", 4)
    assert out.startswith(first + "\n")


def test_a_run_of_train_and_standard_input(tmp_path):
    """The folder that training leaves, whose tokenizer was trained by hand of the recipe."""
    text = write_text(tmp_path / "text")
    options = set_options(text, train__steps=2, train__validate_every=2)
    trained = atlas_process("train", *options, "--output", tmp_path / "run", home=tmp_path)
    assert trained.returncode == 0, trained.stderr
    said = atlas_process(
        "generate",
        tmp_path / "run",
        "--file",
        text / "0.txt",
        "--max-new-tokens",
        3,
        "--json",
        home=tmp_path,
    )
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["position"] == (text / "0.txt").stat().st_size + 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to go on with; give --prompt, --file, --memory or -"),
        (["book.txt"], "'book.txt': only - for standard input"),
        (["-", "--file", "book.txt"], "give either - or --file"),
        (["-", "--interactive"], "--interactive asks on standard input"),
        (["--file", "nothing"], "cannot read nothing: No such file"),
        (["--memory", "nothing"], "cannot read nothing: No such file"),
        (["--prompt", "x", "--set", "temprature=1"], "did you mean 'temperature'?"),
        (["--prompt", "x", "--set", "temperature"], "write name=value"),
        (["--prompt", "x", "--set", "max_new_tokens=many"], "max_new_tokens"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, message, run_folder, atlas):
    code, out, err = atlas("generate", run_folder, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
