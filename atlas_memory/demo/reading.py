"""Read the texts side by side, listen to the write gate, and ask both models."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from atlas_memory.cache import AtlasCache
from atlas_memory.demo import models, text
from atlas_memory.demo.result import Answer, Fact, Passage, Picture, Result
from atlas_memory.demo.text import Lexicon, excerpt, positions
from atlas_memory.evaluation.long_reading import BLOCK, answer, read_through
from atlas_memory.layers.gates import WriteGate
from atlas_memory.layers.shapes_only import num_parameters
from atlas_memory.model import AtlasForCausalLM
from atlas_memory.tasks import babi, babilong
from atlas_memory.tasks.background import Hidden, in_rows

Watch = Callable[[int, int], None]
Block = np.ndarray[Any, Any]

ROWS = 16  # texts that are read side by side


def read(
    problems: Sequence[babi.Problem], words: int, seed: int, given: str | None, watch: Watch
) -> Result:
    """Everything that `demo.run` tells."""
    with _one_thread():
        return _read(problems, words, seed, given, watch)


def _read(
    problems: Sequence[babi.Problem], words: int, seed: int, given: str | None, watch: Watch
) -> Result:
    both = models.load()
    memory, window = both[models.MEMORY], both[models.WINDOW]
    lexicon = text.Lexicon(_vocabulary(memory))
    background = text.background(given, lexicon)
    texts = [
        text.hide(problem, words, background, lexicon, np.random.default_rng([seed, n, words]))
        for n, problem in enumerate(problems)
    ]
    reader = _Reader(lexicon, watch, total=words * len(texts))
    said, seconds, size, gates = reader.ask(memory, problems, texts)
    guessed = [reader.ask_behind(window, *pair) for pair in zip(problems, texts, strict=True)]
    answers = [
        Answer(_facts(problem, hidden), problem.question, problem.answer, known, guess)
        for problem, hidden, known, guess in zip(problems, texts, said, guessed, strict=True)
    ]
    return Result(
        words=words,
        answers=tuple(answers),
        seconds=seconds,
        state_bytes=size,
        cache_bytes=cache_bytes(memory, words),
        parameters=num_parameters(memory),
        window=window.config.mixers[-1]["window"],
        admitted=int((gates > 0).sum()),
        picture=picture(texts[0], gates, lexicon),
    )


def _vocabulary(model: AtlasForCausalLM) -> Any:
    own = len(babilong.vocabulary(0))
    return babilong.vocabulary(model.config.vocab_size - own)


def _facts(problem: babi.Problem, hidden: Hidden) -> tuple[Fact, ...]:
    return tuple(map(Fact, problem.facts, text.positions(hidden)))


def cache_bytes(model: AtlasForCausalLM, words: int) -> int:
    """Keys and values of full attention in every layer, in the model's own precision."""
    config = model.config
    return 2 * config.num_hidden_layers * config.hidden_size * words * model.dtype.itemsize


@dataclass
class _Reader:
    """Reads texts of one lexicon, and tells `watch` how many of `total` words are behind it."""

    lexicon: text.Lexicon
    watch: Watch
    total: int
    done: int = 0
    table: Block = field(init=False)

    def __post_init__(self) -> None:
        self.table = self.lexicon.table()

    def ask(
        self, model: AtlasForCausalLM, problems: Sequence[babi.Problem], texts: Sequence[Hidden]
    ) -> tuple[list[str], float, int, Block]:
        """Answers, seconds of reading, bytes of a state, and the gates over the first text."""
        said: list[str] = []
        heard: list[Block] = []
        begun, asking, size = time.monotonic(), 0.0, 0
        self.watch(0, self.total)
        for first in range(0, len(texts), ROWS):
            rows = slice(first, first + ROWS)
            with _listening(model, heard if first == 0 else []):
                cache = self._read(model, texts[rows])
            before = time.monotonic()
            said += self._answers(model, cache, problems[rows])
            asking += time.monotonic() - before
            size = cache.num_bytes // len(texts[rows])
        return said, time.monotonic() - begun - asking, size, np.concatenate(heard)

    def ask_behind(self, model: AtlasForCausalLM, problem: babi.Problem, hidden: Hidden) -> str:
        """The answer of a model with a window, which needs only the last block of the text: what
        stands farther back than its windows reach cannot change it.
        """
        words = text.excerpt(hidden, len(hidden) - BLOCK, len(hidden))
        cache = read_through(model, [self.table[words][None]], len(words), say=_nothing)
        return self._answers(model, cache, [problem])[0]

    def _read(self, model: AtlasForCausalLM, texts: Sequence[Hidden]) -> AtlasCache:
        blocks = self._watched(self.table[block] for block in in_rows(texts, BLOCK))
        return read_through(model, blocks, len(texts[0]), say=_nothing)

    def _watched(self, blocks: Iterable[Block]) -> Iterator[Block]:
        for block in blocks:
            yield block
            self.done += block.size
            self.watch(self.done, self.total)

    def _answers(
        self, model: AtlasForCausalLM, cache: AtlasCache, problems: Sequence[babi.Problem]
    ) -> list[str]:
        known = self.lexicon.known
        questions = [
            (row, known.encode(f"{problem.question} {babilong.GEN}"))
            for row, problem in enumerate(problems)
        ]
        return [known.decode(ids) for ids in answer(model, cache, questions)]


def _nothing(said: str) -> None:
    """`watch` says it."""


@contextmanager
def _one_thread() -> Iterator[None]:
    """Products this small gain nothing from a second thread, and where other programs hold the
    cores, threads that wait for each other make them many times slower.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _listening(model: AtlasForCausalLM, heard: list[Block]) -> Iterator[None]:
    """Collect the first row's write gate, of the head whose gate is widest open."""

    def hear(module: Any, inputs: Any, written: Any) -> None:
        heard.append(written[0][0].amax(dim=0).half().cpu().numpy())

    (gate,) = (module for module in model.modules() if isinstance(module, WriteGate))
    handle = gate.register_forward_hook(hear)
    try:
        yield
    finally:
        handle.remove()


# ---- what the write gate did ---------------------------------------------------------------------


PARTS = 400
AROUND = 30  # words before and behind
OTHERS = 4

Gates = np.ndarray[Any, Any]


def picture(hidden: Hidden, gates: Gates, lexicon: Lexicon) -> Picture:
    """gates [words]: of every word of the text."""
    spans = [
        (begin, begin + len(ids))
        for begin, (_, ids) in zip(positions(hidden), hidden.insertions, strict=True)
    ]
    cut = np.array_split(gates, min(PARTS, len(gates)))
    centres = [(begin + end) // 2 for begin, end in spans]
    return Picture(
        parts=tuple(round(float(part.max()), 4) for part in cut),
        facts=tuple(_passage(at, hidden, gates, spans, lexicon) for at in centres),
        others=tuple(
            _passage(at, hidden, gates, spans, lexicon) for at in _elsewhere(gates, spans)
        ),
    )


def _passage(
    at: int, hidden: Hidden, gates: Gates, spans: Sequence[tuple[int, int]], lexicon: Lexicon
) -> Passage:
    begin, end = max(0, at - AROUND), min(len(hidden), at + AROUND)
    return Passage(
        position=begin,
        words=tuple(lexicon.words[i] for i in excerpt(hidden, begin, end)),
        gates=tuple(round(float(gate), 4) for gate in gates[begin:end]),
        hidden=tuple(any(a <= n < b for a, b in spans) for n in range(begin, end)),
    )


def _elsewhere(gates: Gates, spans: Sequence[tuple[int, int]]) -> list[int]:
    """The words outside of the facts with the widest open gates, far from each other."""
    left = gates.astype(np.float32)
    for begin, end in spans:
        left[begin:end] = 0
    found: list[int] = []
    while len(found) < OTHERS and left.max() > 0:
        found.append(int(left.argmax()))
        left[max(0, found[-1] - AROUND) : found[-1] + AROUND] = 0
    return sorted(found)
