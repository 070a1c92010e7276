"""A mistake is a sentence and exit code 2, told before torch is imported, with nothing written."""

import subprocess
import sys
from pathlib import Path

import pytest
import small_runs as runs

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from mistakes import HEAVY, MISTAKES, prepare

# What `atlas` does, and then which of the heavy libraries it has imported.
CODE = """
import sys
from atlas_memory.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit as ended:
    print("heavy:", *(name for name in {heavy!r} if name in sys.modules))
    raise
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mistakes")
    prepare(folder)
    return folder


@pytest.mark.parametrize("words", MISTAKES, ids=lambda words: " ".join(words)[:60])
def test_a_mistake_is_told_at_once(place, words):
    before = sorted(place.rglob("*"))
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(heavy=HEAVY), *words],
        cwd=place,
        env=runs.environment(place.parent / "home"),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout.strip() == "heavy:"
    assert "Traceback" not in done.stderr
    if "Usage" not in done.stderr:  # typer's own mistakes are told in a box
        assert done.stderr.count("\n") == 1
    assert sorted(place.rglob("*")) == before


def test_a_text_is_no_memory_and_the_sentence_says_how_it_becomes_one(place):
    done = runs.atlas("memory", place / "book.txt", home=place.parent / "home")
    assert done.returncode == 2
    assert "book.txt is no memory file; of a text `atlas memorize RUN" in done.stderr
