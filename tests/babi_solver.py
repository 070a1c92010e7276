"""Answers to bAbI's questions from the text alone; shares nothing with the simulator.

>>> solve(["Mary got the milk there.", "Mary moved to the office."], "Where is the milk?")
'office'
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

MOVE = re.compile(r"(\w+) (?:went|journeyed|travelled|moved|went back) to the (\w+)\.")
GET = re.compile(r"(\w+) (?:got|took|grabbed|picked up) the (\w+)(?: there)?\.")
DROP = re.compile(r"(\w+) (?:dropped|left|discarded|put down) the (\w+)(?: there)?\.")
GIVE = re.compile(r"(\w+) (?:gave|handed|passed) the (\w+) to (\w+)\.")
RELATION = re.compile(r"The (\w+) is (north|south|east|west) of the (\w+)\.")

Facts = Sequence[str]


def solve(facts: Facts, question: str) -> str:
    """The answer; ValueError for a question of none of the five tasks, or one without answer."""
    for pattern, answer in QUESTIONS:
        if asked := re.fullmatch(pattern, question):
            found = answer(facts, *asked.groups())
            if found is None:
                raise ValueError(f"the facts do not answer {question!r}")
            return found
    raise ValueError(f"{question!r} is no question of qa1 to qa5")


def _places(facts: Facts, name: str) -> list[str]:
    """Every place where an actor or a thing was, in order, as far as it is told."""
    place: dict[str, str] = {}
    holder: dict[str, str] = {}
    history: list[str] = []
    for fact in facts:
        if told := MOVE.fullmatch(fact):
            place[told[1]] = told[2]
        elif told := GET.fullmatch(fact):
            holder[told[2]] = told[1]
        elif told := GIVE.fullmatch(fact):
            holder[told[2]] = told[3]
        elif told := DROP.fullmatch(fact):
            holder.pop(told[2], None)
            place[told[2]] = place.get(told[1], "")
        now = place.get(holder.get(name, name), "")
        if now and (not history or history[-1] != now):
            history.append(now)
    return history


def _where(facts: Facts, name: str) -> str | None:
    return next(reversed(_places(facts, name)), None)


def _before(facts: Facts, thing: str, place: str) -> str | None:
    places = _places(facts, thing)
    last = max((i for i, p in enumerate(places) if p == place), default=0)
    return places[last - 1] if last else None


def _neighbour(facts: Facts, direction: str, place: str) -> str | None:
    """What is `direction` of the place."""
    opposite = {"north": "south", "south": "north", "east": "west", "west": "east"}
    for fact in facts:
        if told := RELATION.fullmatch(fact):
            a, said, b = told.groups()
            if (said, b) == (direction, place):
                return str(a)
            if (opposite[said], a) == (direction, place):
                return str(b)
    return None


def _behind(facts: Facts, place: str, direction: str) -> str | None:
    opposite = {"north": "south", "south": "north", "east": "west", "west": "east"}
    return _neighbour(facts, opposite[direction], place)


def _gift(facts: Facts, giver: str | None, thing: str | None, taker: str | None) -> tuple[str, ...]:
    """The last gift that fits what is given."""
    gifts = [told.groups() for fact in facts if (told := GIVE.fullmatch(fact))]
    wanted = (giver, thing, taker)
    fits = [g for g in gifts if all(w in (None, x) for w, x in zip(wanted, g, strict=True))]
    return fits[-1] if fits else ("", "", "")


QUESTIONS: list[tuple[str, Callable[..., str | None]]] = [
    (r"Where is (?:the )?(\w+)\?", _where),
    (r"Where was the (\w+) before the (\w+)\?", _before),
    (r"What is (north|south|east|west) of the (\w+)\?", _neighbour),
    (r"What is the (\w+) (north|south|east|west) of\?", _behind),
    (r"What did (\w+) give to (\w+)\?", lambda f, a, b: _gift(f, a, None, b)[1] or None),
    (r"Who gave the (\w+)\?", lambda f, o: _gift(f, None, o, None)[0] or None),
    (r"Who did (\w+) give the (\w+) to\?", lambda f, a, o: _gift(f, a, o, None)[2] or None),
    (r"Who gave the (\w+) to (\w+)\?", lambda f, o, b: _gift(f, None, o, b)[0] or None),
    (r"Who received the (\w+)\?", lambda f, o: _gift(f, None, o, None)[2] or None),
]
