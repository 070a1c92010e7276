"""Needles: small models, trained on short haystacks, asked after long ones. [Atlas Table 3]"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from atlas_memory.experiments import long_context
from atlas_memory.experiments.experiment import Experiment, Result, Table
from atlas_memory.family import VARIANTS
from atlas_memory.tasks import needle
from atlas_memory.tasks.corpora import backgrounds
from atlas_memory.tasks.needle_lesson import CONFUSED, Sample, lesson, sample, vocabulary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from atlas_memory.tasks.background import Background
    from atlas_memory.tasks.words import Words


# RULER by language models of 4K tokens of training: 2K, 4K, 8K, 16K (W: to 8K)
PUBLISHED = {
    ("Titans LMM", "pk"): (99.8, 98.4, 98.2, 96.2),
    ("Atlas", "pk"): (100.0, 99.2, 98.0, 97.0),
    ("Atlas (MAG)", "pk"): (100.0, 100.0, 99.4, 98.6),
    ("DeltaNet", "pk"): (96.8, 98.8, 98.6, 71.4),
    ("Titans LMM", "n"): (100.0, 99.8, 93.4, 80.2),
    ("Atlas", "n"): (100.0, 100.0, 93.0, 84.0),
    ("Atlas (MAG)", "n"): (100.0, 99.2, 97.4, 97.0),
    ("DeltaNet", "n"): (47.2, 15.4, 12.8, 5.4),
    ("Titans LMM", "w"): (90.4, 89.4, 85.8),
    ("Atlas", "w"): (93.2, 90.6, 86.2),
    ("Atlas (MAG)", "w"): (99.4, 98.2, 92.4),
    ("DeltaNet", "w"): (46.2, 20.0, 1.6),
}


@dataclass(frozen=True, kw_only=True)
class Settings(long_context.Learning):
    """kinds: of needles, and how many signs the value of each has."""

    kinds: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Cell(long_context.LongCell):
    kind: str
    signs: int


PRESETS = long_context.presets(
    small=Settings(
        kinds={"pk": 4, "n": 4, "w": 8},
        megabytes=16.0,
        stages=[
            [160, 160, 3, 1_500, 300],
            [160, 400, 3, 1_500, 150],
            [400, 1_000, 3, 2_000, 500],
        ],
        lengths=[[1_000, 64], [4_000, 32], [16_000, 16], [256_000, 8]],
    ),
    smoke={
        "kinds": {"n": 2},
        "stages": [[120, 120, 2, 300, 2], [120, 200, 2, 300, 1]],
        "lengths": [[200, 2], [2_500, 2]],
    },
    # What the table of the paper has is `atlas eval RUN --task niah` of a language model; this is
    # the same table for models that are trained on the task, at its lengths.
    paper={
        "kinds": {"pk": 7, "n": 7, "w": 32},
        "megabytes": 20.0,
        "buckets": 30_000,
        "local": 64,
        "stages": [[256, 256, 2, 65_536, 2_000], [256, 4_096, 4, 524_288, 8_000]],
        "rate": 4e-4,
        "lengths": [[2_048, 500], [4_096, 500], [8_192, 500], [16_384, 500]],
    },
)


def cells(settings: Settings, variants: Sequence[str], seeds: int) -> list[Cell]:
    return [
        Cell.of(settings, variant=variant, kind=kind, signs=signs, seed=seed)
        for seed in range(seeds)
        for kind, signs in settings.kinds.items()
        for variant in variants
    ]


@dataclass(frozen=True)
class Needles:
    """A kind of needle whose values have so many signs, and its haystacks."""

    kind: str
    signs: int
    words: Words
    training: Background
    testing: Background

    @staticmethod
    def of(cell: Cell, say: Callable[[str], None]) -> Needles:
        words = vocabulary(cell.buckets)
        if needle.KINDS[cell.kind][0] == "noise":
            haystacks = (needle.noise(words.encode, repetitions=64),) * 2
        else:
            corpus, megabytes = cell.corpus, cell.megabytes
            training, testing = backgrounds(corpus, megabytes, words.encode, words.others, say)
            # Half of the texts are sentences with a word or a digit of needles, easily confused.
            haystacks = training.with_emphasis(words.encode(CONFUSED)), testing
        return Needles(cell.kind, cell.signs, words, *haystacks)

    def lesson(self, tokens: int, needles: int, random: np.random.Generator) -> tuple[Any, Any]:
        return lesson(self.kind, tokens, needles, self.signs, self.training, self.words, random)

    def sample(self, tokens: int, random: np.random.Generator) -> Sample:
        return sample(self.kind, tokens, self.signs, self.testing, self.words, random)

    def score(self, drawn: list[Sample], answer: long_context.Answer) -> dict[str, Any]:
        """Each text is asked for its needle; every sign must be right."""
        said = answer([(row, s.question) for row, s in enumerate(drawn)], self.signs)
        hits = np.array(said) == np.array([s.value for s in drawn])
        return {"accuracy": float(np.mean(hits.all(axis=1))), "signs": float(np.mean(hits))}


run = partial(long_context.learn_and_measure, Needles.of)


def table(results: list[Result[Cell]]) -> Table:
    """A row a model and kind; below them what language models have in the paper, by its lengths."""
    lengths = sorted({m["tokens"] for r in results for m in r.figures["lengths"]})
    rows: list[list[Any]] = []
    for result in results:
        found = {m["tokens"]: m["accuracy"] for m in result.figures["lengths"]}
        head = [result.cell.variant, result.cell.kind, result.cell.seed]
        rows.append([*head, *(found.get(n) for n in lengths)])
    kinds = {result.cell.kind for result in results}
    notes = [
        f"published, {name} {kind}, language models at 2K to 16K: {', '.join(map(str, figures))}"
        for (name, kind), figures in PUBLISHED.items()
        if kind in kinds
    ]
    counts = {m["tokens"]: m["samples"] for m in results[0].figures["lengths"]} if results else {}
    samples = ", ".join(f"{long_context.short(n)}: {count}" for n, count in counts.items())
    return Table(
        ["model", "needle", "seed", *map(long_context.short, lengths)],
        rows,
        [*notes, f"samples: {samples}"],
    )


def plot(results: list[Result[Cell]], figure: Figure) -> None:
    kinds = list(dict.fromkeys(result.cell.kind for result in results))
    for axes, kind in zip(np.atleast_1d(figure.subplots(1, len(kinds))), kinds, strict=True):
        for result in results:
            if result.cell.kind == kind:
                measured = result.figures["lengths"]
                axes.plot(
                    [m["tokens"] for m in measured],
                    [m["accuracy"] for m in measured],
                    "o-",
                    label=result.cell.variant,
                )
        longest = max(stage[1] for stage in results[0].cell.stages)
        axes.axvline(
            longest, color="grey", linewidth=0.8, linestyle=":", label="longest in training"
        )
        axes.set(xscale="log", xlabel="tokens", ylim=(0, 1.05), title=f"S-NIAH-{kind.upper()}")
        axes.legend(fontsize="small")


def deviations(settings: Settings) -> list[str]:
    values = ", ".join(f"{kind}: {signs}" for kind, signs in settings.kinds.items())
    said = [
        "models are trained on the task from scratch; RULER asks language models (`atlas eval`)",
        f"tokens are words; a value has as many signs as this, one token each: {values}",
        f"the haystack is {settings.corpus}, from a random sentence on, not the essays",
        "training texts have several needles, each with its question behind it",
    ]
    return said + long_context.priced(settings)


EXPERIMENT = Experiment(
    "niah",
    "Is a number that was read once found again in a text many times longer than those "
    "of the training? The paper: Atlas keeps 97% (PK) and 84% (N) at 16K tokens after 4K.",
    PRESETS,
    ("atlas_mac", long_context.TITANS_MAC, "swa", "omeganet", "gated_deltanet", "transformer_plus"),
    *(cells, run, table, plot, deviations),
    choices=(*VARIANTS, long_context.TITANS_MAC),
)
