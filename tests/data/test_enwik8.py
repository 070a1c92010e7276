"""The corpus is checked by its hash; without a source there is one sentence."""

import pytest

from atlas_memory.data import enwik8 as module
from atlas_memory.data.corpus import find_source
from atlas_memory.data.enwik8 import SPLIT, checked, enwik8


def unreachable():
    raise OSError("no route to host")


def test_no_network_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("ATLAS_HOME", str(tmp_path))
    monkeypatch.setattr(module, "SOURCES", {"one": unreachable, "two": lambda: b"something else"})
    said = []
    with pytest.raises(ValueError, match="no network; pass --data") as caught:
        enwik8(said.append)
    assert "\n" not in str(caught.value)
    assert "they are not enwik8" in str(caught.value)
    assert said == ["enwik8: asking one", "enwik8: asking two"]
    assert not (tmp_path / "corpora" / "enwik8").exists()


def test_other_bytes_are_not_enwik8():
    with pytest.raises(ValueError, match="not enwik8"):
        checked(b"x" * 100)


def test_the_split_is_the_published_one():
    assert list(SPLIT.values()) == [90_000_000, 5_000_000, 5_000_000]


def test_a_corpus_that_is_there_is_not_fetched(tmp_path, monkeypatch):
    monkeypatch.setenv("ATLAS_HOME", str(tmp_path))
    folder = tmp_path / "corpora" / "enwik8"
    folder.mkdir(parents=True)
    for name in SPLIT:
        (folder / name).write_text(name)
    train, validation = find_source("enwik8", "text", pytest.fail)
    assert [path.name for path in train.paths] == ["train.txt"]
    assert [path.name for path in validation.paths] == ["validation.txt"]
