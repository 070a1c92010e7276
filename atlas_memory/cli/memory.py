"""atlas memory: what a memory file holds."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from atlas_memory.cli.options import AsJson
from atlas_memory.cli.show import readable_size


def run(
    file: Annotated[Path, typer.Argument(help="A file of `atlas memorize`.")],
    as_json: AsJson = False,
) -> None:
    """Describe a memory file, and check that it is whole.

    Example: atlas memory book.memory
    """
    shown = describe(file)
    if as_json:
        print(json.dumps(shown))
        return
    for name, value in shown.items():
        print(f"{name:12} {_readable(name, value)}")


def describe(file: Path) -> dict[str, Any]:
    """What the header says, and the sizes."""
    from atlas_memory.reading.memory_head import require_memory_file

    require_memory_file(file)
    from atlas_memory.reading.memory_file import inspect, restored

    contents = inspect(file)
    header, model = contents.header, contents.header["model"]
    return {
        "model": model["layers"],
        "weights": model["weights"],
        "precision": model["precision"],
        "position": header["position"],
        "rows": header["rows"],
        "surprise": header["surprise"],
        "sources": header["sources"],
        "layers": len(header["states"]),
        "tensors": len(contents.tensors),
        "bytes": restored(contents).num_bytes,
        "file bytes": file.stat().st_size,
        "finished": not header["reading"],
    }


def _readable(name: str, value: Any) -> str:
    match name:
        case "position":
            return f"{value:,} tokens"
        case "surprise":
            return f"{value:.4f} bits per token"
        case "bytes" | "file bytes":
            return f"{value:,} ({readable_size(value)})"
        case "sources":
            return "; ".join(value) or "-"
        case "finished":
            return "yes" if value else "no: an interrupted reading"
        case _:
            return f"{value:,}" if isinstance(value, int) else str(value)
