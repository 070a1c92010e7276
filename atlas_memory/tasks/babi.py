"""The world of bAbI and its first five tasks: who moves where, takes, drops and gives what.

A story is made by a simulator and told fact by fact; a problem is a story up to a question. The
world starts in a fixed state that the reader is not told. `tests/babi_solver.py` answers from
the text.

    >>> problem("qa1", np.random.default_rng(6))
    Problem(facts=('Mary travelled to the bathroom.', 'Daniel journeyed to the bathroom.'),
            question='Where is Daniel?', answer='bathroom', support=(1,))
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from typing import TypeVar

import numpy as np

from atlas_memory.names import suggest

LOCATIONS = ("bedroom", "kitchen", "garden", "hallway", "bathroom", "office")
OBJECTS = ("apple", "football", "milk")
ACTORS = ("John", "Mary", "Sandra", "Daniel")
GIVERS = ("Bill", "Fred", "Jeff", "Mary")  # of qa5
STARTS = ("kitchen", "bedroom", "garden", "hallway")  # of the actors, in their order
OBJECT_STARTS = {"apple": "kitchen", "football": "garden", "milk": "kitchen"}

MOVE = ("went", "journeyed", "travelled", "moved", "went back")
GET = ("got", "took", "grabbed", "picked up")
DROP = ("dropped", "left", "discarded", "put down")
GIVE = ("gave", "handed", "passed")
VERBS = ("move", "get", "drop", "give")
NAMES = (*ACTORS, *GIVERS, *LOCATIONS, *OBJECTS)
DEEDS = tuple(words.split()[0] for words in (*MOVE, *GET, *DROP, *GIVE))
OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}

QUESTIONS = 5  # of a story
# How often the released data asks each question about a gift.
GIFTS = {
    "What did {giver} give to {taker}?": ("{thing}", 329),
    "Who gave the {thing}?": ("{giver}", 178),
    "Who did {giver} give the {thing} to?": ("{taker}", 171),
    "Who gave the {thing} to {taker}?": ("{giver}", 168),
    "Who received the {thing}?": ("{taker}", 153),
}

Random = np.random.Generator
T = TypeVar("T")


@dataclass(frozen=True)
class Problem:
    """Facts, a question about them, its answer in one word, and the facts that it follows from."""

    facts: tuple[str, ...]
    question: str
    answer: str
    support: tuple[int, ...]


def problem(task: str, random: Random) -> Problem:
    """One question of one story, with all facts told before it."""
    return choose(story(task, random), random)


def story(task: str, random: Random, questions: int = QUESTIONS) -> list[Problem]:
    """The first questions of one story, each with the facts before it; a story of qa4 has one."""
    if task not in STORIES:
        raise ValueError(f"unknown task {task!r} of bAbI; {suggest(task, list(STORIES))}")
    return list(islice(STORIES[task](random), questions))


def choose(options: Sequence[T], random: Random) -> T:
    return options[int(random.integers(len(options)))]


# ---- the world ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Action:
    """`actor` does `verb` ("move", "get", "drop", "give") with a place or a thing."""

    verb: str
    actor: str
    what: str
    taker: str = ""


@dataclass
class World:
    """What is true, what the reader can know of it, and the facts told so far.

    place: of actors, and of things that nobody holds. holder: of the others. known: the place of an
    actor or of a thing that lies somewhere, with its supporting facts. taken: the fact by which a
    thing came to its holder.
    """

    actors: tuple[str, ...]
    facts: list[str] = field(default_factory=list)
    holder: dict[str, str] = field(default_factory=dict)
    known: dict[str, tuple[str, frozenset[int]]] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)
    place: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.place = dict(zip(self.actors, STARTS, strict=True)) | OBJECT_STARTS

    def allows(self, action: Action) -> bool:
        here, holder = self.place[action.actor], self.holder.get(action.what)
        if action.verb == "move":
            return action.what != here
        if action.verb == "get":
            return holder is None and self.place[action.what] == here
        if holder != action.actor:
            return False
        together = action.taker != action.actor and self.place.get(action.taker) == here
        return action.verb == "drop" or together

    def act(self, action: Action, random: Random) -> None:
        """Do it, tell it, and note what the reader now knows."""
        number = len(self.facts)
        self.facts.append(tell(action, random))
        if action.verb == "move":
            self.place[action.actor] = action.what
            self.known[action.actor] = (action.what, frozenset({number}))
        elif action.verb == "drop":
            del self.holder[action.what]
            self.place[action.what] = self.place[action.actor]
            if action.actor in self.known:
                where, why = self.known[action.actor]
                self.known[action.what] = (where, why | {number})
        else:
            self.holder[action.what] = action.taker or action.actor
            self.taken[action.what] = number
            self.known.pop(action.what, None)

    def find(self, thing: str) -> tuple[str, frozenset[int]] | None:
        """Where the reader knows a thing to be, and from which facts: 2 of them."""
        if thing not in self.holder:
            return self.known.get(thing)
        if self.holder[thing] not in self.known:
            return None
        where, why = self.known[self.holder[thing]]
        return where, why | {self.taken[thing]}


def tell(action: Action, random: Random) -> str:
    there = " there" if random.random() < 0.5 else ""
    match action.verb:
        case "move":
            return f"{action.actor} {choose(MOVE, random)} to the {action.what}."
        case "get":
            return f"{action.actor} {choose(GET, random)} the {action.what}{there}."
        case "drop":
            return f"{action.actor} {choose(DROP, random)} the {action.what}{there}."
        case _:
            return f"{action.actor} {choose(GIVE, random)} the {action.what} to {action.taker}."


def draw_action(world: World, verbs: Sequence[str], random: Random) -> Action | None:
    """One of the actions that the world allows, each as probable; None if there is none."""
    allowed = [
        action for verb in verbs for action in ACTIONS[world.actors][verb] if world.allows(action)
    ]
    return choose(allowed, random) if allowed else None


def _actions(actors: tuple[str, ...]) -> dict[str, list[Action]]:
    """Every action by its verb."""
    moves = [Action("move", actor, place) for actor, place in product(actors, LOCATIONS)]
    handled = list(product(actors, OBJECTS))
    gifts = [Action("give", *parts) for parts in product(actors, OBJECTS, actors)]
    return {
        "move": moves,
        "get": [Action("get", actor, thing) for actor, thing in handled],
        "drop": [Action("drop", actor, thing) for actor, thing in handled],
        "give": gifts,
    }


ACTIONS: dict[tuple[str, ...], dict[str, list[Action]]] = {
    actors: _actions(actors) for actors in (ACTORS, GIVERS)
}


# ---- the tasks ---------------------------------------------------------------------------------


def _single_fact(random: Random) -> Iterator[Problem]:
    """qa1: two moves, then where somebody is who has moved."""
    world = World(ACTORS)
    while True:
        for _ in range(2):
            action = draw_action(world, ["move"], random)
            assert action is not None
            world.act(action, random)
        yield _ask_actor(world, choose(sorted(world.known), random))


def _ask_actor(world: World, actor: str) -> Problem:
    where, why = world.known[actor]
    return Problem(tuple(world.facts), f"Where is {actor}?", where, tuple(why))


def _two_facts(random: Random) -> Iterator[Problem]:
    """qa2: where a thing is that somebody holds or has dropped."""
    for world in _handling(random):
        found = {thing: world.find(thing) for thing in OBJECTS}
        known = [thing for thing, place in found.items() if place is not None]
        if known:
            thing = choose(known, random)
            place = found[thing]
            assert place is not None
            yield Problem(
                tuple(world.facts), f"Where is the {thing}?", place[0], tuple(sorted(place[1]))
            )


def _three_facts(random: Random) -> Iterator[Problem]:
    """qa3: where a thing was before it came to where it is, if that follows from three facts."""
    for world, history in _with_history(random):
        options = [o for o in OBJECTS if len(history[o]) > 1 and len(_why(history[o])) == 3]
        if options:
            thing = choose(options, random)
            (before, _), (now, _) = history[thing][-2:]
            question = f"Where was the {thing} before the {now}?"
            support = tuple(sorted(_why(history[thing])))
            yield Problem(tuple(world.facts), question, before, support)


def _handling(random: Random) -> Iterator[World]:
    """The world whenever a question may be asked: half the time, three actions after the last.

    Asking is up to the caller; what it yields itself are the questions.
    """
    for world, ask in _acting(random):
        if ask:
            yield world


def _acting(random: Random) -> Iterator[tuple[World, bool]]:
    world, since = World(ACTORS), 0
    while True:
        verbs = ["move"] if random.integers(3) == 0 else ["get", "drop"]
        action = draw_action(world, verbs, random)
        if action is None:
            continue
        world.act(action, random)
        since += 1
        ask = since >= 3 and random.random() < 0.5
        since = 0 if ask else since
        yield world, ask


History = list[tuple[str, frozenset[int]]]


def _with_history(random: Random) -> Iterator[tuple[World, dict[str, History]]]:
    """The world when a question may be asked, and the places where each thing has been."""
    history: dict[str, History] = {thing: [] for thing in OBJECTS}
    for world, ask in _acting(random):
        for thing, places in history.items():
            now = world.find(thing)
            if now is not None and (not places or places[-1][0] != now[0]):
                places.append(now)
        if ask:
            yield world, history


def _why(places: History) -> frozenset[int]:
    """The facts behind the last two places."""
    return places[-1][1] | places[-2][1]


def _two_relations(random: Random) -> Iterator[Problem]:
    """qa4: three places in a line, told by two neighbourhoods, one of which is asked for."""
    line = [LOCATIONS[i] for i in random.permutation(len(LOCATIONS))[:3]]
    direction = choose(("north", "east"), random)
    pairs = [(line[0], line[1]), (line[1], line[2])]
    order = [int(i) for i in random.permutation(2)]
    facts = tuple(_relation(*pairs[i], direction, random) for i in order)
    asked = int(random.integers(2))
    a, b = pairs[asked]
    if random.random() < 0.5:
        a, b, direction = b, a, OPPOSITE[direction]
    forms = [(f"What is {direction} of the {b}?", a), (f"What is the {a} {direction} of?", b)]
    yield Problem(facts, *choose(forms, random), (order.index(asked),))


def _relation(a: str, b: str, direction: str, random: Random) -> str:
    """a is `direction` of b, in either wording."""
    if random.random() < 0.5:
        a, b, direction = b, a, OPPOSITE[direction]
    return f"The {a} is {direction} of the {b}."


def _three_relations(random: Random) -> Iterator[Problem]:
    """qa5: who gave what to whom, asked up to five actions about other things later."""
    world, since = World(GIVERS), 0
    while True:
        action = draw_action(world, [choose(VERBS, random)], random)
        if action is None:
            continue
        world.act(action, random)
        since += 1
        if action.verb == "give" and since >= 2:
            support = len(world.facts) - 1
            _distract(world, action, random)
            yield Problem(tuple(world.facts), *_ask_gift(action, random), (support,))
            since = 0


def _distract(world: World, gift: Action, random: Random) -> None:
    """0 to 5 actions, none with the same thing nor from the same giver to the same taker."""
    for _ in range(int(random.integers(6))):
        action = draw_action(world, [choose(VERBS, random)], random)
        if action is None or action.what == gift.what:
            continue
        if (action.actor, action.taker) != (gift.actor, gift.taker):
            world.act(action, random)


def _ask_gift(gift: Action, random: Random) -> tuple[str, str]:
    names = {"giver": gift.actor, "thing": gift.what, "taker": gift.taker}
    weights = np.array([weight for _, weight in GIFTS.values()], dtype=float)
    question = list(GIFTS)[int(random.choice(len(GIFTS), p=weights / weights.sum()))]
    return question.format(**names), GIFTS[question][0].format(**names)


STORIES: dict[str, Callable[[Random], Iterator[Problem]]] = {
    "qa1": _single_fact,
    "qa2": _two_facts,
    "qa3": _three_facts,
    "qa4": _two_relations,
    "qa5": _three_relations,
}
