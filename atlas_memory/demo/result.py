"""What a demo found, as plain values."""

from dataclasses import asdict, dataclass, field
from typing import Any

FIGURES = (
    *("words", "asked", "right", "window_right"),
    *("state_bytes", "cache_bytes", "words_per_second", "seconds"),
    *("parameters", "window", "admitted"),
)


@dataclass(frozen=True)
class Fact:
    """A sentence that was hidden, and how many words of the text stand before it."""

    text: str
    position: int


@dataclass(frozen=True)
class Answer:
    """One problem: what was hidden, what was asked, and what the two models said."""

    facts: tuple[Fact, ...]
    question: str
    truth: str
    answer: str
    window_answer: str

    @property
    def right(self) -> bool:
        return self.answer == self.truth

    @property
    def window_right(self) -> bool:
        return self.window_answer == self.truth


@dataclass(frozen=True)
class Passage:
    """Words of the text from `position` on, the write gate of each, and which are a fact's."""

    position: int
    words: tuple[str, ...]
    gates: tuple[float, ...]
    hidden: tuple[bool, ...]


@dataclass(frozen=True)
class Picture:
    """The write gate over the first text: the largest of each of equal parts, and places in it.

    facts: around each of the facts; others: around the widest open gates elsewhere.
    """

    parts: tuple[float, ...]
    facts: tuple[Passage, ...]
    others: tuple[Passage, ...]


@dataclass(frozen=True)
class Result:
    """state_bytes: of the memory after a text. cache_bytes: of a Transformer's keys and values of
    the same width and depth. admitted: words of the first text that the memory took in at all.
    """

    words: int
    answers: tuple[Answer, ...]
    seconds: float
    state_bytes: int
    cache_bytes: int
    parameters: int
    window: int
    admitted: int
    picture: Picture = field(repr=False)

    @property
    def asked(self) -> int:
        return len(self.answers)

    @property
    def right(self) -> int:
        return sum(answer.right for answer in self.answers)

    @property
    def window_right(self) -> int:
        return sum(answer.window_right for answer in self.answers)

    @property
    def words_per_second(self) -> float:
        """Of all texts together."""
        return self.asked * self.words / max(self.seconds, 1e-9)

    def as_dict(self) -> dict[str, Any]:
        """Everything but the picture, for machines."""
        answers = [asdict(a) | {"right": a.right} for a in self.answers]
        return {name: getattr(self, name) for name in FIGURES} | {"answers": answers}
