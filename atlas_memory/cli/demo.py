"""atlas demo: a small trained model reads a long text and answers where somebody is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atlas_memory.cli.inspect import read_text, require_place
from atlas_memory.cli.options import AsJson
from atlas_memory.cli.show import readable_size

if TYPE_CHECKING:
    from atlas_memory.demo import Answer, Result

WORDS = "Words of the text, 1,000 to 10,000,000."
REPEAT = "Problems to draw, each in a text of its own."
TEXT = "A text file to hide the facts in; without it Python's own manual."
FACTS = "Your own: 'Mary went to the kitchen. John moved to the garden.'"
ASK = "Your question: 'Where is Mary?'"
OUT = "A page to write: what the memory admitted."


def run(
    words: Annotated[int, typer.Option(help=WORDS)] = 100_000,
    repeat: Annotated[int, typer.Option(help=REPEAT)] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Of what is drawn.")] = 2,
    text: Annotated[Path | None, typer.Option(help=TEXT)] = None,
    facts: Annotated[str | None, typer.Option(help=FACTS)] = None,
    ask: Annotated[str | None, typer.Option(help=ASK)] = None,
    out: Annotated[Path | None, typer.Option(help=OUT)] = None,
    as_json: AsJson = False,
) -> None:
    """Hide facts in a long text, let a small model read it, and ask where somebody is.

    The model is part of the package: nothing is downloaded and nothing is trained.
    Example: atlas demo --words 1000000 --out demo.html
    """
    given = None if text is None else read_text(text)
    if out is not None:
        require_place(out)
    import json

    from atlas_memory import demo
    from atlas_memory.cli.progress import Bar

    result = demo.run(words, repeat, seed, given, facts, ask, watch=Bar("words").show)
    if out is not None:
        out.write_text(demo.page(result), encoding="utf-8")
    print(json.dumps(result.as_dict()) if as_json else told(result))
    if out is not None and not as_json:
        print(f"\n{out}: which words the memory admitted")


def told(result: Result) -> str:
    """What people read."""
    one = result.asked == 1
    lines = _one(result) if one else [_row(answer) for answer in result.answers]
    if not one:
        right = f"right: {result.right} of {result.asked}"
        lines += ["", f"{right}; with a window alone {result.window_right}"]
    shown = "" if one else f" in each of {result.asked} texts"
    return "\n".join(
        [
            *lines,
            "",
            f"read       {result.words:,} words{shown}, {result.words_per_second:,.0f} a second",
            f"admitted   {result.admitted:,} words{'' if one else ' of the first text'}",
            f"state      {readable_size(result.state_bytes)}; the cache of a Transformer of this "
            f"width would be {readable_size(result.cache_bytes)}",
        ]
    )


def _one(result: Result) -> list[str]:
    (answer,) = result.answers
    hidden = [f"{fact.position:>11,}  {fact.text}" for fact in answer.facts]
    return [
        f"hidden in {result.words:,} words, behind so many:",
        *hidden,
        "",
        answer.question,
        f"  truth                    {answer.truth}",
        f"  memory                   {answer.answer:10} {_verdict(answer.right)}",
        f"  window of {result.window} words       {answer.window_answer:10} "
        f"{_verdict(answer.window_right)}",
    ]


def _row(answer: Answer) -> str:
    return (
        f"{answer.question:18} {answer.truth:10} memory: {answer.answer:10} "
        f"{_verdict(answer.right):6} window: {answer.window_answer:10} "
        f"{_verdict(answer.window_right)}"
    )


def _verdict(right: bool) -> str:
    return "right" if right else "wrong"
