"""atlas tokenizer train: a byte-level BPE from a text of one's own."""

from pathlib import Path
from typing import Annotated

import typer

DATA = "A text: a file, a folder or whatever else `atlas train --data` takes."
app = typer.Typer(help="Tokenizers.", no_args_is_help=True)


@app.callback()
def tokenizer() -> None:
    """Make a tokenizer."""


@app.command()
def train(
    source: Annotated[str | None, typer.Argument(metavar="[FILE]", help=DATA)] = None,
    data: Annotated[str | None, typer.Option(help="The same, as an option.")] = None,
    output: Annotated[Path, typer.Option(help="The file to write.")] = Path("tokenizer.json"),
    vocab_size: Annotated[int, typer.Option(help="Ids of the vocabulary.")] = 32_000,
    field: Annotated[str, typer.Option(help="Field of a record with the text.")] = "text",
    most_bytes: Annotated[int, typer.Option(help="Of the text to learn from.")] = 100_000_000,
) -> None:
    """Train a byte-level BPE on the training text.

    Example: atlas tokenizer train books/ --output tokenizer.json
    """
    from atlas_memory.cli.train import say
    from atlas_memory.data.corpus import find_source
    from atlas_memory.data.documents import first_bytes
    from atlas_memory.data.tokenizer import train_tokenizer

    if output.exists():
        raise ValueError(f"{output} exists; give another --output")
    text, _ = find_source(_one(source, data), field, say)
    trained = train_tokenizer(first_bytes(text.documents(), most_bytes), vocab_size)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(trained.fast.backend_tokenizer.to_str(), encoding="utf-8")
    except OSError as error:
        raise ValueError(f"cannot write to {output}: {error.strerror}") from error
    print(f"{output}: {trained.vocab_size:,} ids")


def _one(source: str | None, data: str | None) -> str:
    given = source or data
    if given is None or (source and data):
        raise ValueError("give one text to learn from: atlas tokenizer train FILE")
    return given
