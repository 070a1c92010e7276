"""atlas generate: go on with a text, a file of any size, or a memory, token by token."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atlas_memory.cli.options import AsJson, Device, Precision, RunFolder, Tokenizer, assigned, load

if TYPE_CHECKING:
    from transformers import GenerationConfig

    from atlas_memory.reading.loading import Loaded
    from atlas_memory.reading.read import Memory

FILE = "A text of any size to read first."
SAMPLE = "Draw tokens; the default is the most probable one. Implied by the options below."
SET = "Any other field of transformers' GenerationConfig, as name=value; may be given again."
COMPILE = "Compile the model's blocks first: half a minute, worth it for thousands of tokens."
INTERACTIVE = "Ask for more text after each answer; what was said is remembered."


def run(
    run_folder: RunFolder,
    source: Annotated[str | None, typer.Argument(metavar="[-]", help="- reads stdin.")] = None,
    prompt: Annotated[str | None, typer.Option(help="The text to go on with.")] = None,
    file: Annotated[str | None, typer.Option(help=FILE)] = None,
    memory: Annotated[Path | None, typer.Option(help="A memory file to start from.")] = None,
    interactive: Annotated[bool, typer.Option("--interactive", help=INTERACTIVE)] = False,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens to write.")] = 200,
    sample: Annotated[bool, typer.Option("--sample", help=SAMPLE)] = False,
    temperature: Annotated[float | None, typer.Option(min=1e-3, help="Of the draw.")] = None,
    top_k: Annotated[int | None, typer.Option(min=1, help="Of the k likeliest.")] = None,
    top_p: Annotated[float | None, typer.Option(min=1e-6, max=1, help="A nucleus.")] = None,
    min_p: Annotated[float | None, typer.Option(min=0, max=1, help="A least share.")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(min=1e-3, help="1 is none.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help=SET)] = None,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    compiled: Annotated[bool, typer.Option("--compile", help=COMPILE)] = False,
    precision: Precision = None,
    device: Device = "cpu",
    tokenizer: Tokenizer = None,
    as_json: AsJson = False,
) -> None:
    """Write what follows; tokens appear as they come.

    Examples: atlas generate runs/quickstart --prompt "It was" --temperature 0.8;
    atlas generate runs/quickstart --file book.txt --prompt "The moral is";
    atlas generate runs/quickstart --memory book.memory --interactive
    """
    from atlas_memory.reading.loading import require_run

    text = _source(source, file, interactive)
    if not interactive and not (prompt or text or memory):
        raise ValueError("nothing to go on with; give --prompt, --file, --memory or -")
    drawn = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    changes = {name: value for name, value in drawn.items() if value is not None}
    changes |= {"do_sample": sample or bool(changes), "max_new_tokens": max_new_tokens}
    if repetition_penalty is not None:
        changes["repetition_penalty"] = repetition_penalty
    changes |= assigned(settings)
    require_run(run_folder, precision, tokenizer, device)
    _require(memory, text)
    if compiled:
        _require_compiler(device)

    import torch

    from atlas_memory.reading.generation import generation_config

    loaded = load(run_folder, precision, tokenizer, device)
    config = generation_config(loaded.model, changes)
    known = _known(loaded, text, memory)
    torch.manual_seed(seed)
    if compiled:  # behind the long text, which is read as it is
        print("compiling ..", file=sys.stderr, flush=True)
        loaded.model.compile()
    if interactive:
        _converse(loaded, known, prompt or "", config)
    else:
        _answer(loaded, known, prompt or "", config, as_json)


def _require(memory: Path | None, text: str | None) -> None:
    """All that can be wrong with paths is told before torch is imported."""
    from atlas_memory.reading.memory_head import require_memory_file
    from atlas_memory.reading.text import require_texts

    if memory is not None:
        require_memory_file(memory)
    if text is not None:
        require_texts([text])


def _require_compiler(device: str) -> None:
    """On a processor graphs become C++."""
    import os
    import shutil

    names = [os.environ.get("CXX"), "g++", "clang++", "c++"]
    if device == "cpu" and not any(shutil.which(name) for name in names if name):
        raise ValueError("--compile needs a C++ compiler, and neither g++ nor clang++ is found")


def _source(source: str | None, file: str | None, interactive: bool) -> str | None:
    if source not in (None, "-"):
        raise ValueError(
            f"{source!r}: only - for standard input; give a text as --prompt or --file"
        )
    if source and file:
        raise ValueError("give either - or --file, and not both")
    if source and interactive:
        raise ValueError("--interactive asks on standard input; give the text as --file")
    return source or file


def _known(loaded: Loaded, source: str | None, memory: Path | None) -> Memory | None:
    """The memory of the file given, and of the text read behind it."""
    from atlas_memory.cli.progress import Progress
    from atlas_memory.reading.memory_file import load
    from atlas_memory.reading.read import read_blocks
    from atlas_memory.reading.text import open_text

    known = None if memory is None else load(memory, loaded.model).memory
    if source is None:
        return known
    text, after = open_text([source], loaded.tokenizer), known
    progress = Progress(text, 0 if known is None else known.position)
    for after in read_blocks(loaded.model, text, known):
        progress.show(after)
    if after is known:
        raise ValueError(f"{text.names} is empty; give a text of at least one token")
    return after


def _answer(
    loaded: Loaded, known: Memory | None, prompt: str, config: GenerationConfig, as_json: bool
) -> None:
    written: list[str] = []
    after = _write(loaded, known, prompt, config, written.append if as_json else _print)
    if as_json:
        print(json.dumps({"text": "".join(written), "position": after.position}))
    else:
        print()


def _converse(loaded: Loaded, known: Memory | None, prompt: str, config: GenerationConfig) -> None:
    """Question and answer until the input ends; every turn begins where the last one ended."""
    while True:
        if prompt or known is not None:
            known = _write(loaded, known, prompt, config, _print)
            print()
        print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        prompt = line.removesuffix("\n")


def _write(
    loaded: Loaded, known: Memory | None, prompt: str, config: GenerationConfig, write: Any
) -> Memory:
    from atlas_memory.reading.generation import Stream, generate

    ids = next(loaded.tokenizer.encode([prompt.encode()])).tolist() if prompt else []
    return generate(loaded.model, known, ids, config, Stream(loaded.tokenizer, write))


def _print(text: str) -> None:
    print(text, end="", flush=True)
