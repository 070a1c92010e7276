"""What is in the wheel: the whole package, its recipes and pages, and nothing else."""

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
    for name in ("recipes/quickstart.toml", "serving/report.html", "py.typed", *demo):
        assert f"atlas_memory/{name}" in held
    assert {Path(name).suffix for name in held} <= {
        *(".py", ".toml", ".typed"),  # code and recipes
        *(".html", ".css", ".js", ".svg"),  # pages
        *(".safetensors", ".json"),  # small models
    }


def test_a_recipe_is_found_anywhere(wheel, tmp_path):
    """In an empty folder, with nothing but what the wheel holds on the path."""
    wheel.extractall(tmp_path / "site")
    (tmp_path / "empty").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "atlas_memory.cli", "train", "quickstart", "--dry-run"],
        cwd=tmp_path / "empty",
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "recipe                   quickstart" in done.stdout
