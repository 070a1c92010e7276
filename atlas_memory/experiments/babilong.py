"""BABILong: small models, trained on at most 4K tokens, asked after up to 10M. [Atlas Fig. 4]"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from atlas_memory.experiments import long_context
from atlas_memory.experiments.experiment import Experiment, Result, Table
from atlas_memory.family import VARIANTS
from atlas_memory.tasks import babi, babilong
from atlas_memory.tasks.corpora import backgrounds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from atlas_memory.tasks.background import Background
    from atlas_memory.tasks.words import Words

CHANCE = 1 / 6

# Fine-tuned baselines of the BABILong paper on qa1, exact match; Mamba was not measured beyond.
PUBLISHED = {
    "RMT": {4_000: 1.0, 16_000: 1.0, 128_000: 0.94, 1_000_000: 0.84, 10_000_000: 0.66},
    "Mamba": {4_000: 1.0, 16_000: 1.0, 128_000: 1.0},
    "ARMT": {10_000_000: 0.89},
}
CLAIM = "paper: Atlas (MAC) above 0.80 at 10M tokens, where Titans drops"


@dataclass(frozen=True, kw_only=True)
class Settings(long_context.Learning):
    task: str = "qa1"


@dataclass(frozen=True, kw_only=True)
class Cell(long_context.LongCell, Settings):
    """A variant on a task."""


PRESETS = long_context.presets(
    small=Settings(
        megabytes=16.0,
        stages=[
            [100, 100, 5, 1_500, 300],
            [100, 300, 5, 1_500, 350],
            [300, 1_000, 8, 2_500, 350],
            [1_000, 4_000, 10, 4_000, 300],
        ],
        # [10_000_000, 2] is another quarter of an hour for Titans on a core
        lengths=[[4_000, 64], [16_000, 32], [128_000, 8], [1_000_000, 4]],
    ),
    smoke={
        "stages": [[100, 100, 5, 500, 2], [100, 200, 5, 400, 2]],
        "lengths": [[200, 2], [3_000, 2]],
    },
    # The published protocol, per task; the model's size is not stated, segments of 512 tokens.
    paper={
        "corpus": "emozilla/pg19",
        "megabytes": 11_000.0,
        "buckets": 50_000,
        "local": 512,
        "stages": [[512, 512 * n, 1, 64 * 512 * n, 10_000] for n in (1, 2, 4, 6, 8, 16, 32)],
        "rate": 1e-4,
        "lengths": [[n, 1_000] for n in babilong.LENGTHS.values() if 0 < n <= 1_000_000]
        + [[10_000_000, 100]],
    },
)


def cells(settings: Settings, variants: Sequence[str], seeds: int) -> list[Cell]:
    return [Cell.of(settings, variant=v, seed=s) for s in range(seeds) for v in variants]


@dataclass(frozen=True)
class Located:
    """A task of BABILong, and the texts that its facts are hidden in."""

    task: str
    words: Words
    training: Background
    testing: Background

    @staticmethod
    def of(cell: Cell, say: Callable[[str], None]) -> Located:
        words = babilong.vocabulary(cell.buckets)
        training, testing = backgrounds(
            cell.corpus, cell.megabytes, words.encode, words.others, say
        )
        # Half of the texts are sentences with a word of the task in them, easily confused.
        confused = words.encode(" ".join(babi.NAMES + babi.DEEDS))
        return Located(cell.task, words, training.with_emphasis(confused), testing)

    def lesson(self, tokens: int, questions: int, random: np.random.Generator) -> tuple[Any, Any]:
        return babilong.lesson(self.task, tokens, questions, self.training, self.words, random)

    def sample(self, tokens: int, random: np.random.Generator) -> babilong.Sample:
        return babilong.sample(self.task, tokens, self.testing, self.words.encode, random)

    def score(self, drawn: list[babilong.Sample], answer: long_context.Answer) -> dict[str, Any]:
        """Every text is asked all questions of its problem; their mean is its score."""
        pairs = [(row, *qa) for row, s in enumerate(drawn) for qa in babilong.questions(s.problem)]
        said = answer([(row, self.words.encode(f"{q} {babilong.GEN}")) for row, q, _ in pairs], 1)
        right: list[list[bool]] = [[] for _ in drawn]
        for ids, (row, _, true) in zip(said, pairs, strict=True):
            right[row].append(self.words.decode(ids) == true.lower())
        accuracy = float(np.mean([np.mean(of_one) for of_one in right]))
        return {"questions": len(pairs), "accuracy": accuracy}


run = partial(long_context.learn_and_measure, Located.of)


def table(results: list[Result[Cell]]) -> Table:
    """A row a model: exact match by length, beside fine-tuned models of the BABILong paper."""
    lengths = sorted({m["tokens"] for r in results for m in r.figures["lengths"]})
    columns = ["model", "seed", "state KB", *map(long_context.short, lengths)]
    rows: list[list[Any]] = []
    for result in results:
        found = {m["tokens"]: m for m in result.figures["lengths"]}
        state = next(iter(found.values()))["state_bytes"] / 1_000
        name, seed = result.cell.variant, result.cell.seed
        accuracies = [found[n]["accuracy"] if n in found else None for n in lengths]
        rows.append([name, seed, round(state, 1), *accuracies])
    for name, known in PUBLISHED.items():
        rows.append([f"{name} (published, qa1)", None, None, *(known.get(n) for n in lengths)])
    counts = {m["tokens"]: m for m in results[0].figures["lengths"]} if results else {}
    samples = ", ".join(
        f"{long_context.short(n)}: {m['samples']} texts, {m['questions']} questions"
        for n, m in counts.items()
    )
    return Table(columns, rows, [CLAIM, f"samples: {samples}", f"guessing: {CHANCE:.3f}"])


def plot(results: list[Result[Cell]], figure: Figure) -> None:
    axes = figure.subplots()
    for result in results:
        measured = result.figures["lengths"]
        label = f"{result.cell.variant}, seed {result.cell.seed}"
        axes.plot(
            [m["tokens"] for m in measured], [m["accuracy"] for m in measured], "o-", label=label
        )
    for name, known in PUBLISHED.items():
        axes.plot(*zip(*known.items(), strict=True), "x--", alpha=0.5, label=f"{name}, published")
    axes.axhline(CHANCE, color="grey", linewidth=0.8, linestyle=":", label="guessing")
    axes.axhline(0.8, color="black", linewidth=0.8, linestyle=":", label="the paper's claim at 10M")
    axes.set(xscale="log", xlabel="tokens", ylabel="exact match", ylim=(0, 1.05), title="BABILong")
    axes.legend(fontsize="small")


def deviations(settings: Settings) -> list[str]:
    said = [
        "the facts are regenerated by the rules of bAbI, the released files are not used",
        "in qa1 every question that a text answers is asked, and their mean is the text's score",
        "questions stand between the facts in training, so that a text teaches several times",
        "half of the training texts are made of sentences that contain a word of the task",
    ]
    said += long_context.priced(settings)
    if settings.corpus != "emozilla/pg19":
        said += [
            f"the background is {settings.corpus}, not PG19",
            f"tokens are words, {settings.buckets} hashed buckets for those not of the task",
            f"a model of two layers of width {settings.dim} is trained from scratch, "
            "not a language model fine-tuned",
            "few samples at the longest lengths; see the table's note",
        ]
    return said


EXPERIMENT = Experiment(
    "babilong",
    "Does a model that was trained on at most 4K tokens still know where somebody is "
    "after 10M tokens of other text? The paper: Atlas (MAC) above 80%, Titans below.",
    PRESETS,
    ("titans", "atlas", "swa", "atlas_mac", long_context.TITANS_MAC),
    *(cells, run, table, plot, deviations),
    choices=(*VARIANTS, long_context.TITANS_MAC),
)
