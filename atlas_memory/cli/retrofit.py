"""atlas retrofit: give a pretrained model memories, and save it as a model of this package."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from atlas_memory.cli.options import AsJson

MODEL = "A folder, a .gguf file, smollm2, or a name of the hub."
LAYERS = "Which get a memory, as 3,7,11; negative ones from the end. Default: three upper ones."
WINDOW = "Tokens that attention still sees, or none to keep all."
LORA = "Rank of what attention may learn, 0 for nothing."


def run(
    model: Annotated[str, typer.Argument(help=MODEL)],
    memory: Annotated[str, typer.Option(help="A variant of `atlas list` with a memory.")] = "atlas",
    layers: Annotated[str | None, typer.Option(help=LAYERS)] = None,
    window: Annotated[str, typer.Option(help=WINDOW)] = "1024",
    sinks: Annotated[int, typer.Option(help="First tokens that stay visible.")] = 4,
    head: Annotated[int, typer.Option(help="Largest head of a memory.")] = 64,
    lora: Annotated[int, typer.Option(help=LORA)] = 0,
    precision: Annotated[str | None, typer.Option(help="Of the weights; the base's own.")] = None,
    out: Annotated[Path | None, typer.Option(help="The folder to write.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would take.")] = False,
    as_json: AsJson = False,
) -> None:
    """Give a pretrained model memories beside its attention; it says what it said before.

    Examples: atlas retrofit meta-llama/Llama-3.2-1B --dry-run;
    atlas retrofit smollm2 --layers 15,20,25 --window 256 --out runs/smollm2;
    atlas train runs/smollm2 --data books/ --stream
    """
    from atlas_memory.cli.show import print_table

    shape: dict[str, Any] = {"window": _window(window), "sinks": sinks, "lora": lora}
    chosen = None if layers is None else _numbers(layers)
    if dry_run:
        from atlas_memory.cli.retrofit_plan import retrofit_plan
        from atlas_memory.retrofitting.build import retrofit_config
        from atlas_memory.retrofitting.pretrained import load_config

        config = retrofit_config(load_config(model), memory, chosen, head=head, **shape)
        shown = retrofit_plan(config)
    else:
        shown = _retrofit(model, out, precision, (memory, chosen), {**shape, "head": head})
    if as_json:
        print(json.dumps(shown))
    else:
        print_table(shown)


def _retrofit(
    name: str,
    out: Path | None,
    precision: str | None,
    given: tuple[Any, Any],
    shape: dict[str, Any],
) -> dict[str, Any]:
    from atlas_memory.cli.retrofit_plan import added
    from atlas_memory.files import made_once
    from atlas_memory.retrofitting.build import retrofit
    from atlas_memory.retrofitting.pretrained import load_pretrained

    if out is None:
        raise ValueError("give --out, the folder to write, or --dry-run")
    if out.exists():
        raise ValueError(f"{out} exists; give another --out")
    found = load_pretrained(name, precision)
    model: Any = retrofit(found.model, *given, **shape)

    def save(draft: Path) -> None:
        model.save_pretrained(draft)
        found.tokenizer.save_pretrained(draft)

    made_once(out, save)
    return {**added(model.config), "folder": str(out)}


def _window(text: str) -> int | None:
    if text == "none":
        return None
    if not text.isdigit():
        raise ValueError(f"--window {text}: give a number of tokens, or none")
    return int(text)


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise ValueError(f"--layers {text}: give numbers, as 3,7,11") from error
