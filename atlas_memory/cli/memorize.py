"""atlas memorize: read files of any size into a memory file."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from atlas_memory.cli.options import AsJson, Device, Precision, RunFolder, Tokenizer, load
from atlas_memory.reading.memory_head import require_memory_file

if TYPE_CHECKING:
    from atlas_memory.reading.loading import Loaded
    from atlas_memory.reading.read import Memory
    from atlas_memory.reading.text import Bookmark, Text

FILES = "Text, .jsonl(.gz) or .parquet, read in this order as one text; - is standard input."
SAVE = "Seconds between two saves of an unfinished reading."


@dataclass(frozen=True)
class Reading:
    """Where a reading begins: what is known, tokens known before the text, and where in it."""

    memory: Memory | None
    block: int
    base: int = 0
    bookmark: Bookmark | None = None
    sources: tuple[str, ...] = ()


def run(
    run_folder: RunFolder,
    files: Annotated[list[str], typer.Argument(help=FILES)],
    out: Annotated[Path, typer.Option(help="The memory file to write.")],
    memory: Annotated[Path | None, typer.Option(help="A memory to read on from.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where it stopped.")] = False,
    save_every: Annotated[float, typer.Option(min=0, help=SAVE)] = 60.0,
    block: Annotated[int, typer.Option(min=1, help="Tokens of one forward pass.")] = 4096,
    precision: Precision = None,
    device: Device = "cpu",
    tokenizer: Tokenizer = None,
    as_json: AsJson = False,
) -> None:
    """Read texts of any length, in constant memory, into a memory file.

    Examples: atlas memorize runs/quickstart book.txt --out book.memory;
    zcat dump.gz | atlas memorize runs/quickstart - --out dump.memory;
    atlas generate runs/quickstart --memory book.memory --prompt "The moral is"
    """
    from atlas_memory.reading.loading import require_run
    from atlas_memory.reading.text import open_text, require_texts

    require_run(run_folder, precision, tokenizer, device)
    require_texts(files)
    if memory is not None:
        require_memory_file(memory)
    _require_new(out, resume)
    loaded = load(run_folder, precision, tokenizer, device)
    reading = _start(loaded, out, memory, resume, block)
    text = open_text(files, loaded.tokenizer, reading.bookmark)
    known = _read(loaded, text, reading, out, save_every)
    _finish(known, out, (*reading.sources, text.names), as_json)


def partial_file(out: Path) -> Path:
    """Where an unfinished reading is kept."""
    return out.with_name(f"{out.name}.partial")


def _require_new(out: Path, resume: bool) -> None:
    if out.is_dir():
        raise ValueError(f"cannot write to {out}: it is a folder")
    if out.is_file():
        raise ValueError(f"{out} exists; give another --out")
    if partial_file(out).exists() and not resume:
        raise ValueError(
            f"{partial_file(out)} holds an interrupted reading; go on with --resume, or remove it"
        )
    from atlas_memory.reading.memory_file import require_writable

    require_writable(out)


def _start(loaded: Loaded, out: Path, memory: Path | None, resume: bool, block: int) -> Reading:
    from atlas_memory.cli.train import say
    from atlas_memory.reading.memory_file import load
    from atlas_memory.reading.text import Bookmark

    partial = partial_file(out)
    if resume and partial.exists():
        file = load(partial, loaded.model)
        kept = file.reading
        place = Bookmark(**kept["bookmark"])
        say(f"going on behind {place.tokens:,} tokens")
        return Reading(file.memory, kept["block"], kept["base"], place, file.sources)
    if memory is None:
        return Reading(None, block)
    file = load(memory, loaded.model)
    return Reading(file.memory, block, file.memory.position, None, file.sources)


def _read(loaded: Loaded, text: Text, reading: Reading, out: Path, save_every: float) -> Memory:
    """Block by block; what is known is a value, so it can be saved whenever one asks to stop."""
    from atlas_memory.cli.progress import Progress
    from atlas_memory.reading.read import read_blocks

    known, saved = reading.memory, time.monotonic()
    progress = Progress(text, reading.base, reading.bookmark.tokens if reading.bookmark else 0)
    try:
        with _stoppable():
            for known in read_blocks(loaded.model, text, reading.memory, reading.block):
                progress.show(known)
                if time.monotonic() - saved >= save_every:
                    _save_partial(known, text, reading, out)
                    saved = time.monotonic()
    except KeyboardInterrupt:
        _stop(known, text, reading, out)
    if known is None or known.position == reading.base:
        raise ValueError(f"{text.names} is empty; give a text of at least one token")
    progress.show(known, last=True)
    return known


@contextmanager
def _stoppable() -> Iterator[None]:
    """A polite kill is the same as Ctrl-C."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _save_partial(known: Memory, text: Text, reading: Reading, out: Path) -> None:
    from atlas_memory.reading.memory_file import save

    place = text.bookmark(known.position - reading.base).to_dict()
    kept = {"block": reading.block, "base": reading.base, "bookmark": place}
    save(known, partial_file(out), reading.sources, kept)


def _stop(known: Memory | None, text: Text, reading: Reading, out: Path) -> NoReturn:
    from atlas_memory.cli.train import say

    if known is not None and known is not reading.memory:
        _save_partial(known, text, reading, out)
    there = partial_file(out).exists()
    say("stopped; go on with the same command and --resume" if there else "stopped")
    raise typer.Exit(1)


def _finish(known: Memory, out: Path, sources: tuple[str, ...], as_json: bool) -> None:
    from atlas_memory.cli.memory import describe
    from atlas_memory.reading.memory_file import save

    save(known, out, sources)
    partial_file(out).unlink(missing_ok=True)
    shown: dict[str, Any] = describe(out)
    if as_json:
        print(json.dumps(shown))
    else:
        print(
            f"{out}: {shown['position']:,} tokens, {shown['bytes']:,} bytes, "
            f"surprise {shown['surprise']:.3f} bits per token"
        )
