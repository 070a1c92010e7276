"""Every snippet of README and docs runs, every command in them is one, and the site builds."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import small_runs as runs
import torch
import typer

from atlas_memory.cli.main import app, main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PYTHON = re.compile(r"^```python\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
FENCED = re.compile(r"^```\w*\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
# serving.md talks to a server; plug-in.md has a test of its own, which looks at the result
ELSEWHERE = {"serving.md", "plug-in.md"}
RUN = [page for page in PAGES if PYTHON.search(page.read_text()) and page.name not in ELSEWHERE]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """What the pages speak of: a run in runs/quickstart, and texts to read."""
    folder = tmp_path_factory.mktemp("docs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATLAS_HOME", str(folder / "home"))
        text = runs.write_text(folder / "text", words=9000)
        changes = {"data__validation_tokens": 0, "data__validation_share": 0.2, "train__steps": 3}
        options = runs.set_options(text, **changes)
        with pytest.raises(SystemExit) as ended:
            main(["train", "--output", str(folder / "runs" / "quickstart"), *options])
        assert ended.value.code == 0
    book = " ".join((text / f"{n}.txt").read_text() for n in range(5))
    (folder / "book.txt").write_text(book)
    (folder / "chapter.txt").write_text(book[:700])
    return folder


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_snippets_run_as_they_are_printed(page, place, monkeypatch):
    """In order, in one namespace, so that a page may build on what stands above."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("ATLAS_HOME", str(place / "home"))
    torch.manual_seed(0)
    names = {"__name__": "snippet"}
    for snippet in PYTHON.findall(page.read_text()):
        exec(compile(snippet, str(page), "exec"), names)


def told_files():
    """The files of README's tree, by folder."""
    tree = (ROOT / "README.md").read_text().partition("## File structure")[2].split("```")[1]
    folder = ""
    for line in tree.splitlines():
        if line.startswith(("├", "└")):
            name = line[4:].split()[0]
            folder = name if name.endswith("/") else ""
        if line.startswith(("├", "└", "│")):
            yield from (folder + name for name in re.findall(r"\w+\.py\b", line))
            if folder and line[0] != "│":
                yield folder


def test_the_tree_is_that_of_the_package():
    """Every folder, and every file of the package itself, of memory/ and of layers/."""
    package = ROOT / "atlas_memory"
    folders = [path for path in package.iterdir() if (path / "__init__.py").is_file()]
    files = [*package.glob("*.py"), *package.glob("memory/*.py"), *package.glob("layers/*.py")]
    own = {str(file.relative_to(package)) for file in files if "__" not in file.name}
    own |= {f"{folder.name}/" for folder in [*folders, package / "recipes"]}
    assert sorted(told_files()) == sorted(own)


def commands(page):
    """`atlas ...` in fenced and indented blocks, without what is explained beside it."""
    text = re.sub(r"\\\n\s*", "", page.read_text())  # a line may go on in the next
    blocks = [*FENCED.findall(text), *re.findall(r"^    (?=atlas ).*", text, flags=re.MULTILINE)]
    lines = [line for block in blocks for line in block.splitlines()]
    for line in lines:
        for part in re.split(r" [/|] ", line.strip().removeprefix("$ ")):
            if re.match(r"atlas \S", part):  # with more spaces it is a row of a result
                yield re.split(r"\s{2,}|\s#\s", part)[0]


def test_commands_are_found():
    assert len(list(commands(ROOT / "README.md"))) >= 10


@pytest.mark.parametrize("page", [p for p in PAGES if list(commands(p))], ids=lambda p: p.name)
def test_commands_have_the_options_that_are_printed(page):
    group = typer.main.get_command(app)
    for line in commands(page):
        context = group.make_context("atlas", shlex.split(line)[1:])
        name, command, rest = group.resolve_command(context, [*context._protected_args])
        while hasattr(command, "commands"):
            context = command.make_context(name, [*rest, *context.args], parent=context)
            name, command, rest = command.resolve_command(context, [*context._protected_args])
        command.make_context(name, [*rest, *context.args], parent=context)


def test_the_site_builds_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path / "site")]
    # without it mkdocs-material says whenever it runs what will follow it in some years
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    assert (tmp_path / "site" / "index.html").is_file()


def test_the_notebook_runs(place, monkeypatch):
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(ROOT / "docs" / "first-hour.ipynb", as_version=4)
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(place)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2


def test_the_notebook_shows_what_it_printed():
    """Whoever reads it without running it sees the figures and both pictures, and no warning."""
    import nbformat

    notebook = nbformat.read(ROOT / "docs" / "first-hour.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    outputs = [output for cell in code for output in cell.outputs]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
    assert {output.output_type for output in outputs} <= {
        "stream",
        "display_data",
        "execute_result",
    }
    assert {output.get("name", "stdout") for output in outputs} == {"stdout"}
