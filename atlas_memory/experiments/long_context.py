"""What the experiments with long texts share: small models, a curriculum, lengths up to millions.

A model has two layers: attention over a few tokens, which tells a word what sentence it stands in,
and the mixer under test. It is trained on texts of at most some thousand tokens, with a price on
writing and forgetting: what a memory must not do on ten million tokens of background costs
nothing measurable on four thousand, so nothing else would teach it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from atlas_memory.experiments.experiment import Seeded
from atlas_memory.files import write_whole
from atlas_memory.layers.shapes_only import num_parameters

if TYPE_CHECKING:
    from torch import Tensor

    from atlas_memory.experiments.experiment import Workspace
    from atlas_memory.model import AtlasForCausalLM
    from atlas_memory.tasks.words import Words

Batch = tuple["Tensor", "Tensor", float]
Lesson = Callable[[int, int, np.random.Generator], tuple[Any, Any]]
# What a model says to questions, (row, ids), by a number of ids.
Answer = Callable[[list[tuple[int, list[int]]], int], list[list[int]]]

# Titans in the arrangement of Atlas' row, which the package has no name for.
TITANS_MAC = "titans_mac"
FLOOR = 1e-8  # a gate below it is closed: ten million of them add up to a tenth


@dataclass(frozen=True, kw_only=True)
class Learning:
    """Settings of a model that learns a long task in minutes.

    stages: shortest and longest text, questions, tokens of a batch, steps. lengths: tokens and
    samples. local: a sentence; what reaches farther answers instead of the memory. window: of a
    sliding-window transformer. admission: a write gate, so that what is not admitted changes
    nothing.
    """

    corpus: str = "enwik8"
    buckets: int = 512
    megabytes: float
    dim: int = 32
    heads: int = 2
    designed_heads: str = "all"
    local: int = 6
    window: int = 32
    admission: bool = True
    segment: int = 64
    chunk: int = 64
    period: int = 64
    omega: int = 2
    expansion: int = 4
    stages: list[list[int]]
    rate: float = 4e-3
    price: float = 0.15
    lengths: list[list[int]]


@dataclass(frozen=True, kw_only=True)
class LongCell(Seeded, Learning):
    """A variant that learns a long task."""


Settings = TypeVar("Settings", bound=Learning)
Cell = TypeVar("Cell", bound=LongCell)
SMOKE: dict[str, Any] = {"corpus": "noise", "buckets": 32, "dim": 16}
LARGE: dict[str, Any] = {
    "dim": 768,
    "heads": 12,
    "window": 512,
    "segment": 512,
    "chunk": 64,
    "period": 64,
    "omega": 16,
    "price": 0.0,
}


def presets(small: Settings, smoke: dict[str, Any], paper: dict[str, Any]) -> dict[str, Settings]:
    """A task's own settings, and what differs from them where all is tiny, or as published."""
    tiny, published = replace(small, **SMOKE | smoke), replace(small, **LARGE | paper)
    return {"smoke": tiny, "small": small, "paper": published}


class LongTask(Protocol):
    """What a cell trains on and asks, in words, in texts of any length."""

    @property
    def words(self) -> Words: ...

    def lesson(self, tokens: int, questions: int, random: np.random.Generator) -> tuple[Any, Any]:
        """ids and labels [tokens] of a text to learn from."""

    def sample(self, tokens: int, random: np.random.Generator) -> Any:
        """A text to ask about: its `context`, and whatever `score` needs."""

    def score(self, drawn: list[Any], answer: Answer) -> dict[str, Any]:
        """Figures of what was answered, `accuracy` among them."""


def build(cell: LongCell, vocabulary: int) -> AtlasForCausalLM:
    """Local attention, then the variant's own mixer."""
    from atlas_memory.blocks import MAC, Attention
    from atlas_memory.config import AtlasConfig
    from atlas_memory.family import VARIANTS
    from atlas_memory.model import AtlasForCausalLM

    base = "titans" if cell.variant == TITANS_MAC else cell.variant
    mixer = MAC(cell.segment) if cell.variant == TITANS_MAC else VARIANTS[base].mixers[0]
    if isinstance(mixer, MAC):
        mixer = MAC(cell.segment, persistent=0)  # the paper: no persistent tokens
    elif isinstance(mixer, Attention) and mixer.window is not None:
        mixer = replace(mixer, window=cell.window)
    config = AtlasConfig.from_variant(
        base,
        size="tiny",
        vocab_size=vocabulary,
        hidden_size=cell.dim,
        intermediate_size=2 * cell.dim,
        num_attention_heads=cell.heads,
        num_hidden_layers=2,
        mixers=[Attention(window=cell.local, conv=4), mixer],
        designed_heads=cell.designed_heads,
        admission=cell.admission and VARIANTS[base].memory is not None,
        tie_word_embeddings=False,
        initializer_range=0.5,
    )
    config.memory = _sized(config.memory, cell)
    return AtlasForCausalLM(config)


def _sized(memory: dict[str, Any] | None, cell: LongCell) -> dict[str, Any] | None:
    """A deep memory with the chunk, window and expansion of the settings; others as they are."""
    if memory is None or memory["architecture"]["name"] == "matrix":
        return memory
    sized = dict(memory, chunk=cell.chunk)
    sized["architecture"] = dict(memory["architecture"], expansion=cell.expansion)
    if memory["window"] > 1:
        sized["window"] = cell.omega
    if memory["optimizer"]["name"] == "muon":
        sized["optimizer"] = dict(memory["optimizer"], period=cell.period)
    return sized


class Price:
    """How far the gates of a model stand open: the write gates' logits where there are any, else
    steps and forgetting in nats above FLOOR.
    """

    def __init__(self, model: AtlasForCausalLM) -> None:
        from atlas_memory.layers.gates import GateProjections, WriteGate

        self.seen: list[Tensor] = []
        gates = [m for m in model.modules() if isinstance(m, WriteGate)]
        for gate in gates:
            gate.register_forward_hook(self._see_writes)
        for module in model.modules():
            if not gates and isinstance(module, GateProjections):
                module.register_forward_hook(self._see_gates)

    def _see_writes(self, module: Any, inputs: Any, written: Any) -> None:
        from atlas_memory.layers.gates import price

        if module.training:
            self.seen.append(price(written[1]))

    def _see_gates(self, module: Any, inputs: Any, gates: Any) -> None:
        open_gates = [gates.eta] if gates.alpha is None else [gates.eta, 1 - gates.alpha]
        if module.training:
            self.seen += [(x.clamp(min=FLOOR) / FLOOR).log().mean() for x in open_gates]

    def take(self) -> Tensor | float:
        import torch

        seen, self.seen = self.seen, []
        return torch.stack(seen).mean() if seen else 0.0


def train(
    model: AtlasForCausalLM,
    cell: LongCell,
    lesson: Lesson,
    workspace: Workspace,
) -> dict[str, Any]:
    """Through the curriculum: [shortest, longest, questions, tokens a batch, steps] a stage."""
    from atlas_memory.experiments.fit import Rate, fit, labelled_loss

    price = Price(model)

    def loss(model: Any, batch: Batch) -> Tensor:
        ids, labels, weight = batch
        answers = labelled_loss(model, (ids, labels))
        return answers + weight * price.take()

    fitted = fit(
        model,
        lambda step: batch_of(cell, step, lesson),
        steps=sum(stage[-1] for stage in cell.stages),
        rate=Rate(cell.rate, warmup=30, final=0.1 * cell.rate),
        workspace=workspace,
        loss=loss,
        every=50,
    )
    told = {"loss": fitted.last["loss"], "steps": fitted.steps, "finite": fitted.finite}
    return told | {"seconds": fitted.seconds}


def batch_of(cell: LongCell, step: int, lesson: Lesson) -> Batch:
    """The batch of a step: one length for all rows, drawn from those of the stage."""
    import torch

    number, (shortest, longest, questions, tokens, _) = _stage(cell.stages, step)
    random = np.random.default_rng([cell.seed, step])
    length = int(random.integers(shortest, longest + 1))
    rows = [lesson(length, questions, random) for _ in range(max(1, tokens // length))]
    ids, labels = (torch.from_numpy(np.stack(part)).long() for part in zip(*rows, strict=True))
    return ids, labels, cell.price if number else 0.0


def _stage(stages: list[list[int]], step: int) -> tuple[int, list[int]]:
    for number, stage in enumerate(stages):
        if step < stage[-1]:
            return number, stage
        step -= stage[-1]
    raise ValueError(f"step {step} is behind the last stage")


def learn_and_measure(
    task_of: Callable[[Cell, Callable[[str], None]], LongTask], cell: Cell, workspace: Workspace
) -> dict[str, Any]:
    """Train on short texts of a cell's task, then read long ones and ask."""
    import torch

    torch.manual_seed(cell.seed)
    task = task_of(cell, workspace.say)
    model = workspace.place(build(cell, len(task.words)))
    fitted = train(model, cell, task.lesson, workspace)
    model.train(False)
    at_length = partial(asked, model, task, workspace.say)
    measured = measure(cell.lengths, at_length, workspace.folder, workspace.say)
    return {"training": fitted, "parameters": num_parameters(model), "lengths": measured}


def asked(
    model: AtlasForCausalLM,
    task: LongTask,
    say: Callable[[str], None],
    tokens: int,
    samples: int,
    keep: Path,
) -> dict[str, Any]:
    """Read `samples` texts of a length side by side, and ask each of them."""
    from atlas_memory.evaluation.long_reading import BLOCK, answer, read_through
    from atlas_memory.tasks.background import in_rows

    drawn = [task.sample(tokens, np.random.default_rng([tokens, row])) for row in range(samples)]
    begun = time.monotonic()
    blocks = in_rows([sample.context for sample in drawn], BLOCK)
    cache = read_through(model, blocks, tokens, say, keep)
    return {
        "tokens": tokens,
        "samples": samples,
        "seconds": time.monotonic() - begun,
        **task.score(drawn, partial(answer, model, cache)),
        "state_bytes": cache.num_bytes // samples,
    }


def priced(settings: Learning) -> list[str]:
    if not settings.price:
        return []
    return [f"the loss has a price of {settings.price} per nat on open write and forget gates"]


def measure(
    lengths: list[list[int]],
    at_length: Callable[[int, int, Path], dict[str, Any]],
    folder: Path,
    say: Callable[[str], None],
) -> list[dict[str, Any]]:
    """at_length(tokens, samples, file to keep a reading in) for every length, each only once."""
    path = folder / "lengths.json"
    done: list[dict[str, Any]] = json.loads(path.read_text()) if path.is_file() else []
    for tokens, samples in lengths[len(done) :]:
        done.append(at_length(tokens, samples, folder / f"reading-{tokens}.safetensors"))
        say(f"{tokens:,} tokens: {done[-1]['accuracy']:.3f}")
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(done))
    return done


def short(tokens: int) -> str:
    """4000 -> 4K, 10000000 -> 10M."""
    if tokens >= 1_000_000:
        return f"{tokens // 1_000_000}M"
    return f"{tokens // 1_000}K" if tokens >= 1_000 else str(tokens)
