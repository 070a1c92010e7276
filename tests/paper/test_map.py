"""docs/paper.md and the tags in the docstrings say the same thing."""

import re
from collections import defaultdict
from pathlib import Path

import pytest

from atlas_memory.evaluation.suite import NAMES
from atlas_memory.experiments import EXPERIMENTS

ROOT = Path(__file__).parents[2]
KINDS = "Eq|Table|Fig|Sec|App|Prop|Thm|Def"
TAG = re.compile(rf"\[Atlas ({KINDS})\.? ([^\]]+)\]")
# | Eq. 9 | `eq:omega` | the Omega rule | `atlas_memory/memory/omega.py` |
ROW = re.compile(rf"^\| ((?:{KINDS})\.? [^|]+?) \|.*\| ([^|]+?) \|$", re.MULTILINE)
FILE = re.compile(r"`([^`]+\.(?:py|md))`")


def items(kind: str, numbers: str) -> list[str]:
    """`Eq`, `12, 14-16` -> Eq. 12, Eq. 14, Eq. 15, Eq. 16."""
    names: list[str] = []
    for part in re.split(r", ?| and ", numbers.strip()):
        if span := re.fullmatch(r"(\d+)-(\d+)", part):
            names += [str(n) for n in range(int(span[1]), int(span[2]) + 1)]
        else:
            names.append(part)
    return [f"{kind.rstrip('.')} {name}" for name in names]


def tags(text: str) -> list[str]:
    """The items that a source file claims to be the home of."""
    return [item for kind, numbers in TAG.findall(text) for item in items(kind, numbers)]


def paper_map() -> dict[str, tuple[str, ...]]:
    """Item -> the files that its row names; a row that begins with "not yet" names none."""
    table: dict[str, tuple[str, ...]] = {}
    for name, home in ROW.findall((ROOT / "docs/paper.md").read_text()):
        files = () if home.startswith("not yet") else tuple(FILE.findall(home))
        for item in items(*name.split(" ", 1)):
            assert item not in table, f"docs/paper.md lists {item} twice"
            table[item] = files
    return table


def homes() -> dict[str, set[str]]:
    """Item -> the files of the package that carry its tag."""
    found: dict[str, set[str]] = defaultdict(set)
    for file in sorted((ROOT / "atlas_memory").rglob("*.py")):
        for item in tags(file.read_text()):
            found[item].add(str(file.relative_to(ROOT)))
    return found


def test_every_tag_has_a_row_that_names_its_file() -> None:
    table = paper_map()
    stray = {i: files - set(table.get(i, ())) for i, files in homes().items()}
    assert {item: files for item, files in stray.items() if files} == {}


def test_every_equation_has_one_home() -> None:
    shared = {i: files for i, files in homes().items() if i.startswith("Eq") and len(files) > 1}
    assert shared == {}


def test_every_named_file_exists() -> None:
    named = {file for files in paper_map().values() for file in files}
    assert sorted(file for file in named if not (ROOT / file).is_file()) == []


def test_the_map_is_whole() -> None:
    """58 numbered equations and 2 named ones, 8 tables, 8 figures; one counter each."""
    listed = list(paper_map())
    assert [i for i in listed if re.fullmatch(r"Eq \d+", i)] == [f"Eq {n}" for n in range(1, 59)]
    assert {"Eq Hebbian Rule", "Eq Delta Rule", "Thm 1", "Prop 1", "Prop 2"} <= set(listed)
    for kind in ("Table", "Fig"):
        assert [i for i in listed if i.startswith(kind)] == [f"{kind} {n}" for n in range(1, 9)]


def claims() -> dict[str, str]:
    """Claim -> what checks it, from the last table of the page."""
    table = (ROOT / "docs/paper.md").read_text().partition("## Claims")[2]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    return {claim: checked for claim, _, checked in rows[1:]}


@pytest.mark.parametrize(("claim", "checked"), claims().items())
def test_a_claim_is_checked_by_what_its_row_says(claim: str, checked: str) -> None:
    """Tests, benchmarks, experiments and tasks that exist; nothing else counts but "not yet"."""
    found = re.findall(r"(tests/[\w/]+\.py|benchmarks/\w+\.py)(?:::(\w+))?", checked)
    for file, name in found:
        assert f"def {name}" in (ROOT / file).read_text()
    named = re.findall(r"`atlas experiment (\w+)`", checked)
    assert set(named) <= set(EXPERIMENTS)
    assert set(re.findall(r"`atlas eval --task (\w+)`", checked)) <= set(NAMES)
    assert found or named or checked == "not yet"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The rule.   [Atlas Eq. 9]", ["Eq 9"]),
        ("[Atlas Eq. 12, 13] and [Atlas Table 1]", ["Eq 12", "Eq 13", "Table 1"]),
        ("[Atlas Eq. 34-36]", ["Eq 34", "Eq 35", "Eq 36"]),
        ("[Atlas Eq. Delta Rule], [Atlas Sec. 3.2]", ["Eq Delta Rule", "Sec 3.2"]),
        ("[Titans Eq. 10] is another paper's", []),
    ],
)
def test_tags_are_read(text: str, expected: list[str]) -> None:
    assert tags(text) == expected
