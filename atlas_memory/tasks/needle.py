"""RULER's single needle in a haystack: PK, N and W, at any length. [Atlas Table 3]

| kind | haystack                  | value          |
|------|---------------------------|----------------|
| pk   | five sentences, repeated  | 7-digit number |
| n    | the beginning of a corpus | 7-digit number |
| w    | the beginning of a corpus | UUID           |

A language model is asked by RULER's prompt, whose last words begin the answer. The prompt is a
stream of blocks of tokens, so its length is not bounded by memory.

    >>> sample("n", 2048, haystack, encode, np.random.default_rng(0)).needle
    'One of the special magic numbers for solid-forest is: 6732655.'

Differs from RULER: pieces of the prompt are encoded one by one, so that a byte-pair tokenizer
never merges across the border of a sentence.
"""

from dataclasses import dataclass
from uuid import UUID

import numpy as np

from atlas_memory.names import suggest
from atlas_memory.tasks.background import Background, Encode, Hidden

KINDS = {"pk": ("noise", "number"), "n": ("text", "number"), "w": ("text", "uuid")}
NOISE = (
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
)
BEFORE = (
    "A special magic {what} is hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {what} afterwards.\n"
)
NEEDLE = "One of the special magic {what}s for {key} is: {value}."
AFTER = (
    "\nWhat is the special magic {what} for {key} mentioned in the provided text? "
    "The special magic {what} for {key} mentioned in the provided text is"
)
ANSWER = 128  # tokens that a prompt leaves for the answer
DEPTHS = np.linspace(0, 100, 40).round()  # percent of the haystack in front of the needle

ADJECTIVES = (
    "able amber ancient bitter bold brave brief bright broad calm civil clever cosmic crisp daring "
    "deep dusty eager early fancy fierce gentle golden grand hollow honest humble icy jolly keen "
    "lively lunar mellow mighty narrow noble odd plain proud quick quiet rapid rare rough royal "
    "rusty salty scarlet sharp silent silver simple sleepy smooth solid steep stormy sturdy subtle "
    "swift tender tidy vivid warm"
)
NOUNS = (
    "acorn anchor apron arrow badge basin beacon bottle branch bridge bucket button cabin candle "
    "canyon carpet castle cellar chapel cloud compass copper cradle desert engine falcon feather "
    "fiddle forest garlic glacier hammer harbor helmet island jacket kettle ladder lantern magnet "
    "marble meadow mirror needle orchard paddle pebble pepper pillow quarry ribbon river saddle "
    "shovel signal spider stable temple thunder tunnel turtle valley violin wagon window"
)
KEYS = tuple(
    sorted(f"{adjective}-{noun}" for adjective in ADJECTIVES.split() for noun in NOUNS.split())
)


@dataclass(frozen=True)
class Sample:
    """A prompt, which is the context and the question, and what its answer has to contain."""

    needle: str
    context: Hidden
    question: str
    value: str


def noise(encode: Encode, repetitions: int = 1) -> Background:
    """The haystack of PK: five sentences as one, which `Background.prefix` repeats."""
    group = np.array(encode(NOISE), dtype=np.int32)
    ends = len(group) * np.arange(1, repetitions + 1)
    return Background(np.tile(group, repetitions), ends, np.array([repetitions]))


def sample(
    kind: str,
    tokens: int,
    haystack: Background,
    encode: Encode,
    random: np.random.Generator,
    keys: tuple[str, ...] = KEYS,
) -> Sample:
    """A prompt that leaves 128 of `tokens` for its answer."""
    what = values(kind)
    key = keys[int(random.integers(len(keys)))]
    value = draw_value(what, random)
    needle = NEEDLE.format(what=what, key=key, value=value)
    before, after = BEFORE.format(what=what), AFTER.format(what=what, key=key)
    placed = f"{needle}\n" if KINDS[kind][0] == "noise" else f" {needle}"
    parts = [np.array(encode(part), dtype=np.int32) for part in (before, placed, after)]
    room = tokens - ANSWER - sum(map(len, parts))
    if room < 0:
        raise ValueError(f"a prompt of {tokens} tokens is too short; give at least {tokens - room}")
    text = haystack.prefix(_whole(kind, haystack, room))
    offset = text.offset(_gap(kind, text.sentences, random))
    context = Hidden(text, ((0, parts[0]), (offset, parts[1])))
    return Sample(needle, context, after, value)


def values(kind: str) -> str:
    """What a needle of this kind hides: "number" or "uuid"."""
    if kind not in KINDS:
        raise ValueError(f"unknown needle {kind!r}; {suggest(kind, list(KINDS))}")
    return KINDS[kind][1]


def draw_value(what: str, random: np.random.Generator) -> str:
    if what == "number":
        return str(random.integers(1_000_000, 10_000_000))
    return str(UUID(bytes=random.bytes(16), version=4))


def _whole(kind: str, haystack: Background, room: int) -> int:
    """Noise comes in whole repetitions."""
    group = haystack.start(1)
    return room // group * group if KINDS[kind][0] == "noise" else room


def _gap(kind: str, sentences: int, random: np.random.Generator) -> int:
    """Before a random repetition of the noise, or at one of 40 depths of a text."""
    if KINDS[kind][0] == "noise":
        return int(random.integers(max(1, sentences)))
    return int(sentences * random.choice(DEPTHS) / 100)


def found(value: str, answer: str) -> bool:
    """RULER's score: the answer contains the value, in any case."""
    return value.lower() in answer.lower()


def solve(prompt: str) -> str:
    """The value, read off the text of a prompt."""
    key = prompt.rsplit(" for ", 1)[1].split(" mentioned", 1)[0].strip()
    sentence = prompt.split(f" for {key} is: ", 1)[1]
    return sentence.split(".", 1)[0].strip()
