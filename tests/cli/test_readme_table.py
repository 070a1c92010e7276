"""README's table of models is the one that family.py says."""

from pathlib import Path

import pytest

from atlas_memory.cli.list import markdown_table
from atlas_memory.family import MARKS, TABLE_1, VARIANTS

README = Path(__file__).parents[2] / "README.md"


def test_readme_shows_the_table():
    text = README.read_text()
    table = text.split("<!-- variants -->\n")[1].split("\n<!-- /variants -->")[0]
    assert table == markdown_table(), "print it with `atlas list --markdown`"


def test_every_line_has_every_column():
    lines = markdown_table().splitlines()
    assert len(lines) == len(VARIANTS) + 2
    assert {line.replace("\\|", "").count("|") for line in lines} == {len(MARKS) + 7}


@pytest.mark.parametrize("name", TABLE_1)
def test_the_row_of_table_1_is_what_the_variant_does(name):
    """The paper's marks against our choices; where they differ, it is said here why."""
    decay, deep, _, optimal, flexible = TABLE_1[name].marks
    spec = VARIANTS[name].memory
    if spec is None:
        assert TABLE_1[name].optimizer == "NP"
        return
    dynamic = type(spec.retention).__name__ not in {"NoRetention", "FixedRetention"}
    assert dynamic is decay
    # The paper has one row for TTT; its linear form has no deep memory.
    assert (type(spec.architecture).__name__ != "Matrix") is deep or name == "ttt_linear"
    assert (type(spec.optimizer).__name__ == "Muon") is optimal
    assert (spec.window > 1) is flexible
