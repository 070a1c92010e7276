"""A small trained model that reads a long text and knows afterwards where somebody is.

    >>> from atlas_memory import demo
    >>> result = demo.run(words=100_000)
    >>> result.answers[0].question, result.answers[0].answer, result.answers[0].truth
    ('Where is John?', 'office', 'office')

The model and a sliding-window model beside it are part of the package: models.safetensors, and
models.json with their configs and the settings that they were trained with.
"""

from collections.abc import Callable

from atlas_memory.demo.problems import checked, drawn, own
from atlas_memory.demo.result import Answer, Fact, Passage, Picture, Result

__all__ = ["Answer", "Fact", "Passage", "Picture", "Result", "page", "run"]


def run(
    words: int = 100_000,
    repeat: int = 1,
    seed: int = 2,
    text: str | None = None,
    facts: str | None = None,
    ask: str | None = None,
    watch: Callable[[int, int], None] | None = None,
) -> Result:
    """Hide facts in a text of so many words, read it, and ask.

    text: what the facts are hidden in, repeated until it is long enough; without it Python's own
    manual is. facts and ask: "Mary went to the kitchen. John moved to the garden." and "Where is
    Mary?"; without facts `repeat` problems are drawn. watch(read, total) is told of every block.
    """
    checked(words, repeat)
    problems = [own(facts, ask)] * repeat if facts is not None else drawn(repeat, seed, ask)
    from atlas_memory.demo.reading import read

    return read(problems, words, seed, text, watch or (lambda done, total: None))


def page(result: Result) -> str:
    """A self-contained page: which words the memory admitted around the facts of one problem."""
    from atlas_memory.demo.render import render

    return render(result)
