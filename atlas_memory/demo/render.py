"""The picture of a demo as one self-contained page without a script."""

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template

from atlas_memory.demo.result import Answer, Passage, Result

WIDE, HIGH = 1_000, 100  # units of the strip


def render(result: Result) -> str:
    """Of the first problem; the template's own text is the only markup that is not escaped."""
    first, picture = result.answers[0], result.picture
    template = files("atlas_memory.demo").joinpath("page.html").read_text(encoding="utf-8")
    others = "".join(map(_passage, picture.others)) or "<p>Nothing.</p>"
    return Template(template).substitute(
        question=escape(first.question),
        words=f"{result.words:,}",
        admitted=f"{result.admitted:,}",
        truth=escape(first.truth),
        answer=escape(first.answer),
        verdict=_verdict(first.right),
        window=result.window,
        window_answer=escape(first.window_answer),
        window_verdict=_verdict(first.window_right),
        state=f"{result.state_bytes:,}",
        cache=f"{result.cache_bytes:,}",
        label=f"The write gate over the text; {len(first.facts)} facts are marked",
        strip=_strip(picture.parts, first, result.words),
        facts="".join(map(_passage, picture.facts)),
        others=others,
    )


def _verdict(right: bool) -> str:
    return "right" if right else "wrong"


def _strip(parts: Sequence[float], answer: Answer, words: int) -> str:
    width = WIDE / len(parts)
    bars = [
        f'<rect x="{n * width:.1f}" y="{HIGH * (1 - 0.8 * gate):.1f}" '
        f'width="{width:.1f}" height="{80 * gate:.1f}"/>'
        for n, gate in enumerate(parts)
        if gate > 0
    ]
    places = [WIDE * fact.position / words for fact in answer.facts]
    return "".join([*bars, *(f'<path d="M{x - 6:.1f} 0h12l-6 14z"/>' for x in places)])


def _passage(passage: Passage) -> str:
    words = zip(passage.words, passage.gates, passage.hidden, strict=True)
    spans = " ".join(_word(*word) for word in words)
    return f'<div class="passage"><b>from word {passage.position:,}</b>{spans}</div>\n'


def _word(word: str, gate: float, hidden: bool) -> str:
    classes = " ".join(name for name, on in (("fact", hidden), ("open", gate > 0)) if on)
    named = f' class="{classes}"' if classes else ""
    heat = f' style="--a:{0.1 + 0.75 * gate:.2f}" title="{gate:.3f}"' if gate > 0 else ""
    return f"<span{named}{heat}>{escape(word)}</span>"
