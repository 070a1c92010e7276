"""atlas train: a recipe, or a text and a variant, to a model in a run folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atlas_memory.cli.options import AsJson
from atlas_memory.training.recipe import (
    Recipe,
    find_recipe,
    load_recipe,
    recipe_names,
    require_data,
)
from atlas_memory.training.retrofit import further, is_retrofitted
from atlas_memory.training.run_folder import RunFolder, processes, require_new

if TYPE_CHECKING:
    from atlas_memory.training.run import Result

RECIPE = f"A recipe: {', '.join(recipe_names())}, or a .toml file; a retrofitted model; "
RECIPE += "with --resume a run folder."
DATA = "Text files, a folder, a pattern, .jsonl(.gz), .parquet, enwik8, or a data set of the hub."
SET = "Any field of the recipe, as a.b=c; may be given again."
# what the options before --output set, in their order
OPTIONS = ["data.source", "data.validation", "data.tokenizer", "model.variant", "model.size"]
OPTIONS += ["data.length", "train.steps", "train.batch"]


def run(
    context: typer.Context,
    recipe: Annotated[str | None, typer.Argument(help=RECIPE)] = None,
    data: Annotated[str | None, typer.Option(help=DATA)] = None,
    validation: Annotated[str | None, typer.Option(help="Text to validate on.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="bytes, a file, folder or name.")] = None,
    variant: Annotated[str | None, typer.Option(help="A name from `atlas list`.")] = None,
    size: Annotated[str | None, typer.Option(help="tiny, small, 170m .. 1.3b.")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens of a sequence.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps.")] = None,
    batch: Annotated[int | None, typer.Option(help="Sequences of a step.")] = None,
    output: Annotated[Path | None, typer.Option(help="The run folder.")] = None,
    changes: Annotated[list[str] | None, typer.Option("--set", help=SET)] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Carry the memory on.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would take.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model and validate it.

    Examples: atlas train quickstart;
    atlas train --data books/ --variant omeganet --size small --steps 500;
    atlas train runs/quickstart --resume
    """
    given = (data, validation, tokenizer, variant, size, length, steps, batch)
    pairs = zip(OPTIONS, given, strict=True)
    assignments = [f"{path}={json.dumps(value)}" for path, value in pairs if value is not None]
    assignments += (["train.stream=true"] if stream else []) + (changes or [])
    if recipe is None and not (assignments or resume or dry_run):
        print(context.get_help())
        return
    where = _resumed(recipe, output) if resume else None
    chosen = _recipe(recipe, where).set(assignments)
    require_data(chosen)
    if dry_run:
        from atlas_memory.cli.plan import plan
        from atlas_memory.cli.show import print_table

        planned = plan(chosen)
        print(json.dumps(planned)) if as_json else print_table(planned)
        return
    _train(chosen, where or _new_folder(chosen, output), as_json, resume)


def _recipe(name: str | None, resumed: RunFolder | None) -> Recipe:
    if resumed is not None:
        return resumed.read_recipe()
    if name is not None and is_retrofitted(Path(name)):
        return Recipe.from_dict(further(Path(name)))
    return Recipe() if name is None else load_recipe(find_recipe(name))


def _resumed(name: str | None, output: Path | None) -> RunFolder:
    folder = output or name
    if folder is None:
        raise ValueError("--resume needs the run folder: atlas train runs/name --resume")
    return RunFolder(Path(folder))


def _new_folder(recipe: Recipe, output: Path | None) -> RunFolder:
    rank, count = processes()
    if output is None:
        if count > 1:
            raise ValueError("several processes need one run folder: give --output")
        names = [recipe.name, *(f"{recipe.name}-{n}" for n in range(2, 10_000))]
        output = next(path for name in names if not (path := Path("runs") / name).exists())
    if rank == 0:
        require_new(output)
    return RunFolder(output)


def _train(recipe: Recipe, folder: RunFolder, as_json: bool, resume: bool) -> None:
    from atlas_memory.training.checkpoints import SaveError
    from atlas_memory.training.divergence import DivergedError

    try:
        results = _results(recipe, folder, resume)
    except (SaveError, DivergedError) as error:
        say(f"atlas: {error}")
        raise typer.Exit(1) from error
    except OSError as error:
        say(f"atlas: {error}; repair it, then go on with: atlas train {folder.path} --resume")
        raise typer.Exit(1) from error
    if results is None:
        say(f"stopped; go on with: atlas train {folder.path} --resume")
        return
    if processes()[0] == 0:
        _print({**results, "run folder": str(folder.path)}, as_json)


def _results(recipe: Recipe, folder: RunFolder, resume: bool) -> dict[str, Any] | None:
    """Figures of the model and of the one it is compared with; None if the run was stopped."""
    from atlas_memory.processor import flush_tiny_numbers, keep_freed_memory
    from atlas_memory.training.prepare import comparison, prepare
    from atlas_memory.training.run import run as train

    flush_tiny_numbers()
    keep_freed_memory()
    prepared = prepare(recipe, say)
    other = comparison(recipe) if recipe.compare else None
    also = prepare(other, say) if other else None
    say(f"training {recipe.model.variant} ({recipe.origin}) in {folder.path}")
    results = {recipe.model.variant: train(prepared, folder, say, resume=resume)}
    if also is not None and results[recipe.model.variant].finished:
        name = also.recipe.model.variant
        say(f"training {name} the same way")
        second = RunFolder(folder.path / name)
        results[name] = train(also, second, say, resume=resume and second.recipe.is_file())
        _draw_both(recipe.model.variant, folder, name, second)
    return _summary(results)


def _draw_both(one: str, folder: RunFolder, two: str, second: RunFolder) -> None:
    from atlas_memory.training import reread
    from atlas_memory.training.loss_curve import draw

    if processes()[0] != 0:
        return
    draw({one: folder.read_metrics(), two: second.read_metrics()}, folder.curve)
    results = {one: json.loads(folder.result.read_text())}
    results[two] = json.loads(second.result.read_text())
    found: dict[str, Any] = {name: result.get("reread") for name, result in results.items()}
    if all(found.values()):
        reread.draw(found, folder.reread)


def _summary(results: dict[str, Result]) -> dict[str, Any] | None:
    if not all(result.finished for result in results.values()):
        return None
    figures = {name: dict(result.figures) for name, result in results.items()}
    samples = [table.pop("sample", None) for table in figures.values()]
    return {**figures, "sample": samples[0]}


def _print(shown: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(shown))
        return
    for name, value in shown.items():
        if isinstance(value, dict) and "step" in value:
            print(_line(name, value))
        elif name == "sample" and value is not None:
            print(f"\nsample\n{value}\n")
        elif value is not None:
            print(f"{name:20} {value}")


def _line(name: str, figures: dict[str, Any]) -> str:
    if "validation_bits_per_byte" in figures:
        bits, each = figures["validation_bits_per_byte"], figures["validation_byte_perplexity"]
        score = f"{bits:.4f} bits per byte (perplexity per byte {each:.3f})"
    else:
        score = f"accuracy {figures['validation_accuracy']:.4f}"
    line = (
        f"{name:20} validation {score}  {figures['parameters']:,} parameters  "
        f"{figures['tokens']:,} tokens  {figures['seconds']:,.0f} s"
    )
    return f"{line}\n{'':20} second reading {again}" if (again := _again(figures)) else line


def _again(figures: dict[str, Any]) -> str:
    """0.80 of the first at once, 0.90 after 256 tokens .."""
    found = figures.get("reread") or {}
    shares = {int(name[4:]): share for name, share in found.items() if name.startswith("gap_")}
    told = [f"{share:.3f} after {gap:,} tokens" for gap, share in shares.items() if gap]
    if 0 in shares:
        told.insert(0, f"{shares[0]:.3f} of the first at once")
    return ", ".join(told)


def say(text: str) -> None:
    """Progress goes to stderr, from the first process only."""
    if processes()[0] == 0:
        print(text, file=sys.stderr, flush=True)
