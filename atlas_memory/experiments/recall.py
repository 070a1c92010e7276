"""In-context recall: which memory finds again what a document said.

The published benchmarks need a language model of hundreds of millions of parameters. The stand-in
asks the same question at a small scale: documents of keys and values, one question behind each,
`contains` as the metric, and documents longer than those trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np

from atlas_memory.experiments.experiment import Experiment, Result, Seeded, Table, Workspace
from atlas_memory.layers.shapes_only import num_parameters
from atlas_memory.tasks.key_values import Documents, sentence, vocabulary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from atlas_memory.data.tokenizer import Tokenizer

VARIANTS = ("transformer_plus", "gated_deltanet", "titans", "omeganet", "atlas")
TASKS = ("swde", "nq", "drop", "fda", "squad", "triviaqa")
# The paper's Table 5, in that order, and the average.
PUBLISHED = {
    "transformer_plus": (84.9, 23.0, 28.4, 72.5, 48.1, 64.4, 53.55),
    "gated_deltanet": (63.2, 19.1, 26.7, 33.4, 39.6, 59.7, 40.28),
    "titans": (65.1, 20.7, 27.2, 37.3, 42.6, 61.0, 42.31),
    "omeganet": (67.4, 21.1, 27.2, 39.0, 43.2, 60.9, 43.13),
    "atlas": (66.8, 21.9, 27.4, 40.7, 44.1, 61.3, 43.70),
}
END = "\n"
EVALUATION_SEED = 1 << 20


@dataclass(frozen=True, kw_only=True)
class StandIn:
    """pairs, questions: of a document in training. asked: pairs of one in the evaluation.

    changes: of a variant's model; deep memories are as small as a CPU wants them.
    """

    keys: int = 32
    values: int = 32
    pairs: int = 8
    questions: int = 8
    asked: list[int] = field(default_factory=lambda: [4, 8, 16, 32])
    items: int = 128
    steps: int = 400
    batch: int = 32
    learning_rate: float = 3e-3
    model: dict[str, Any] = field(
        default_factory=lambda: {
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "designed_heads": "all",
            "intermediate_size": 128,
            "tie_word_embeddings": False,
            "initializer_range": 1.0,
        }
    )
    changes: dict[str, Any] = field(
        default_factory=lambda: {
            variant: {"memory.architecture.expansion": 2}
            for variant in ("titans", "omeganet", "atlas")
        }
    )


@dataclass(frozen=True, kw_only=True)
class Benchmarks:
    """The published ones, of a language model of the size of a recipe."""

    recipe: str = "760m"
    tasks: list[str] = field(default_factory=lambda: list(TASKS))
    limit: int | None = None
    data: str | None = None


@dataclass(frozen=True, kw_only=True)
class StandInCell(Seeded, StandIn):
    """A variant on the stand-in."""


@dataclass(frozen=True, kw_only=True)
class BenchmarksCell(Seeded, Benchmarks):
    """A variant on the benchmarks."""


Settings = StandIn | Benchmarks
Cell = StandInCell | BenchmarksCell

PRESETS: dict[str, Settings] = {
    "smoke": StandIn(
        keys=8,
        values=8,
        pairs=3,
        questions=2,
        asked=[2, 4],
        items=4,
        steps=3,
        batch=4,
        model={**StandIn().model, "hidden_size": 32, "num_hidden_layers": 1},
    ),
    "small": StandIn(),
    "paper": Benchmarks(),
}


def cells(settings: Settings, variants: Sequence[str], seeds: int) -> list[Cell]:
    kind: Any = StandInCell if isinstance(settings, StandIn) else BenchmarksCell
    return [kind.of(settings, variant=v, seed=s) for s in range(seeds) for v in variants]


def run(cell: Cell, workspace: Workspace) -> dict[str, Any]:
    if isinstance(cell, StandIn):
        return _run_stand_in(cell, workspace)
    return _run_benchmarks(cell, workspace)


def _run_benchmarks(cell: BenchmarksCell, workspace: Workspace) -> dict[str, Any]:
    """A language model of the paper's size on the six data sets."""
    from pathlib import Path

    from atlas_memory.evaluation.harness import Options
    from atlas_memory.evaluation.suite import evaluate
    from atlas_memory.experiments.language_model import paper_recipe, train

    loaded, figures = train(paper_recipe(cell.recipe, cell.variant, cell.seed), workspace)
    options = Options(cell.limit, Path(cell.data) if cell.data else None)
    found = evaluate(loaded, cell.tasks, options, workspace.say)["tasks"]
    return {**figures, "contains": {name: found[name]["contains"] for name in cell.tasks}}


def _run_stand_in(cell: StandInCell, workspace: Workspace) -> dict[str, Any]:
    import torch

    from atlas_memory.config import AtlasConfig
    from atlas_memory.experiments.fit import Rate, fit
    from atlas_memory.model import AtlasForCausalLM

    documents = Documents(cell.pairs, cell.keys, cell.values, cell.seed)
    tokenizer = word_tokenizer(documents)
    torch.manual_seed(cell.seed)
    size = {"vocab_size": tokenizer.vocab_size, **cell.model}
    size |= cell.changes.get(cell.variant, {})
    config = AtlasConfig.from_variant(cell.variant, "tiny", **size)
    model = workspace.place(AtlasForCausalLM(config))
    fitted = fit(
        model,
        training_batches(documents, tokenizer, cell.batch, cell.questions),
        steps=cell.steps,
        rate=Rate(cell.learning_rate, warmup=min(50, cell.steps // 10)),
        workspace=workspace,
        weight_decay=0.1,
        every=max(1, cell.steps // 10),
    )
    shares = {str(pairs): _contains(model, tokenizer, cell, pairs) for pairs in cell.asked}
    parameters = num_parameters(model)
    return {"contains": shares, "loss": fitted.last["loss"], "parameters": parameters}


def word_tokenizer(documents: Documents) -> Tokenizer:
    """One token a word with its sign, so that the task is recall and not spelling."""
    from tokenizers import Tokenizer as Backend, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from atlas_memory.data.tokenizer import Tokenizer

    words = [END, *vocabulary(documents)]
    backend = Backend(models.WordLevel({w: n for n, w in enumerate(words)}, unk_token=END))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=backend)
    return Tokenizer("words", fast)


def training_batches(
    documents: Documents, tokenizer: Tokenizer, batch: int, questions: int
) -> Callable[[int], Any]:
    """Step -> (ids, labels): documents with answered questions; only answers are learned."""
    import torch

    ids = {word: n for n, word in enumerate([END, *vocabulary(documents)])}

    def one(n: int) -> tuple[list[int], list[int]]:
        keys, values, _ = documents.draw(n)
        asked = np.random.default_rng([documents.seed, n, 1]).permutation(len(keys))[:questions]
        texts = [sentence(*pair).split() for pair in zip(keys, values, strict=True)]
        pairs = [(ids[key], ids[value]) for key, value in texts]
        tokens = [token for pair in pairs for token in pair]
        labels = [-100] * len(tokens)
        for key, value in (pairs[i] for i in asked):
            tokens += [key, value, ids[END]]
            labels += [value, ids[END], -100]
        return tokens, labels

    def batches(step: int) -> Any:
        rows = [one(step * batch + row) for row in range(batch)]
        return tuple(torch.tensor(part) for part in zip(*rows, strict=True))

    return batches


def _contains(model: Any, tokenizer: Tokenizer, cell: StandInCell, pairs: int) -> float:
    """By the prompt, the greedy answer and the metric of the published benchmarks."""
    from atlas_memory.evaluation.recall import TASKS as BENCHMARKS, evaluate, items

    held_out = Documents(pairs, cell.keys, cell.values, cell.seed + EVALUATION_SEED)
    rows = (held_out[n] for n in range(cell.items))
    asked = list(items(BENCHMARKS["swde"], rows, tokenizer))
    share: float = evaluate(model.eval(), tokenizer, asked, 32, lambda _: None)["contains"]
    return share


def table(results: list[Result[Cell]]) -> Table:
    """A row for each variant, the mean over seeds; the paper's average beside it."""
    columns = list(results[0].figures["contains"])
    stand_in = isinstance(results[0].cell, StandIn)
    rows = []
    for variant, figures in _by_variant(results).items():
        shares = [mean(100 * f["contains"][c] for f in figures) for c in columns]
        paper = PUBLISHED.get(variant, (None,))[-1]
        rows.append([variant, *(round(s, 1) for s in shares), round(mean(shares), 2), paper])
    names = [f"{c} pairs" for c in columns] if stand_in else columns
    note = "contains, percent; paper: the average of its six data sets, at another scale"
    return Table(("variant", *names, "average", "paper"), rows, [note])


def _by_variant(results: list[Result[Cell]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        found.setdefault(result.cell.variant, []).append(result.figures)
    return found


def plot(results: list[Result[Cell]], figure: Figure) -> None:
    """Recall over the length of the document, a line for each variant."""
    axes = figure.subplots()
    for variant, figures in _by_variant(results).items():
        columns = list(figures[0]["contains"])
        shares = [mean(100 * f["contains"][c] for f in figures) for c in columns]
        axes.plot(columns, shares, marker="o", label=variant)
    cell = results[0].cell
    trained = str(cell.pairs) if isinstance(cell, StandIn) else ""
    if trained in columns:
        axes.axvline(columns.index(trained), color="grey", linestyle=":", label="trained on")
    axes.set(xlabel="pairs of a document" if trained else "", ylabel="contains (%)", ylim=(0, 102))
    axes.legend()


def deviations(settings: Settings) -> list[str]:
    if isinstance(settings, Benchmarks):
        return []
    return [
        "documents of keys and values made by rule stand in for SWDE, NQ, DROP, FDA, SQuAD, TQA",
        f"models of width {settings.model['hidden_size']} trained on the task itself for "
        f"{settings.steps} steps stand in for language models of 760M parameters",
    ]


EXPERIMENT = Experiment(
    "recall",
    "Do better memories close the gap to Transformers in in-context recall?",
    *(PRESETS, VARIANTS, cells, run, table, plot, deviations),
)
