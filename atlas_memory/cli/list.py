"""atlas list: every model, as a table for people, for README or for machines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from atlas_memory.family import Variant


# What the paper compares Atlas with most, and what it proposes; README's table.
FEW = (
    "transformer_plus",
    "gated_deltanet",
    "titans",
    "deeptransformer",
    "omeganet",
    "dot",
    "atlas",
    "atlas_mag",
    "atlas_mal",
)


def run(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per model.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="docs/family.md's.")] = False,
    short: Annotated[
        bool, typer.Option("--short", help="README's table, of a few models.")
    ] = False,
) -> None:
    """List the models and what separates them."""
    from atlas_memory.family import VARIANTS

    if as_markdown or short:
        print(short_table() if short else markdown_table())
        return
    if not as_json:
        print(f"{'name':18} {'model':18} made of (c: window, b: chunk)")
    for name, variant in VARIANTS.items():
        if as_json:
            print(json.dumps({"name": name, **described(name)}))
        else:
            print(f"{name:18} {variant.title:18} {choices(variant)}")


def described(name: str) -> dict[str, Any]:
    """A model and its row of the paper's Table 1 as plain data."""
    from atlas_memory.blocks import mixer_to_dict
    from atlas_memory.family import MARKS, TABLE_1, VARIANTS

    variant, row = VARIANTS[name], TABLE_1.get(name)
    table = None
    if row is not None:
        marks = dict(zip(MARKS, row.marks, strict=True))
        table = {"attentional bias": row.bias, "optimizer": row.optimizer, **marks}
        table["memory write"] = row.write
    return {
        "title": variant.title,
        "mixers": [mixer_to_dict(mixer) for mixer in variant.mixers],
        "memory": None if variant.memory is None else variant.memory.to_dict(),
        "table 1": table,
    }


def choices(variant: Variant) -> str:
    """What a model is made of, on one line."""
    spec = variant.memory
    parts = [_short(mixer) for mixer in variant.mixers]
    if spec is not None:
        inside = (spec.features, spec.architecture, spec.bias, spec.optimizer, spec.retention)
        memory = " ".join(map(_short, inside)) + f" c={spec.window} b={spec.chunk}"
        memory += " online" if spec.output == "online" else ""
        parts = [memory if part == "Memory" else part for part in parts]
        if memory not in parts:
            parts.append(memory)
    return " + ".join(parts)


def _short(choice: Any) -> str:
    """Polynomial(degree=2) -> Polynomial(2), Matrix() -> Matrix, defaults left out."""
    from dataclasses import MISSING, fields

    given = []
    for field in fields(choice):
        value = getattr(choice, field.name)
        if field.default is MISSING or value != field.default or field.name == "degree":
            given.append(str(value) if field.name == "degree" else f"{field.name}={value}")
    return type(choice).__name__ + (f"({', '.join(given)})" if given else "")


def markdown_table() -> str:
    """Our models beside the paper's Table 1."""
    from atlas_memory.family import MARKS, TABLE_1, VARIANTS

    head = ["name", "model", "attentional bias", "optimizer", *MARKS, "memory write M_t", "here"]
    rows = [head, ["---"] * len(head)]
    for name, variant in VARIANTS.items():
        row = TABLE_1.get(name)
        paper = [""] * (len(head) - 3)
        if row is not None:
            marks = ["yes" if mark else "" for mark in row.marks]
            paper = [_code(row.bias), row.optimizer, *marks, _code(row.write)]
        rows.append([_code(name), variant.title, *paper, _code(choices(variant))])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def short_table() -> str:
    """A few models: what the memory minimizes, by which steps, and what it is made of here."""
    from atlas_memory.family import TABLE_1, VARIANTS

    rows = [["name", "model", "attentional bias", "optimizer", "here"], ["---"] * 5]
    for name in FEW:
        variant, row = VARIANTS[name], TABLE_1.get(name)
        paper = ["", ""] if row is None else [_code(row.bias), row.optimizer]
        rows.append([_code(name), variant.title, *paper, _code(choices(variant))])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _code(text: str) -> str:
    escaped = text.replace("|", "\\|")
    return f"`{escaped}`"
