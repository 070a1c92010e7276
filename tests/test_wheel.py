"""What is in the wheel: the whole package, its recipes and pages, and nothing else."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from the source as it lies here, without a network."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=240)
    (built,) = folder.glob("*.whl")
    return zipfile.ZipFile(built)


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    there = (ROOT / "atlas_memory").rglob("*")
    own = {str(p.relative_to(ROOT)) for p in there if p.is_file() and p.suffix != ".pyc"}
    assert held == own
    demo = ("demo/models.safetensors", "demo/models.json", "demo/page.html")
    for name in ("recipes/quickstart.toml", "inspection/report.html", "py.typed", *demo):
        assert f"atlas_memory/{name}" in held
    assert {Path(name).suffix for name in held} <= {
        *(".py", ".toml", ".typed"),  # code and recipes
        *(".cpp", ".h"),  # kernels, compiled where they run
        *(".html", ".css", ".js", ".svg"),  # pages
        *(".safetensors", ".json"),  # small models
    }


@pytest.fixture(scope="module")
def anywhere(wheel, tmp_path_factory):
    """Run `atlas` in an empty folder, with nothing but what the wheel holds on the path."""
    folder = tmp_path_factory.mktemp("anywhere")
    wheel.extractall(folder / "site")
    (folder / "empty").mkdir()

    def atlas(*words):
        done = subprocess.run(
            [sys.executable, "-m", "atlas_memory.cli", *words],
            cwd=folder / "empty",
            env={**os.environ, "PYTHONPATH": str(folder / "site"), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return atlas


def test_a_recipe_is_found_anywhere(anywhere):
    assert anywhere("train", "quickstart", "--dry-run").split()[:2] == ["recipe", "quickstart"]


def test_the_demo_answers_anywhere(anywhere):
    facts = "Mary went to the kitchen. John moved to the garden."
    told = json.loads(anywhere("demo", "--words", "2000", "--facts", facts, "--json"))
    assert (told["asked"], told["right"]) == (1, 1)
