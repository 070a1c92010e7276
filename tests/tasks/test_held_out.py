"""Items cut from a text: nothing is lost, nothing is made up."""

import doctest

import pytest

from atlas_memory.tasks import held_out
from atlas_memory.tasks.held_out import continuations, last_words, pages

TEXT = "\n".join(f"line {n} says some words, and more of 1{n} words end here" for n in range(60))


def test_the_example_of_the_docstring():
    assert doctest.testmod(held_out).failed == 0
    assert doctest.testmod(held_out).attempted == 1


@pytest.mark.parametrize("size", [7, 100, 333, 10_000])
def test_pages_are_the_text(size):
    found = pages(TEXT, size, 10_000)
    assert "".join(row["page"] for row in found) == TEXT
    assert all(len(row["page"]) <= max(size, 5) for row in found)


def test_last_words_have_letters_only():
    found = last_words(TEXT, 5, 20)
    assert len(found) == 20
    for row in found:
        assert row["text"] in TEXT.replace("\n", " ")
        assert row["text"].split(" ")[-1].isalpha()
        assert len(row["text"].split(" ")) == 5


def test_the_right_continuation_follows():
    found = continuations(TEXT, 4, 30)
    flat = TEXT.replace("\n", " ")
    for row in found:
        choices = row["sol1"], row["sol2"]
        assert f"{row['goal']} {choices[row['label']]}" in flat
        assert f"{row['goal']} {choices[1 - row['label']]}" not in flat
    assert {row["label"] for row in found} == {0, 1}


def test_a_short_text_gives_no_item():
    assert last_words("one two", 5, 3) == continuations("one two", 5, 3) == []
    assert pages("", 10, 3) == []
