"""atlas show: one model at one size, its row of the table and what it costs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atlas_memory.cli.options import AsJson, assigned
from atlas_memory.names import size_names, suggest, variant_names

if TYPE_CHECKING:
    from atlas_memory.config import AtlasConfig

NAME = "A name from `atlas list`, or the folder of a model: of `atlas train` or `atlas retrofit`."
SET = "A field of AtlasConfig or of its memory, as memory.window=8; may be given again."
CHOICE = {"name", "mixer"}  # what names a choice: {"name": "muon", "steps": 5}


def run(
    variant: Annotated[str, typer.Argument(help=NAME)],
    size: Annotated[str, typer.Option(help="tiny, small, 170m, 340m, 760m or 1.3b.")] = "small",
    vocab_size: Annotated[int | None, typer.Option(help="Default: the size's own.")] = None,
    context: Annotated[int, typer.Option(help="Tokens before the one that FLOPs count.")] = 4096,
    changes: Annotated[list[str] | None, typer.Option("--set", help=SET)] = None,
    as_json: AsJson = False,
) -> None:
    """Show a model: its row of the paper's Table 1, parameters, state and FLOPs per token.

    Examples: atlas show atlas --size 1.3b; atlas show atlas --set memory.window=16; atlas show
    runs/quickstart; atlas show runs/smollm2
    """
    there = Path(variant).is_dir() and variant not in variant_names()
    overrides = assigned(changes) | ({} if vocab_size is None else {"vocab_size": vocab_size})
    if there and overrides:
        raise ValueError(
            f"{variant} is a folder, whose model is as it is; leave --set and --vocab-size out"
        )
    shown = _run(Path(variant), context) if there else describe(variant, size, overrides, context)
    if as_json:
        print(json.dumps(shown))
    else:
        print_table(shown)


def print_table(shown: dict[str, Any]) -> None:
    lines = _lines(shown)
    width = max(len(name) for name, value in lines if value)  # a heading may be longer
    for name, value in lines:
        print(f"{name:{width}}  {value}".rstrip())


def _run(folder: Path, context: int) -> dict[str, Any]:
    """The model of a run; of a retrofitted one what was added to it."""
    from atlas_memory.reading.loading import model_folder

    place = model_folder(folder)
    _require_context(context)
    from atlas_memory.training.retrofit import is_retrofitted

    if is_retrofitted(folder):
        from atlas_memory.cli.retrofit_plan import added
        from atlas_memory.retrofitting.pretrained import load_config

        return added(load_config(str(folder)))
    from atlas_memory.config import AtlasConfig

    return {"run": str(folder), **_costs(AtlasConfig.from_pretrained(place), context)}


def _require_context(context: int) -> None:
    if context < 1:
        raise ValueError(f"--context {context}: give at least one token")


def describe(variant: str, size: str, overrides: dict[str, Any], context: int) -> dict[str, Any]:
    if variant not in variant_names():
        raise ValueError(f"unknown variant {variant!r}; {suggest(variant, variant_names())}")
    if size not in size_names():
        raise ValueError(f"unknown size {size!r}; {suggest(size, size_names())}")
    _require_context(context)
    from atlas_memory.cli.list import described
    from atlas_memory.config import AtlasConfig

    config = AtlasConfig.from_variant(variant, size, **overrides)
    return {"name": variant, "size": size, **described(variant), **_costs(config, context)}


def _costs(config: AtlasConfig, context: int) -> dict[str, Any]:
    """What a model is made of and what it costs, beside Transformer++ of its width and depth."""
    from atlas_memory.cli.costs import costs

    counted = costs(config, context)
    return {
        "mixers": config.mixers,
        "memory": config.memory,
        "layers": config.num_hidden_layers,
        "width": config.hidden_size,
        "heads": config.num_attention_heads,
        "feed-forward width": config.intermediate_size,
        "vocabulary": config.vocab_size,
        "parameters": counted.parameters,
        "state bytes": counted.state_bytes,
        "state bytes per token": counted.state_bytes_per_token,
        "FLOPs per token": counted.flops_per_token,
        "state bytes of Transformer++": _attention_bytes(config),
    }


def _attention_bytes(config: AtlasConfig) -> dict[str, int]:
    """What full attention of the same width and depth keeps, by the tokens it has read."""
    from atlas_memory.cli.costs import state_bytes
    from atlas_memory.family import VARIANTS

    mixer, width = VARIANTS["transformer_plus"].mixers[0], replace(config.width, memory=None)
    each = config.num_hidden_layers * state_bytes(mixer, width)[1]
    return {name: n * each for name, n in {"4K": 4_096, "32K": 32_768, "1M": 2**20}.items()}


def _lines(shown: dict[str, Any], of: str = "") -> list[tuple[str, str]]:
    """One line a value: a table inside is a heading and indented lines, a choice is a call."""
    lines: list[tuple[str, str]] = []
    for name, value in shown.items():
        if isinstance(value, dict) and not CHOICE.intersection(value):
            inside = _lines(value, of or name)
            lines += [(name, ""), *((f"  {inner}", said) for inner, said in inside)]
        else:
            lines.append((name, _readable(of or name, value)))
    return lines


def _readable(name: str, value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            large = name.startswith("state bytes") and value >= 1_000
            return f"{value:,} ({readable_size(value)})" if large else f"{value:,}"
        case dict():
            said = {k: v for k, v in value.items() if k not in CHOICE and v is not None}
            given = [f"{key}={inner}" for key, inner in said.items()]
            called = next(value[key] for key in CHOICE if key in value)
            return called + (f"({', '.join(given)})" if given else "")
        case list():
            return " + ".join(_readable(name, item) for item in value)
        case _:
            return str(value)


def readable_size(count: int) -> str:
    """431136 -> 431 KB"""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"
