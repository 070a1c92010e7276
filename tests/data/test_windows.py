"""The n-th example is a function of n: order, borders and lanes are checked on small texts."""

import itertools

import numpy as np
import pytest
import torch

from atlas_memory.data.token_cache import Tokens, cached_tokens, smallest_dtype
from atlas_memory.data.tokenizer import load_tokenizer
from atlas_memory.data.windows import InOrder, Lanes, Shuffled, collate, cut, permuted


def text(length, starts=(0,)):
    ids = np.arange(length, dtype=np.uint16)
    return Tokens(ids, np.array(starts, dtype=np.int64), length, "test")


@pytest.mark.parametrize("count", [1, 2, 3, 16, 17, 100, 1023])
def test_every_place_is_taken_once(count):
    assert sorted(permuted(i, count, 7) for i in range(count)) == list(range(count))


def test_the_order_is_random_and_follows_the_seed():
    one, two, other = ([permuted(i, 500, key) for i in range(500)] for key in (1, 1, 2))
    assert one == two != other
    steps = np.abs(np.diff(one))
    assert abs(np.mean(steps) - 500 / 3) < 25


def test_an_epoch_predicts_every_token_once():
    windows = Shuffled(text(101), 11, seed=3, count=20)
    targets = torch.cat([windows[n]["labels"][1:] for n in range(10)])
    assert sorted(targets.tolist()) == list(range(1, 101))
    second = torch.cat([windows[n]["labels"][1:] for n in range(10, 20)])
    assert sorted(second.tolist()) == list(range(1, 101))
    assert second.tolist() != targets.tolist()


def test_positions_restart_with_every_document():
    tokens = text(20, (0, 4, 11, 12))
    example = cut(tokens, 2, 12, fresh=True)
    assert example["input_ids"].tolist() == list(range(2, 14))
    assert example["position_ids"].tolist() == [0, 1, 0, 1, 2, 3, 4, 5, 6, 0, 0, 1]
    assert example["labels"].tolist() == [-100, 3, -100, 5, 6, 7, 8, 9, 10, -100, -100, 13]
    carried = cut(tokens, 6, 6, fresh=False)
    assert carried["position_ids"].tolist() == [2, 3, 4, 5, 6, 0]
    assert cut(tokens, 4, 3, fresh=False)["position_ids"].tolist() == [0, 1, 2]


def test_lanes_go_on_where_they_stopped():
    lanes = Lanes(text(100), 7, rows=3, count=100)
    for row in range(3):
        read = torch.cat([lanes[step * 3 + row]["input_ids"] for step in range(4)])
        assert read.tolist() == list(range(row * 33, row * 33 + 28))
    assert lanes[0]["position_ids"][0] == 0
    assert lanes[4]["position_ids"].tolist() == list(range(40, 47))
    around = lanes[4 * 3 + 1]
    assert around["position_ids"][0] == 0
    assert around["input_ids"].tolist() == lanes[1]["input_ids"].tolist()


def test_validation_reads_from_left_to_right():
    windows = InOrder(text(50), 10)
    assert len(windows) == 5
    read = torch.cat([windows[n]["labels"][1:] for n in range(5)])
    assert read.tolist() == list(range(1, 46))
    assert len(InOrder(text(50), 10, most=2)) == 2
    with pytest.raises(IndexError):
        windows[5]


def test_batches_are_stacked():
    windows = InOrder(text(50), 10)
    batch = collate([windows[0], windows[1]])
    assert {name: tuple(x.shape) for name, x in batch.items()} == dict.fromkeys(
        ("input_ids", "position_ids", "labels"), (2, 10)
    )


class Texts:
    """A source that counts how often it is read."""

    def __init__(self, *texts):
        self.texts, self.reads = texts, 0

    def documents(self):
        self.reads += 1
        yield from ([text.encode()] for text in self.texts)

    def fingerprint(self):
        return list(self.texts)


def left_behind(folder):
    """What is in a folder but for locks, which some file systems keep."""
    return [path.name for path in folder.iterdir() if path.suffix != ".lock"]


def test_tokens_are_cached_once_and_mapped(tmp_path, monkeypatch):
    monkeypatch.setenv("ATLAS_HOME", str(tmp_path))
    source, tokenizer = Texts("abc", "", "defg"), load_tokenizer("bytes")
    first, second = (cached_tokens(source, tokenizer) for _ in range(2))
    assert source.reads == 1
    assert isinstance(second.ids, np.memmap)
    assert first.ids.dtype == np.uint8
    assert bytes(second.ids) == b"abcdefg"
    assert second.starts.tolist() == [0, 3]
    assert second.num_bytes == 7
    limited = cached_tokens(source, tokenizer, most=5)
    assert bytes(limited.ids) == b"abcde"
    assert limited.num_bytes == 5
    assert not any(name.startswith(".") for name in left_behind(tmp_path / "tokens"))


def test_no_more_of_a_document_is_read_than_is_wanted(tmp_path, monkeypatch):
    monkeypatch.setenv("ATLAS_HOME", str(tmp_path))

    class Endless(Texts):
        def documents(self):
            yield [b"abc"]
            yield itertools.repeat(b"defg")

    limited = cached_tokens(Endless("x"), load_tokenizer("bytes"), most=9)
    assert bytes(limited.ids) == b"abcdefgde"
    assert limited.num_bytes == 9
    assert limited.starts.tolist() == [0, 3]


def test_a_source_that_fails_leaves_no_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ATLAS_HOME", str(tmp_path))

    class Broken(Texts):
        def documents(self):
            yield [b"abc"]
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        cached_tokens(Broken("x"), load_tokenizer("bytes"))
    assert left_behind(tmp_path / "tokens") == []


def test_parts_keep_their_documents():
    part = text(20, (0, 4, 11)).part(3, 13)
    assert part.ids.tolist() == list(range(3, 13))
    assert part.starts.tolist() == [0, 1, 8]


def test_the_smallest_type_that_holds_every_id():
    names = [np.dtype(smallest_dtype(size)).name for size in (256, 257, 65536, 65537)]
    assert names == ["uint8", "uint16", "uint16", "uint32"]
