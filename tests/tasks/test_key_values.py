"""Documents of keys and values: seeded, solvable, and never ambiguous."""

import doctest
import re

import pytest

from atlas_memory.tasks import key_values
from atlas_memory.tasks.key_values import SYLLABLES, Documents, vocabulary, word


def test_the_example_of_the_docstring_is_drawn():
    assert doctest.testmod(key_values).failed == 0
    assert doctest.testmod(key_values).attempted == 1


@pytest.mark.parametrize("pairs", [1, 7, 32])
def test_a_reader_of_the_document_knows_every_answer(pairs):
    documents = Documents(pairs, keys=32, values=5, seed=3)
    asked = set()
    for n in range(40):
        row = documents[n]
        found = dict(re.findall(r"(\w+): (\w+)\.", row["text"]))
        assert len(found) == pairs
        assert found[row["key"].capitalize()] == row["value"]
        asked.add(row["key"])
    assert len(asked) > 10


def test_documents_depend_on_number_and_seed_alone():
    documents = Documents(8, seed=1)
    assert documents[5] == Documents(8, seed=1)[5]
    assert documents[5] != documents[6]
    assert documents[5] != Documents(8, seed=2)[5]


def test_words_are_different_and_never_parts_of_each_other():
    documents = Documents(4, keys=300, values=300)
    words = vocabulary(documents)
    assert len(set(words)) == len(words) == 600
    assert set(documents[0]["text"].split()) <= set(words)
    values = words[300:]
    assert not any(one in other for one in values for other in values if one != other)


def test_mistakes():
    with pytest.raises(ValueError, match="pairs=9: it must be from 1 to the 8 keys"):
        Documents(9, keys=8)
    with pytest.raises(ValueError, match="only 70 words of 1 syllables"):
        word(len(SYLLABLES), 1)
