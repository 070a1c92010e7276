"""atlas inspect: a page that opens in a browser, with the losses that one finds by hand."""

import json
import math
import re
from functools import partial

import pytest
import torch
from browser import needs_chromium, open_page
from commands import command_line
from saved import byte_model, save_model

from atlas_memory.data.tokenizer import load_tokenizer, train_tokenizer
from atlas_memory.inspection.report import excerpt

TEXT = (
    "Call me Ishmael. </script><b>Some years ago</b> \u2013 never mind \u2013 having “little” or\n"
    "no money in my purse, & nothing particular to interest me on shore, \U0001f40b I thought I\n"
    "would sail about a little and see the watery part of the world.\n"
) * 3


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    return str(save_model(tmp_path_factory.mktemp("run"), byte_model("atlas")))


@pytest.fixture
def atlas(capsys):
    return partial(command_line, capsys, "inspect")


@pytest.fixture
def book(tmp_path):
    file = tmp_path / "book.txt"
    file.write_text(TEXT, encoding="utf-8")
    return file


def data_of(page):
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return json.loads(found[1])


def losses_by_hand(text):
    """Bits of every byte but the first, by the model's probabilities."""
    ids = torch.tensor([list(text.encode())])
    with torch.no_grad():
        probabilities = byte_model("atlas")(ids).logits[0].double().softmax(-1)
    return [-math.log2(probabilities[t, b].item()) for t, b in enumerate(ids[0, 1:].tolist())]


def test_the_page_holds_the_losses(run_folder, book, atlas, tmp_path):
    out = tmp_path / "report.html"
    code, printed, errors = atlas(run_folder, book, "--out", out)
    assert code == 0, errors
    data = data_of(out.read_text(encoding="utf-8"))
    wanted = losses_by_hand(TEXT)
    assert data["surprise"][0] is None
    assert data["surprise"][1:] == pytest.approx(wanted, abs=2e-3)
    assert data["mean"] == pytest.approx(sum(wanted) / len(wanted), rel=1e-4)
    assert "".join(data["pieces"]) == TEXT
    assert data["tokens"] == len(TEXT.encode()) == len(data["pieces"])
    assert f"{data['tokens']:,} tokens, {data['mean']:.3f} bits per token" in printed
    assert [len(layer["memory"]["alpha"]) for layer in data["layers"]] == [2, 2]
    assert {len(row) for row in data["layers"][0]["memory"]["gamma"]} == {len(data["bins"])}


def test_numbers_as_json_and_fewer_tokens(run_folder, book, atlas, tmp_path):
    out = tmp_path / "report.html"
    code, printed, _ = atlas(run_folder, book, "--out", out, "--tokens", 50, "--every", 7, "--json")
    assert code == 0
    data = json.loads(printed)
    assert data == data_of(out.read_text(encoding="utf-8"))
    assert data["tokens"] == 50
    assert data["points"] == [7, 14, 21, 28, 35, 42, 49, 50]


def test_the_page_asks_nobody(run_folder, book, atlas, tmp_path):
    out = tmp_path / "report.html"
    atlas(run_folder, book, "--out", out)
    page = out.read_text(encoding="utf-8")
    markup = re.sub(r'<script type="application/json".*?</script>', "", page, flags=re.S)
    addresses = re.findall(r"https?://[^\"'\s]+", markup)
    assert addresses == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"(src|href)\s*=", markup)
    assert page.count("</script>") == 2


@needs_chromium
@pytest.mark.parametrize(("width", "dark"), [(1200, False), (360, True)])
def test_in_a_browser(width, dark, run_folder, book, atlas, tmp_path):
    out = tmp_path / "report.html"
    atlas(run_folder, book, "--out", out)
    data = data_of(out.read_text(encoding="utf-8"))
    with open_page(width=width, dark=dark) as page:
        page.goto(out.as_uri())
        assert page.text_content("#text") == TEXT
        assert page.locator("#text span").count() == data["tokens"]
        assert page.locator("#contributions svg").count() == 2
        assert page.locator("#inside svg").count() == 6
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        # the keyboard: to the text, forward by 3 tokens, to the end, back by one
        page.focus("#text")
        for key in ("ArrowRight",) * 3:
            page.keyboard.press(key)
        assert f"token 4 of {data['tokens']}" in page.text_content("#told")
        bits = float(re.search(r"surprise ([\d.]+) bits", page.text_content("#told"))[1])
        assert bits == pytest.approx(data["surprise"][3], rel=1e-3)
        page.keyboard.press("End")
        page.keyboard.press("ArrowLeft")
        assert f"token {data['tokens'] - 1} of" in page.text_content("#told")
        # the mouse on a chart moves the same cursor, and tells every head's number
        page.locator("#inside svg").first.scroll_into_view_if_needed()
        page.locator("#inside svg").first.hover(position={"x": 150, "y": 40})
        assert "token" in page.text_content("#told")
        assert f"token {data['tokens'] - 1} of" not in page.text_content("#told")
        assert "head 1" in page.locator("#inside .values").first.text_content()
        # another layer, by keyboard
        page.focus("#layer")
        page.keyboard.press("ArrowDown")
        assert page.locator("#inside svg").count() == 6
        page.locator("#surprising button").first.click()
        assert f"token {data['surprising'][0] + 1} of" in page.text_content("#told")


@needs_chromium
def test_a_model_without_gated_memories(book, atlas, tmp_path):
    folder = save_model(tmp_path / "run", byte_model("transformer_plus"))
    out = tmp_path / "report.html"
    assert atlas(folder, book, "--out", out)[0] == 0
    with open_page() as page:
        page.goto(out.as_uri())
        assert "Attention: it has no gated memory" in page.text_content("#inside")


@pytest.mark.parametrize("tokenizer", ["bytes", "trained"])
@pytest.mark.parametrize("most", [1, 40, 10_000])
def test_pieces_are_the_text(tokenizer, most):
    chosen = load_tokenizer("bytes")
    if tokenizer == "trained":
        chosen = train_tokenizer([[TEXT.encode()]], 300)
    read = excerpt(TEXT, chosen, most)
    assert len(read.ids) == len(read.pieces) <= most
    assert TEXT.startswith("".join(read.pieces))
    assert read.ids == chosen.fast.encode(TEXT, add_special_tokens=False)[:most]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["missing.txt"], "cannot read missing.txt: No such file"),
        (["empty.txt"], "empty.txt is empty"),
        (["binary.txt"], "binary.txt is no text: byte 1 is not UTF-8"),
        (["book.txt", "--out", "."], "is a folder; give a file such as report.html"),
        (["book.txt", "--out", "no/report.html"], "its folder does not exist"),
    ],
)
def test_mistakes(arguments, sentence, run_folder, book, atlas, monkeypatch):
    monkeypatch.chdir(book.parent)
    (book.parent / "empty.txt").touch()
    (book.parent / "binary.txt").write_bytes(b"a\xff\xfe")
    code, printed, errors = atlas(run_folder, *arguments)
    assert code == 2
    assert printed == ""
    assert sentence in errors
    assert len(errors.strip().splitlines()) == 1
