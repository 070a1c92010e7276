"""atlas inspect: one page that shows what a model's memories did with a text."""

from pathlib import Path
from typing import Annotated

import typer

from atlas_memory.cli.options import Device, Precision, RunFolder, Tokenizer, load

TOKENS = "At most so many tokens from the beginning of the text."
EVERY = "Tokens between two looks at the memories."


def run(
    run_folder: RunFolder,
    file: Annotated[Path, typer.Argument(help="A text file.")],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    tokens: Annotated[int, typer.Option(min=2, help=TOKENS)] = 20_000,
    every: Annotated[int, typer.Option(min=1, help=EVERY)] = 64,
    precision: Precision = None,
    device: Device = "cpu",
    tokenizer: Tokenizer = None,
    as_json: Annotated[bool, typer.Option("--json", help="The numbers, as one object.")] = False,
) -> None:
    """Show what the memory did: surprise of every token, gates, norms, read-outs.

    The page needs nothing but a browser: no network, no other file.
    Example: atlas inspect runs/quickstart chapter.txt --out report.html
    """
    text = read_text(file)
    require_place(out)
    import json

    from atlas_memory.cli.train import say
    from atlas_memory.reading.loading import require_run

    require_run(run_folder, precision, tokenizer, device)
    from atlas_memory.inspection.report import describe, excerpt, page
    from atlas_memory.inspection.trace import trace

    loaded = load(run_folder, precision, tokenizer, device)
    read = excerpt(text, loaded.tokenizer, tokens)
    say(f"reading {len(read.ids):,} tokens of {file}")
    found = trace(loaded.model, read.ids, every=every)
    names = (file.name, f"{run_folder.resolve().name} ({loaded.model.model.fingerprint})")
    out.write_text(page(found, read.pieces, *names), encoding="utf-8")
    if as_json:
        print(json.dumps(describe(found, read.pieces, *names)))
    else:
        print(f"{out}: {len(read.ids):,} tokens, {found.mean_surprise:.3f} bits per token")


def read_text(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8", errors="strict")
    except OSError as error:
        raise ValueError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is no text: byte {error.start} is not UTF-8") from error
    if not text:
        raise ValueError(f"{file} is empty; give a text of at least one token")
    return text


def require_place(out: Path) -> None:
    if out.is_dir():
        raise ValueError(f"--out {out} is a folder; give a file such as report.html")
    if not out.parent.is_dir():
        raise ValueError(f"--out {out}: its folder does not exist")
