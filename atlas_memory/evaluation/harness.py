"""Language modelling and common sense through lm-eval's own harness. [Atlas Table 2, 8]

Prompts, scoring and metrics are lm-eval's; this file gives it our model, and the items from the
hub or from local files. Zero-shot, and every document on its own, as the harness does it.
"""

# lm_eval and datasets have no types.
# mypy: disable-error-code="import-untyped"

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from atlas_memory.data.tokenizer import Tokenizer
from atlas_memory.evaluation.local_data import find, read_rows, unavailable

if TYPE_CHECKING:
    from atlas_memory.model import AtlasForCausalLM

# task: its file in lm-eval, and what the paper reports of it
TASKS = {
    "wikitext": ("wikitext/wikitext.yaml", ("word_perplexity",)),
    "lambada_openai": ("lambada/lambada_openai.yaml", ("perplexity", "acc")),
    "piqa": ("piqa/piqa.yaml", ("acc",)),
    "hellaswag": ("hellaswag/hellaswag.yaml", ("acc_norm",)),
    "winogrande": ("winogrande/default.yaml", ("acc",)),
    "arc_easy": ("arc/arc_easy.yaml", ("acc",)),
    "arc_challenge": ("arc/arc_challenge.yaml", ("acc_norm",)),
    "social_iqa": ("siqa/siqa.yaml", ("acc",)),
    "boolq": ("super_glue/boolq/default.yaml", ("acc",)),
}
MAX_LENGTH = 2048  # lm-eval's own, for a model that has no limit


@dataclass(frozen=True)
class Options:
    """limit: items of each task. data: a folder with files of some tasks. batch: texts at once.

    lengths, corpus: of the long texts of niah and babilong; None takes those published.
    run: the folder of the model, whose own validation text is read twice where no corpus is given.
    """

    limit: int | None = None
    data: Path | None = None
    batch: int = 8
    max_length: int = MAX_LENGTH
    lengths: tuple[int, ...] | None = None
    corpus: str | None = None
    run: Path | None = None


def evaluate(
    model: AtlasForCausalLM,
    tokenizer: Tokenizer,
    tasks: Sequence[str],
    options: Options,
    say: Callable[[str], None],
) -> dict[str, dict[str, Any]]:
    """task -> every metric of lm-eval, the number of items and where they came from."""
    _require_lm_eval()
    with TemporaryDirectory(prefix="atlas-eval-") as folder, _quiet():
        sources = {task: _configure(Path(folder), task, options.data) for task in tasks}
        for task, source in sources.items():
            say(f"{task}: items from {source}")
        results = _run(harness_model(model, tokenizer, options), Path(folder), tasks, options.limit)
    return {task: {**results[task], "source": sources[task]} for task in tasks}


def deviations(tokenizer: Tokenizer, tasks: Sequence[str], options: Options) -> list[str]:
    """Where the figures are not those of the paper's protocol."""
    found = []
    if options.limit is not None:
        found.append(f"only the first {options.limit} items of every task")
    if tokenizer.end is None:
        found.append("the tokenizer has no end of text, so a document begins behind a newline")
    file = find(options.data, "wikitext") if options.data and "wikitext" in tasks else None
    if file is not None and any("<unk>" in row["page"] for row in read_rows(file, "wikitext")):
        found.append("wikitext is its tokenized form, whose rare words are <unk>, not the raw text")
    return found


def harness_model(model: AtlasForCausalLM, tokenizer: Tokenizer, options: Options) -> Any:
    """lm-eval's HFLM around a model.

    A tokenizer of bytes has no end of text; a document then begins behind a newline.
    """
    from lm_eval.models.huggingface import HFLM

    fast = deepcopy(tokenizer.fast)
    if fast.pad_token is None and fast.eos_token is None:
        fast.pad_token = fast.convert_ids_to_tokens(0)  # or lm-eval would add an id to the model's
    return HFLM(
        pretrained=model,
        backend="causal",
        tokenizer=fast,
        batch_size=options.batch,
        max_length=options.max_length,
        prefix_token_id=prefix(tokenizer),
    )


def prefix(tokenizer: Tokenizer) -> int:
    """The id in front of every document: the end of the one before."""
    if tokenizer.end is not None:
        return tokenizer.end
    return tokenizer.fast.encode("\n", add_special_tokens=False)[0]


def _require_lm_eval() -> None:
    from importlib.util import find_spec

    if find_spec("lm_eval") is None:
        raise ValueError("lm-eval is not installed; pip install 'atlas-memory[eval]'")


def _configure(folder: Path, task: str, data: Path | None) -> str:
    """Write the task's config, which is lm-eval's own with other data; say where they are."""
    import lm_eval.tasks

    assert lm_eval.tasks.__file__ is not None
    original = Path(lm_eval.tasks.__file__).parent / TASKS[task][0]
    config: dict[str, Any] = {"include": str(original), "task": task, "num_fewshot": 0}
    file = None if data is None else find(data, task)
    if file is not None:
        items = folder / f"{task}.jsonl"
        items.write_text("".join(json.dumps(row) + "\n" for row in read_rows(file, task)))
        if not items.stat().st_size:
            raise ValueError(f"{file} is empty; give at least one item")
        config |= _local(items, folder / "cache")
    # JSON is YAML
    (folder / f"{task}.yaml").write_text(json.dumps(config))
    return str(file) if file is not None else "the hub"


def _local(items: Path, cache: Path) -> dict[str, Any]:
    files = {"data_files": {"test": str(items)}, "cache_dir": str(cache)}
    splits = {"training_split": None, "validation_split": None, "test_split": "test"}
    return {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": files, **splits}


def _run(
    lm: Any, folder: Path, tasks: Sequence[str], limit: int | None
) -> dict[str, dict[str, Any]]:
    from lm_eval.evaluator import evaluate as run_harness
    from lm_eval.tasks import TaskManager

    # without lm-eval's own tasks: to list thousands of them takes a minute
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    loaded: dict[str, dict[str, Any]] = {"tasks": {}, "groups": {}, "group_map": {}}
    for task in tasks:
        loaded["tasks"] |= _load(manager, task)
    try:
        results = run_harness(lm, loaded, limit=limit, bootstrap_iters=0, log_samples=False)
    except AssertionError as error:
        # the one thing that lm-eval asserts about items: an answer fits into the length
        raise ValueError(
            f"an answer is longer than {lm.max_length} tokens; give a larger --max-length"
        ) from error
    counts = results["n-samples"]
    return {t: _metrics(results["results"][t], counts[t]["effective"]) for t in tasks}


def _load(manager: Any, task: str) -> dict[str, Any]:
    try:
        tasks: dict[str, Any] = manager.load([task])["tasks"]
    except Exception as error:
        raise unavailable(task, error) from error
    return tasks


def _metrics(found: dict[str, Any], count: int) -> dict[str, Any]:
    """`acc,none` -> `acc`, and how far a share of so many items may be off."""
    named = {key.partition(",")[0]: value for key, value in found.items()}
    metrics = {
        name: float(value)
        for name, value in named.items()
        if isinstance(value, int | float) and name not in ("sample_len", "sample_count")
    }
    shares = [name for name in metrics if name.startswith("acc")]
    errors = {f"{name}_stderr": _standard_error(metrics[name], count) for name in shares}
    return {**metrics, **errors, "items": count}


def _standard_error(share: float, count: int) -> float:
    return float((share * (1 - share) / max(1, count - 1)) ** 0.5)


@contextmanager
def _quiet() -> Iterator[None]:
    """lm-eval warns about what is meant: a model that is already there, tasks with other data."""
    from datasets import disable_progress_bars, enable_progress_bars

    logger = logging.getLogger("lm_eval")
    before = logger.level
    logger.setLevel(logging.ERROR)
    disable_progress_bars()
    try:
        yield
    finally:
        logger.setLevel(before)
        enable_progress_bars()
