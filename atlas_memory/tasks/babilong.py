"""BABILong: bAbI's facts, in their order, between the sentences of a long text. [Atlas Fig. 4]

The text has as many tokens as are asked for, of whatever tokenizer; every fact gets a gap between
two sentences, drawn with replacement. Nothing longer than a block of tokens is ever held.

    >>> words = vocabulary(buckets=8)
    >>> book = Background.from_texts(["It was a dark night. " * 9], words.encode, fewest=6)
    >>> s = sample("qa1", 40, book, words.encode, np.random.default_rng(0))
    >>> words.decode(s.context.ids())
    mary journeyed to the kitchen . #4 was #3 #3 #7 . #4 was #3 #3 #7 . john went to the
    bedroom . daniel moved to the bedroom . #4 was #3 #3 daniel moved to the hallway .
"""

from dataclasses import dataclass

import numpy as np

from atlas_memory.tasks import babi
from atlas_memory.tasks.background import Background, Encode, Hidden, Ids
from atlas_memory.tasks.words import Words

TASKS = tuple(babi.STORIES)
LENGTHS = {"0k": 0, "1k": 1_000, "2k": 2_000, "4k": 4_000, "8k": 8_000, "16k": 16_000}
LENGTHS |= {"32k": 32_000, "64k": 64_000, "128k": 128_000, "256k": 256_000, "512k": 512_000}
LENGTHS |= {"1m": 1_000_000, "10m": 10_000_000}
DENSEST = 8  # tokens of context per fact, at least
PATIENCE = 1_000  # stories that may be too long before a text is taken for too short
GEN, END = "<gen>", "<end>"


@dataclass(frozen=True)
class Sample:
    """A problem of bAbI and the long text that its facts are hidden in."""

    problem: babi.Problem
    context: Hidden


def sample(
    task: str, tokens: int, background: Background, encode: Encode, random: np.random.Generator
) -> Sample:
    """A context of exactly `tokens` ids, facts included; 0: the facts alone.

    Problems with more than tokens / 8 facts, or facts longer than the context, are drawn again.
    """
    while True:
        problem = babi.problem(task, random)
        facts = [np.array(encode(" " + fact), dtype=np.int32) for fact in problem.facts]
        room = tokens - sum(map(len, facts)) if tokens else 0
        if tokens == 0 or (room >= 0 and len(facts) * DENSEST <= tokens):
            return Sample(problem, hide(facts, room, background, random))


def hide(
    facts: list[Ids], room: int, background: Background, random: np.random.Generator
) -> Hidden:
    """A text of `room` ids with the facts in their order, each in a gap between two sentences."""
    text = background.draw(room, random)
    gaps = np.sort(random.integers(text.sentences + 1, size=len(facts)))
    offsets = [text.offset(int(gap)) for gap in gaps]
    return Hidden(text, tuple(zip(offsets, facts, strict=True)))


def questions(problem: babi.Problem) -> list[tuple[str, str]]:
    """The question and its answer; of qa1 every question that its facts answer.

    Which of them qa1 asks is drawn uniformly, so their mean has the same expectation.
    """
    places: dict[str, str] = {}
    for fact in problem.facts:
        actor, place = fact.split()[0], fact.rstrip(".").split()[-1]
        places[f"Where is {actor}?"] = place
    if problem.question in places:
        return list(places.items())
    return [(problem.question, problem.answer)]


def lesson(
    task: str,
    tokens: int,
    questions: int,
    background: Background,
    words: Words,
    random: np.random.Generator,
) -> tuple[Ids, Ids]:
    """A context to learn from: a story with its questions, each somewhere behind its facts.

    As many of the questions as fit; a story whose first one does not is told by nobody.
    ids and labels [tokens]: the label of <gen> is the answer's word, all others are -100.
    """
    for _ in range(PATIENCE):
        story = babi.story(task, random, questions)
        for asked in range(len(story), 0, -1):
            said, answers = _tell(story[:asked], words)
            room = tokens - sum(map(len, said))
            if room >= 0:
                return _labelled(hide(said, room, background, random).ids(), answers, words)
    raise ValueError(f"no question of {task} fits {tokens} tokens; give more")


def _labelled(ids: Ids, answers: list[int], words: Words) -> tuple[Ids, Ids]:
    labels = np.full_like(ids, -100)
    # A background has no <gen>.
    labels[ids == words.encode(GEN)[0]] = answers
    return ids, labels


def _tell(problems: list[babi.Problem], words: Words) -> tuple[list[Ids], list[int]]:
    """Facts, questions and answers of a story in their order, and the answers' ids."""
    said, answers, known = [], [], 0
    for problem in problems:
        said += [f" {fact}" for fact in problem.facts[known:]]
        said.append(f" {problem.question} {GEN} {problem.answer}")
        answers += words.encode(problem.answer)
        known = len(problem.facts)
    return [np.array(words.encode(text), dtype=np.int32) for text in said], answers


def vocabulary(buckets: int) -> Words:
    """The words of all five tasks, <gen>, <end>, and buckets for those of the background."""
    spoken = [*babi.LOCATIONS, *babi.OBJECTS, *babi.ACTORS, *babi.GIVERS, *babi.GIFTS]
    spoken += [*babi.MOVE, *babi.GET, *babi.DROP, *babi.GIVE, *babi.OPPOSITE]
    spoken += ["to the there is of. where was before? what"]
    words = [text.replace("{", "").replace("}", "") for text in spoken]
    return Words.of(words, buckets, first=(GEN, END))
