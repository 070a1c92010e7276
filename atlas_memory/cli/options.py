"""Options that several commands have, told in the same words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from atlas_memory.reading.loading import Loaded

RUN = "A run of `atlas train`, or a folder with a saved model and its tokenizer."
PRECISION = "float32, bfloat16, float16 or float64; the model's own if left out."
DEVICE = "cpu, cuda, cuda:1, mps or xpu."
TOKENIZER = "bytes, a file, folder or name; the model's own if left out."

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help=RUN)]
Precision = Annotated[str | None, typer.Option(help=PRECISION)]
Device = Annotated[str, typer.Option(help=DEVICE)]
Tokenizer = Annotated[str | None, typer.Option(help=TOKENIZER)]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object.")]


def assigned(changes: list[str] | None) -> dict[str, Any]:
    """What --set says: name=value, a value is JSON where it can be read as such, else text."""
    values: dict[str, Any] = {}
    for change in changes or []:
        name, equals, text = change.partition("=")
        if not equals:
            raise ValueError(f"--set {change!r}: write name=value")
        try:
            values[name] = json.loads(text)
        except ValueError:
            values[name] = text
    return values


def load(run: Path, precision: str | None, tokenizer: str | None, device: str) -> Loaded:
    """What reads and writes text, in a process of its own."""
    from atlas_memory.processor import flush_tiny_numbers, keep_freed_memory
    from atlas_memory.reading.loading import load_run, require_run

    require_run(run, precision, tokenizer, device)  # a mistake is told before torch is imported
    flush_tiny_numbers()
    keep_freed_memory()
    return load_run(run, precision, tokenizer, device)
