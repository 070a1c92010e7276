"""Language modelling and common sense: train variants alike, then ask the whole suite.

The paper trains 340M to 1.3B parameters on 15B to 100B tokens. Smaller presets train on a corpus
at hand, and cut items from its held-out part where those of the hub need a network.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import torch

from atlas_memory.experiments.experiment import Experiment, Result, Seeded, Table, Workspace
from atlas_memory.experiments.language_model import (
    paper_recipe,
    prepared,
    recipe_of,
    train_prepared,
)
from atlas_memory.experiments.text_models import SECOND, score, second
from atlas_memory.training.prepare import equal_width

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from atlas_memory.model import AtlasForCausalLM
    from atlas_memory.training.prepare import Prepared

VARIANTS = ("transformer_plus", "gated_deltanet", "titans", "omeganet", "atlas")
NINE = [
    *("wikitext", "lambada_openai", "piqa", "hellaswag", "winogrande"),
    *("arc_easy", "arc_challenge", "social_iqa", "boolq"),
]
# The paper's Table 2 at 760M: perplexity of Wikitext, of LAMBADA, mean of the eight accuracies.
PUBLISHED = {
    "transformer_plus": (25.21, 27.64, 48.69),
    "retnet": (26.08, 24.45, 48.46),
    "deltanet": (24.37, 24.60, 48.97),
    "gated_deltanet": (21.18, 22.09, 49.69),
    "samba": (20.63, 22.71, 51.08),
    "gated_deltanet_h2": (19.88, 20.83, 51.49),
    "titans": (20.04, 21.96, 51.56),
    "memora": (22.28, 22.31, 51.52),
    "swdt": (19.89, 21.52, 50.1),
    "dla": (23.12, 22.09, 50.46),
    "deeptransformer": (20.32, 20.67, 51.31),
    "dot": (19.96, 20.15, 52.39),
    "omeganet": (19.16, 20.14, 52.56),
    "atlas": (18.92, 21.01, 52.77),
}
GENERATED = "generated"  # the source of a corpus of random words
HELD_OUT = "held out"  # items cut from the corpus's own validation text
HELD_OUT_ITEMS = 100  # of a task without a limit

_QUICK = {
    "model.size": "tiny",
    "model.hidden_size": 128,
    "model.num_hidden_layers": 2,
    "model.num_attention_heads": 4,
    "data.source": "enwik8",
    "data.length": 1024,
    "data.validation_tokens": 65_536,
    "train.steps": 300,
    "train.batch": 2,
    "train.learning_rate": 4e-3,
    "train.warmup": 20,
    "train.save_every": 100,
    "train.sample": 0,
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """recipe: a name, or its keys with dots. changes: of the recipe, by variant.

    parameters: what feed-forward networks fill every model up to. items: HELD_OUT, a folder, or
    None for the hub's. limit: of each task.
    """

    recipe: str | dict[str, Any]
    tasks: list[str]
    changes: dict[str, Any] = field(default_factory=dict)
    parameters: int | None = None
    items: str | None = HELD_OUT
    limit: int | None


@dataclass(frozen=True, kw_only=True)
class Cell(Seeded, Settings):
    """A variant, with its own changes alone."""


_THREE = ["wikitext", "lambada_openai", "piqa"]
PRESETS = {
    "smoke": Settings(
        recipe={
            **_QUICK,
            "model.hidden_size": 16,
            "model.num_hidden_layers": 1,
            "model.num_attention_heads": 4,
            "data.source": GENERATED,
            "data.length": 32,
            "data.validation_tokens": 512,
            "train.steps": 2,
            "train.batch": 2,
            "train.warmup": 0,
        },
        tasks=_THREE,
        limit=2,
    ),
    "small": Settings(recipe=_QUICK, tasks=_THREE, parameters=760_000, limit=100),
    "paper": Settings(recipe="760m", tasks=NINE, items=None, limit=None),
}


def cells(settings: Settings, variants: Sequence[str], seeds: int) -> list[Cell]:
    """One model each; its own changes of the recipe are part of its cell."""
    return [
        Cell.of(settings, variant=variant, seed=seed, changes=settings.changes.get(variant, {}))
        for seed in range(seeds)
        for variant in variants
    ]


def run(cell: Cell, workspace: Workspace) -> dict[str, Any]:
    from atlas_memory.evaluation.harness import TASKS, Options
    from atlas_memory.evaluation.suite import evaluate

    what = prepared(_recipe(cell, workspace.folder), workspace)
    loaded, figures = train_prepared(what, workspace)
    items = None if cell.items is None else Path(cell.items)
    if cell.items == HELD_OUT:
        items = write_items(what, workspace.folder / "items", cell.limit or HELD_OUT_ITEMS)
    options = Options(cell.limit, items)
    report = evaluate(loaded, cell.tasks, options, workspace.say)
    for task in cell.tasks:
        for metric in TASKS[task][1]:
            figures[f"{task} {metric}"] = report["tasks"][task][metric]
    return {**figures, **_of_a_window(loaded.model, what), "average": report.get("average")}


def _of_a_window(model: AtlasForCausalLM, what: Prepared) -> dict[str, Any]:
    """Bits per byte in stretches of a window of text, and the state behind its last token."""
    bits = score(model, what.validation, what.recipe.train.batch)
    with torch.inference_mode():
        cache = model(what.validation[0]["input_ids"][None], use_cache=True).past_key_values
    return {
        "by_position": [float(f"{b / (what.bytes_per_token or 1):.4f}") for b in bits],
        "state_bytes": cache.num_bytes,
    }


def _recipe(cell: Cell, folder: Path) -> Any:
    if isinstance(cell.recipe, str):
        return paper_recipe(cell.recipe, cell.variant, cell.seed)
    plain = {**cell.recipe, **cell.changes}
    if plain["data.source"] == GENERATED:
        plain["data.source"] = str(write_text(folder / "text"))
    recipe = recipe_of(plain, cell.variant, cell.seed)
    if cell.parameters is None:
        return recipe
    width = equal_width(recipe.model.config(), cell.parameters)
    return recipe_of({**plain, "model.intermediate_size": width}, cell.variant, cell.seed)


def write_text(folder: Path) -> Path:
    """Some documents of words without a meaning, as a corpus that needs nothing."""
    from atlas_memory.tasks.key_values import Documents

    documents = Documents(pairs=48, keys=64, values=64)
    folder.mkdir(exist_ok=True)
    for n in range(8):
        (folder / f"{n}.txt").write_text(documents[n]["text"] + "\n")
    return folder


def write_items(what: Prepared, folder: Path, count: int) -> Path:
    """Items of three tasks from the validation text."""
    from atlas_memory.tasks.held_out import continuations, last_words, pages

    assert what.tokenizer is not None
    ids = [i for window in what.validation for i in window["input_ids"].tolist()]
    text = what.tokenizer.fast.decode(ids)
    rows = {
        "wikitext": pages(text, 1000, count),
        "lambada_openai": last_words(text, 24, count),
        "piqa": continuations(text, 12, count),
    }
    folder.mkdir(exist_ok=True)
    for task, items in rows.items():
        lines = [json.dumps(item) + "\n" for item in items]
        (folder / f"{task}.jsonl").write_text("".join(lines))
    return folder


def table(results: list[Result[Cell]]) -> Table:
    """Means over seeds, and the paper's row at 760M."""
    metrics = [name for name in results[0].figures if " " in name]
    rows = []
    for variant in dict.fromkeys(result.cell.variant for result in results):
        own = [result.figures for result in results if result.cell.variant == variant]
        bits = own[0].get("validation_bits_per_byte")
        figures = [round(mean(f[m] for f in own), 4) for m in metrics]
        average = own[0]["average"] and round(100 * mean(f["average"] for f in own), 2)
        again = second([r for r in results if r.cell.variant == variant])
        state = own[0].get("state_bytes")
        here = [bits and round(bits, 4), again and round(again, 3)]
        sizes = [own[0]["parameters"], state and round(state / 1000, 1), _speed(own)]
        rows.append([variant, *here, *sizes, *figures, average, *_paper(variant)])
    paper = ("paper wiki ppl", "paper LMB ppl", "paper average")
    notes = ["the paper's figures are those of 760M parameters and 30B tokens"]
    costs = ("parameters", "state KB", "tokens/s in training")
    head = ("variant", "bits per byte", SECOND, *costs, *metrics, "average", *paper)
    return Table(head, rows, notes)


def _speed(figures: list[dict[str, Any]]) -> int | None:
    seconds = sum(f.get("seconds") or 0 for f in figures)
    return round(sum(f["tokens"] for f in figures) / seconds) if seconds else None


def _paper(variant: str) -> tuple[float | None, ...]:
    return PUBLISHED.get(variant, (None, None, None))


def plot(results: list[Result[Cell]], figure: Figure) -> None:
    """Bits per byte of every variant here, and the paper's word perplexity."""
    rows = table(results).rows
    names = [row[0] for row in rows]
    ours, theirs = figure.subplots(1, 2)
    ours.barh(names, [row[1] or 0 for row in rows])
    ours.set(title="here", xlabel="bits per byte")
    theirs.barh(names, [_paper(name)[0] or 0 for name in names], color="grey")
    theirs.set(title="paper, 760M", xlabel="Wikitext word perplexity", yticklabels=[])
    for axes in (ours, theirs):
        axes.invert_yaxis()


def deviations(settings: Settings) -> list[str]:
    if isinstance(settings.recipe, str):
        return []
    recipe = settings.recipe
    tokens = recipe["train.steps"] * recipe["train.batch"] * recipe["data.length"]
    found = [
        f"models of size {recipe['model.size']} and {tokens:,} tokens of {recipe['data.source']} "
        "stand in for 760M parameters and 30B tokens of FineWeb"
    ]
    if settings.items == HELD_OUT:
        found.append("items of wikitext, lambada_openai and piqa are cut from the held-out text")
    if settings.limit is not None:
        found.append(f"only {settings.limit} items of every task")
    return found


EXPERIMENT = Experiment(
    "language",
    "Does a better memory make a better language model of the same size?",
    *(PRESETS, VARIANTS, cells, run, table, plot, deviations),
)
