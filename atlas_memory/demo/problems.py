"""Who went where: problems of bAbI's first task, drawn, or in the user's own words."""

import re

import numpy as np

from atlas_memory.tasks import babi, babilong
from atlas_memory.tasks.background import sentences

TASK = "qa1"
FEWEST, MOST = 1_000, 10_000_000  # words of a text


def checked(words: int, repeat: int) -> None:
    if not FEWEST <= words <= MOST:
        raise ValueError(f"words={words:,} is not between {FEWEST:,} and {MOST:,}")
    if repeat < 1:
        raise ValueError(f"repeat={repeat} is not at least 1")


def drawn(repeat: int, seed: int, ask: str | None = None) -> list[babi.Problem]:
    """The n-th problem of a seed is the same whatever `repeat` is."""
    if ask is not None:
        raise ValueError(f"{ask!r} is asked without facts; say who went where, too")
    return [babi.problem(TASK, np.random.default_rng([seed, n])) for n in range(repeat)]


def own(facts: str, ask: str | None) -> babi.Problem:
    """The user's facts and question; without a question the last who moved is asked for."""
    told = tuple(_fact(sentence) for sentence in sentences(facts))
    if not told:
        raise ValueError(f"facts={facts!r} has no sentence such as {_example()}")
    if len(told) * babilong.DENSEST > FEWEST:
        raise ValueError(f"{len(told)} facts are more than {FEWEST // babilong.DENSEST}")
    actor = _asked(ask) if ask is not None else told[-1].split()[0]
    moves = [n for n, fact in enumerate(told) if fact.split()[0] == actor]
    if not moves:
        raise ValueError(f"no fact says where {actor} is; ask for one who moved")
    place = told[moves[-1]].rstrip(".").split()[-1]
    return babi.Problem(told, f"Where is {actor}?", place, (moves[-1],))


def _fact(sentence: str) -> str:
    """As the model knows it: "mary WENT to the kitchen" -> "Mary went to the kitchen."."""
    moves = "|".join(sorted(babi.MOVE, key=len, reverse=True))
    found = re.fullmatch(rf"(\w+) ({moves}) to the (\w+)\W*", sentence, re.IGNORECASE)
    names = {name.lower(): name for name in babi.ACTORS}
    if not found or found[1].lower() not in names or found[3].lower() not in babi.LOCATIONS:
        raise ValueError(f"the model does not know {sentence!r}; {_grammar()}")
    return f"{names[found[1].lower()]} {found[2].lower()} to the {found[3].lower()}."


def _asked(question: str) -> str:
    names = {name.lower(): name for name in babi.ACTORS}
    found = re.fullmatch(r"where is (\w+)\W*", question.strip(), re.IGNORECASE)
    if not found or found[1].lower() not in names:
        raise ValueError(
            f"the model does not know {question!r}; ask 'Where is NAME?' with one of: "
            f"{', '.join(babi.ACTORS)}"
        )
    return names[found[1].lower()]


def _grammar() -> str:
    return (
        f"a fact is {_example()}, with one of the names {', '.join(babi.ACTORS)}, of the verbs "
        f"{', '.join(babi.MOVE)} and of the places {', '.join(babi.LOCATIONS)}"
    )


def _example() -> str:
    return f"'{babi.ACTORS[1]} {babi.MOVE[0]} to the {babi.LOCATIONS[1]}.'"
