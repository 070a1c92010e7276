"""The tables of models in README and docs/family.md are those that family.py says."""

from pathlib import Path

import pytest
from commands import command_line

from atlas_memory.cli.list import markdown_table, short_table
from atlas_memory.family import MARKS, TABLE_1, VARIANTS

ROOT = Path(__file__).parents[2]


def marked(page, name):
    return (ROOT / page).read_text().split(f"<!-- {name} -->\n")[1].split(f"\n<!-- /{name} -->")[0]


def test_the_page_of_the_family_shows_the_table():
    table = marked("docs/family.md", "variants")
    assert table == markdown_table(), "print it with `atlas list --markdown`"


def test_readme_shows_the_short_table():
    assert marked("README.md", "few") == short_table(), "print it with `atlas list --short`"
    assert f"{len(VARIANTS)} models, each a row" in (ROOT / "README.md").read_text()


def test_readme_shows_what_atlas_show_prints(capsys):
    code, printed, _ = command_line(capsys, "show", "atlas", "--size", "170m")
    assert code == 0
    lines = marked("README.md", "show").strip("`\n").splitlines()
    assert len(lines) >= 4
    assert [line for line in lines if line not in printed.splitlines()] == []


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
