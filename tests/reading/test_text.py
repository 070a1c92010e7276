"""Text as a stream of ids: every place can be left and entered again."""

import json

import numpy as np
import pytest

from atlas_memory.data.tokenizer import load_tokenizer, train_tokenizer
from atlas_memory.reading.text import Bookmark, open_text

LINES = [f"line {n} of a text with snow ☃ and caf\u00e9\n" for n in range(40)]


@pytest.fixture(scope="module")
def trained():
    return train_tokenizer([[line.encode()] for line in LINES], 300)


@pytest.fixture
def files(tmp_path):
    """A text and records: 41 documents in 41 pieces."""
    (tmp_path / "a.txt").write_text("".join(LINES))
    records = [json.dumps({"text": line}) + "\n" for line in LINES]
    (tmp_path / "b.jsonl").write_text("".join(records))
    return [str(tmp_path / "a.txt"), str(tmp_path / "b.jsonl")]


def ids_of(text):
    return np.concatenate(list(text)).tolist()


def test_files_are_one_text_with_ends_between_documents(files, trained):
    ids = ids_of(open_text(files, trained))
    assert ids.count(trained.end) == 40
    assert ids[0] != trained.end != ids[-1]
    assert trained.fast.decode(ids, skip_special_tokens=True) == 2 * "".join(LINES)


@pytest.mark.parametrize("name", ["bytes", "trained"])
def test_every_place_can_be_entered_again(name, files, trained):
    tokenizer = trained if name == "trained" else load_tokenizer("bytes")
    whole = ids_of(open_text(files, tokenizer))
    for place in [0, 1, 7, len(whole) // 3, len(whole) // 2, len(whole) - 1, len(whole)]:
        text, read = open_text(files, tokenizer), 0
        for ids in text:
            read += len(ids)
            if read >= place:
                break
        mark = Bookmark(**json.loads(json.dumps(text.bookmark(place).to_dict())))
        assert mark.tokens == place
        assert ids_of(open_text(files, tokenizer, mark)) == whole[place:]


def test_a_text_that_has_changed_is_not_gone_on_with(files, tmp_path, trained):
    text = open_text(files, trained)
    pieces = iter(text)
    read = sum(len(next(pieces)) for _ in range(4))
    mark = text.bookmark(read - 1)
    (tmp_path / "a.txt").write_text("".join(LINES[:-1]))
    with pytest.raises(ValueError, match=r"b.jsonl has changed since the reading"):
        ids_of(open_text(files, trained, mark))
    with pytest.raises(ValueError, match="shorter than when the reading was interrupted"):
        ids_of(open_text(files[:1], trained, mark))


def test_how_much_there_is_to_read(files, trained, tmp_path):
    text = open_text(files, trained)
    assert text.total == sum(path.stat().st_size for path in tmp_path.iterdir())
    assert open_text(["-"], trained).total is None


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["nothing.txt"], "cannot read nothing.txt: No such file or directory"),
        (["-", "-"], "can be read only once"),
        (["{}"], "is a folder; give its files"),
        (["{}/empty.txt"], "empty.txt is empty"),
        (["{}/a.txt", "{}/binary"], "binary is not UTF-8 text"),
        (["{}/broken.jsonl"], "broken.jsonl, line 1 is not JSON"),
    ],
)
def test_a_wrong_file_is_seen_before_reading(names, message, files, tmp_path, trained):
    (tmp_path / "empty.txt").touch()
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 20)
    (tmp_path / "broken.jsonl").write_text("no json\n")
    with pytest.raises(ValueError, match=message):
        open_text([name.format(tmp_path) for name in names], trained)
