"""Every kind of source gives the same documents, and what is no text is refused."""

import gzip
import json

import pyarrow
import pyarrow.parquet
import pytest

from atlas_memory.data.corpus import HubDataset, may_be_hub_name
from atlas_memory.data.documents import PIECE, Files, by_split, find_files

TEXTS = ["One.\nTwo.", "Ein Käse — 木", "three\n"]


def read(path, field="text"):
    files = Files(tuple(find_files(str(path))), field)
    return [b"".join(document).decode() for document in files.documents()]


def records(field="text"):
    return "\n".join(json.dumps({"id": i, field: text}) for i, text in enumerate(TEXTS)) + "\n\n"


def test_text_files_are_documents(tmp_path):
    for i, text in enumerate(TEXTS):
        (tmp_path / f"{i}.txt").write_text(text)
    (tmp_path / ".hidden").write_text("not this")
    assert read(tmp_path) == TEXTS
    assert read(tmp_path / "[01].txt") == TEXTS[:2]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_json_lines(tmp_path, name):
    opened = gzip.open if name.endswith("gz") else open
    with opened(tmp_path / name, "wt", encoding="utf-8") as file:
        file.write(records("body"))
    assert read(tmp_path / name, "body") == TEXTS


def test_parquet_and_a_data_set_read_as_a_stream(tmp_path):
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": TEXTS}), path)
    assert read(path) == TEXTS
    stream = HubDataset(str(tmp_path)).documents()
    assert [b"".join(document).decode() for document in stream] == TEXTS


def test_a_long_file_comes_in_pieces_cut_at_lines(tmp_path):
    line = "0123456789" * 10 + "\n"
    (tmp_path / "long.txt").write_text(line * (3 * PIECE // len(line)))
    (document,) = Files((tmp_path / "long.txt",)).documents()
    pieces = list(document)
    assert len(pieces) > 1
    assert all(piece.endswith(b"\n") for piece in pieces)
    assert b"".join(pieces) == (tmp_path / "long.txt").read_bytes()


def test_splits_follow_the_names(tmp_path):
    names = ["a.txt", "train-0.txt", "validation.jsonl.gz", "dev.txt", "test_1.txt"]
    splits = by_split([tmp_path / name for name in names])
    assert [path.name for path in splits["train"]] == names[:2]
    assert [path.name for path in splits["validation"]] == names[2:4]
    assert [path.name for path in splits["test"]] == names[4:]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"text \0 text", "not UTF-8 text"),
        ("a.txt", bytes(range(128, 256)) * 20, "not UTF-8 text"),
        ("a.jsonl", b'{"text": 1}\n', "no text in 'text'"),
        ("a.jsonl", b'{"txt": "x"}\n', "did you mean 'txt'"),
        ("a.jsonl", b'{"text": "x"}\nnot json\n', "line 2 is not JSON"),
        ("a.parquet", b"PAR1 garbage", "not a parquet file"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read(tmp_path / name)


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no file"):
        find_files(str(tmp_path))


@pytest.mark.parametrize(
    ("source", "may"),
    [
        ("HuggingFaceFW/fineweb", True),
        ("HuggingFaceFW/fineweb:sample-10BT", True),
        ("wikitext", True),
        ("missing.txt", False),
        ("a/b/c", False),
        ("/tmp/x", False),
        ("./x", False),
    ],
)
def test_names_of_data_sets(source, may):
    assert may_be_hub_name(source) is may
