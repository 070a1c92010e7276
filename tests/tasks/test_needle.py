"""RULER's needles: the prompt, its length, its depth, and a reader that always finds the value."""

import re

import numpy as np
import pytest

from atlas_memory.tasks import needle
from atlas_memory.tasks.background import Background


def encode(text: str) -> list[int]:
    return list(text.encode())


def text_of(ids: np.ndarray) -> str:
    return bytes(ids.astype(np.uint8)).decode()


HAYSTACK = Background.from_texts(
    [" ".join(f"This is sentence number {n} of the book." for n in range(400))], encode
)


def prompt_of(drawn: needle.Sample) -> str:
    return text_of(drawn.context.ids()) + drawn.question


def draw(kind: str, tokens: int, seed: int) -> needle.Sample:
    haystack = needle.noise(encode) if kind == "pk" else HAYSTACK
    return needle.sample(kind, tokens, haystack, encode, np.random.default_rng(seed))


def test_the_docstring_is_what_is_drawn() -> None:
    assert needle.__doc__ is not None
    assert draw("n", 2_048, 0).needle in needle.__doc__


@pytest.mark.parametrize("kind", needle.KINDS)
@pytest.mark.parametrize("tokens", [800, 4_096, 100_001])
def test_the_value_is_found_in_every_prompt(kind: str, tokens: int) -> None:
    for seed in range(10):
        drawn = draw(kind, tokens, seed)
        prompt = prompt_of(drawn)
        assert needle.solve(prompt) == drawn.value
        assert prompt.count(drawn.needle) == 1
        assert len(prompt) <= tokens - 128
        # the haystack is as long as it can be: noise comes in whole repetitions
        assert len(prompt) > tokens - 128 - (len(needle.NOISE) if kind == "pk" else 1)


@pytest.mark.parametrize(
    ("kind", "pattern"),
    [
        ("pk", r"[1-9]\d{6}"),
        ("n", r"[1-9]\d{6}"),
        ("w", r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"),
    ],
)
def test_values_are_numbers_of_seven_digits_and_uuids(kind: str, pattern: str) -> None:
    drawn = [draw(kind, 1_000, seed).value for seed in range(50)]
    assert all(re.fullmatch(pattern, value) for value in drawn)
    assert len(set(drawn)) == 50


def test_the_same_haystack_is_used_for_every_sample_at_forty_depths() -> None:
    places, first = [], text_of(HAYSTACK.ids[:100])
    for seed in range(100):
        drawn = draw("n", 20_000, seed)
        prompt = prompt_of(drawn)
        places.append(prompt.index(drawn.needle) / len(prompt))
        assert prompt.replace(f" {drawn.needle}", "").split("\n", 1)[1].startswith(first)
    assert len({round(place, 2) for place in places}) <= 50
    assert min(places) < 0.05
    assert max(places) > 0.9


def test_a_short_haystack_begins_again() -> None:
    prompt = prompt_of(draw("w", 40_000, 0))
    assert prompt.count("This is sentence number 7 of the book.") > 1


def test_the_score_is_containment_in_any_case() -> None:
    assert needle.found("AB12", " it is ab12, I think")
    assert not needle.found("1234567", "123456 7")


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"unknown needle 'x'.*pk, n, w"):
        draw("x", 1_000, 0)
    with pytest.raises(ValueError, match="a prompt of 200 tokens is too short"):
        draw("n", 200, 0)
