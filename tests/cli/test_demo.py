"""atlas demo: what people read, what machines read, and the page."""

import json
import re
from functools import partial

import pytest
from browser import needs_chromium, open_page
from commands import command_line

FACTS = "Mary went to the kitchen. John moved to the garden."


@pytest.fixture
def atlas(capsys):
    return partial(command_line, capsys, "demo")


def test_people(atlas):
    code, printed, errors = atlas("--words", 2_000, "--facts", FACTS, "--ask", "Where is Mary?")
    assert code == 0, errors
    assert "Where is Mary?\n  truth                    kitchen\n" in printed
    assert re.search(r"memory +kitchen +right", printed)
    assert re.search(r"window of 32 words +\w+", printed)
    assert "the cache of a Transformer of this width would be 1.02 MB" in printed
    assert re.search(r"100%  2,000 words  [\d,]+ words/s  0:00 left", errors)


def test_several_problems(atlas):
    code, printed, _ = atlas("--words", 2_000, "--repeat", 3, "--seed", 5)
    assert code == 0
    assert len(re.findall(r"^Where is \w+\? .*memory: .*window: ", printed, re.MULTILINE)) == 3
    assert re.search(r"^right: [23] of 3; with a window alone [0-3]$", printed, re.MULTILINE)
    assert "in each of 3 texts" in printed


def test_machines(atlas):
    code, printed, _ = atlas("--words", 2_000, "--repeat", 2, "--json")
    assert code == 0
    told = json.loads(printed)
    assert (told["words"], told["asked"]) == (2_000, 2)
    assert told["right"] == sum(answer["right"] for answer in told["answers"])
    assert told["state_bytes"] < 100_000
    assert told["words_per_second"] > 0


@needs_chromium
@pytest.mark.parametrize(("width", "dark"), [(1000, False), (360, True)])
def test_the_page_in_a_browser(width, dark, atlas, tmp_path):
    out = tmp_path / "demo.html"
    code, printed, errors = atlas("--words", 2_000, "--facts", FACTS, "--out", out)
    assert code == 0, errors
    assert f"{out}: which words" in printed
    with open_page(width=width, dark=dark) as page:
        page.goto(out.as_uri())
        assert page.text_content("h1") == "Where is John?"
        assert page.locator("svg path").count() == 2
        assert page.locator(".passage .fact.open").count() >= 2
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--words", 10], "words=10 is not between 1,000 and 10,000,000"),
        (["--repeat", 0], "repeat=0 is not at least 1"),
        (["--text", "missing.txt"], "cannot read missing.txt: No such file"),
        (["--text", "short.txt"], "no sentence of 10 tokens; give more text"),
        (["--facts", "Bob went home."], "does not know 'Bob went home.'"),
        (["--out", "no/demo.html"], "its folder does not exist"),
        (["--out", "."], "is a folder"),
    ],
)
def test_mistakes(arguments, sentence, atlas, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.txt").write_text("Too short.")
    code, printed, errors = atlas(*arguments)
    assert code == 2
    assert printed == ""
    assert sentence in errors
    assert len(errors.strip().splitlines()) == 1
