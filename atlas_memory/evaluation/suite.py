"""Every task by its name, and a report of what a model reached on some of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from atlas_memory.evaluation import harness, recall
from atlas_memory.evaluation.harness import Options

if TYPE_CHECKING:
    from atlas_memory.reading.loading import Loaded

Say = Callable[[str], None]
Figures = dict[str, Any]

STAND_IN = "key_value"  # documents made by rule, asked as those of the recall benchmarks are
LONG = {"niah": "needle", "babilong": "babilong"}  # task: its module beside this one
REREAD = "reread"
NAMES = (*harness.TASKS, *recall.TASKS, STAND_IN, *LONG, REREAD)
# What the paper reports of a task; the mean of the eight accuracies is its last column.
REPORTED = {task: metrics for task, (_, metrics) in harness.TASKS.items()}
REPORTED |= {task: ("contains",) for task in (*recall.TASKS, STAND_IN)}
REPORTED |= dict.fromkeys(LONG, ("accuracy",))


def require_tasks(text: str) -> tuple[str, ...]:
    """`piqa,boolq` -> the names, each of them known and once."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in NAMES]
    if unknown or not names:
        raise ValueError(f"unknown task {(*unknown, text)[0]!r}; choose from: {', '.join(NAMES)}")
    return names


def evaluate(loaded: Loaded, names: Sequence[str], options: Options, say: Say) -> Figures:
    """tasks: the figures of each; average: of the paper's eight, if all are there; deviations."""
    tasks = _harness(loaded, names, options, say)
    for name in names:
        if name in recall.TASKS or name == STAND_IN:
            tasks[name] = _recall(loaded, name, options, say)
        elif name in LONG:
            tasks[name] = _long(loaded, name, options, say)
        elif name == REREAD:
            tasks[name] = _reread(loaded, options, say)
    found = harness.deviations(loaded.tokenizer, names, options)
    for figures in tasks.values():
        found += figures.pop("deviations", [])
    report: Figures = {"tasks": {name: tasks[name] for name in names}}
    if (average := mean_accuracy(tasks)) is not None:
        report["average"] = average
    return {**report, "deviations": found}


def mean_accuracy(tasks: dict[str, Figures]) -> float | None:
    """The mean over the eight tasks of common sense, of what the paper reports of each."""
    chosen = {task: metrics[-1] for task, metrics in REPORTED.items() if task in harness.TASKS}
    del chosen["wikitext"]
    if not all(task in tasks for task in chosen):
        return None
    return float(sum(tasks[task][metric] for task, metric in chosen.items()) / len(chosen))


def _harness(
    loaded: Loaded, names: Sequence[str], options: Options, say: Say
) -> dict[str, Figures]:
    own = [name for name in names if name in harness.TASKS]
    if not own:
        return {}
    return harness.evaluate(loaded.model, loaded.tokenizer, own, options, say)


def _recall(loaded: Loaded, name: str, options: Options, say: Say) -> Figures:
    if name == STAND_IN:
        task, rows, source = recall.TASKS["swde"], _documents(options.limit or 200), "generated"
    else:
        task = recall.TASKS[name]
        rows, source = recall.load_rows(name, options.data)
    asked = recall.limited(recall.items(task, rows, loaded.tokenizer), options.limit)
    say(f"{name}: {len(asked)} items from {source}")
    found = recall.evaluate(loaded.model, loaded.tokenizer, asked, options.batch, say)
    del found["answers"]
    return {**found, "source": source}


def _documents(count: int) -> Iterator[dict[str, str]]:
    from atlas_memory.tasks.key_values import Documents

    documents = Documents(pairs=16)
    return (documents[n] for n in range(count))


def _long(loaded: Loaded, name: str, options: Options, say: Say) -> Figures:
    module = importlib.import_module(f"atlas_memory.evaluation.{LONG[name]}")
    lengths = None if options.lengths is None else list(options.lengths)
    asked = {"samples": options.limit, "lengths": lengths, "corpus": options.corpus}
    settings = {key: value for key, value in asked.items() if value is not None}
    plan = {**settings, "batch": options.batch}
    return module.evaluate(loaded.model, loaded.tokenizer, plan, say)


def _reread(loaded: Loaded, options: Options, say: Say) -> Figures:
    """The second reading of the corpus given, else of the text that the run was validated on."""
    from atlas_memory.training.prepare import corpus_of
    from atlas_memory.training.recipe import Recipe
    from atlas_memory.training.reread import reread
    from atlas_memory.training.run_folder import RunFolder

    if options.corpus is not None:
        recipe = Recipe.from_dict({"data.source": options.corpus})
    elif options.run is not None and RunFolder(options.run).environment.is_file():
        recipe = RunFolder(options.run).read_recipe()
    else:
        raise ValueError("reread: the run names no text; give one with --corpus")
    text = corpus_of(recipe, loaded.tokenizer, say).validation
    found = reread(loaded.model, text.ids[: recipe.data.validation_tokens or None])
    if found is None:
        raise ValueError(f"reread: the validation text has {len(text.ids)} tokens, too few")
    return {**found, "source": recipe.data.validation or recipe.data.source}
