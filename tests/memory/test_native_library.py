"""The kernels' library: made once, kept, and done without where it cannot be made."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from atlas_memory.memory.native import library

needs_compiler = pytest.mark.skipif(
    library.why_not() is not None, reason="there are no kernels here"
)
ASK = "from atlas_memory.memory.native import library; print(library.why_not())"
READ = """
import torch, atlas_memory as am
spec = am.MemorySpec(am.Identity(), am.MLP(2, normalize=True), output="online")
layer = am.MemoryLayer(16, 2, spec)
y, _ = layer(torch.randn(1, 40, 16))
print(bool(y.isfinite().all()))
"""


def told(code: str, **environment: str) -> str:
    """What a process of its own prints."""
    given = {**os.environ, library.SWITCH: "1", **environment}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=given, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def no_compiler(tmp_path: Path) -> dict[str, str]:
    """A PATH on which there is nothing, and an empty home."""
    return {"PATH": str(tmp_path), "CXX": "", "XDG_CACHE_HOME": str(tmp_path)}


def a_compiler(folder: Path, script: str) -> dict[str, str]:
    """A compiler that does what a script says, and a cache of its own."""
    folder.mkdir()
    program = folder / "c++"
    program.write_text(f"#!/bin/sh\necho call >> {folder}/calls\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return {"CXX": str(program), "XDG_CACHE_HOME": str(folder / "cache")}


def test_without_a_compiler_torch_does_the_work(no_compiler: dict[str, str]) -> None:
    assert told(ASK, **no_compiler) == "no C++ compiler (c++, g++ or clang++) is on the PATH"
    assert told(READ, **no_compiler) == "True"


def test_the_switch() -> None:
    assert told(ASK, ATLAS_NATIVE="0") == "ATLAS_NATIVE=0"
    assert told(READ, ATLAS_NATIVE="0") == "True"


def test_a_compiler_that_fails_is_quoted(tmp_path: Path) -> None:
    broken = a_compiler(tmp_path / "bin", '[ "$1" = --version ] && exit 0; echo cannot >&2; exit 1')
    assert "could not compile the kernels: cannot" in told(ASK, **broken)
    assert told(READ, **broken) == "True"
    assert not list((tmp_path / "bin" / "cache").rglob("*.so")), "nothing half-written is kept"


@needs_compiler
def test_a_library_is_made_once_for_each_compiler(tmp_path: Path) -> None:
    real = library._compiler()
    # a stand-in that is quick: what it makes has no kernels, but can be loaded
    empty = tmp_path / "empty.cpp"
    empty.write_text("")
    script = f'[ "$1" = --version ] && exec {real} --version\nfor last; do :; done\n'
    script += f'exec {real} -shared -fPIC {empty} -o "$last"'
    first = a_compiler(tmp_path / "first", script)
    assert told(ASK, **first) == "None"
    made = list((tmp_path / "first" / "cache").rglob("*.so"))
    assert len(made) == 1
    assert told(ASK, **first) == "None"
    calls = (tmp_path / "first" / "calls").read_text().splitlines()
    assert len(calls) == 3, "asked for its version twice, and to compile once"


@needs_compiler
def test_a_home_that_cannot_be_written_to(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    real, empty = library._compiler(), tmp_path / "empty.cpp"
    empty.write_text("")
    script = f'[ "$1" = --version ] && exec {real} --version\nfor last; do :; done\n'
    script += f'exec {real} -shared -fPIC {empty} -o "$last"'
    given = a_compiler(tmp_path / "bin", script) | {"XDG_CACHE_HOME": str(blocked)}
    assert told(ASK, **given) == "None"


@needs_compiler
def test_what_kernels_are_not_for() -> None:
    x = torch.randn(1, 2, 3)
    assert library.served((x, None, torch.nn.Parameter(x)))
    assert not library.served((x, x.double()))
    assert not library.served((x.half(),))
    assert not library.served((x.to("meta"),))
    assert not library.served(())
