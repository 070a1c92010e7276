"""How large the package is, and how far a token walks through it.

    python benchmarks/house.py

files, lines: of atlas_memory. p90: lines of a function that nine of ten do not exceed. isinstance:
of the choices of a memory, outside of the files that define them. type-ignores: everywhere. cycles:
modules that need each other before they are loaded. hops: files of the package whose
functions run in one step of training of `atlas`, forward and backward, once everything that is kept
for later steps is there.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import atlas_memory as am
from atlas_memory.memory.spec import CHOICES

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "atlas_memory"
FILES = sorted(PACKAGE.rglob("*.py"))
HOMES = {"feature_maps", "architectures", "attentional_bias", "optimizers", "retention"}


def functions(tree: ast.AST) -> list[int]:
    """Lines of each."""
    nodes = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [(node.end_lineno or 0) - node.lineno + 1 for node in nodes]


def asked_kinds(tree: ast.AST) -> int:
    """isinstance(.., a choice)."""
    choices = {kind.__name__ for known in CHOICES.values() for kind in known.values()}
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    asked = [c.args[1] for c in calls if ast.unparse(c.func) == "isinstance" and len(c.args) == 2]
    return sum(any(getattr(n, "id", "") in choices for n in ast.walk(kind)) for kind in asked)


def loaded_with(file: Path, modules: set[str]) -> set[str]:
    """Modules that must be there before this one's names are.

    Not those that are imported inside of functions or for type checkers, nor below all names, as
    config.py and model.py do with what is built on them.
    """
    found: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            break
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or "", *(f"{node.module}.{a.name}" for a in node.names)}
    return found & modules


def cycles() -> int:
    """Modules that need themselves: those that are left when what needs nothing more is taken."""
    names = {".".join(f.relative_to(ROOT).with_suffix("").parts): f for f in FILES}
    names = {name: file for name, file in names.items() if not name.endswith("__init__")}
    left = {name: loaded_with(file, set(names)) for name, file in names.items()}
    while ready := [name for name, needs in left.items() if not needs & set(left)]:
        left = {name: needs for name, needs in left.items() if name not in ready}
    return len(left)


def hops(variant: str = "atlas") -> set[str]:
    """Files whose functions run in a step of training."""
    model = am.AtlasForCausalLM(am.AtlasConfig.from_variant(variant, size="tiny", vocab_size=256))
    ids, called = torch.randint(256, (2, 128)), set()

    def hear(frame: FrameType, event: str, argument: Any) -> None:
        called.add(frame.f_code.co_filename)

    for listener in (None, hear):  # what is made once is not on the way of the next step
        sys.setprofile(listener)
        model(ids, labels=ids).loss.backward()
        sys.setprofile(None)
    return {name for name in called if name and name.startswith(f"{PACKAGE}/")}


def measured() -> dict[str, int]:
    trees = {file: ast.parse(file.read_text()) for file in FILES}
    sizes = sorted(size for tree in trees.values() for size in functions(tree))
    sources = [p.read_text() for d in ("tests", "benchmarks") for p in (ROOT / d).rglob("*.py")]
    sources += [file.read_text() for file in FILES]
    return {
        "files": len(FILES),
        "lines": sum(len(file.read_text().splitlines()) for file in FILES),
        "functions": len(sizes),
        "p90": sizes[len(sizes) * 9 // 10],
        "isinstance": sum(asked_kinds(t) for f, t in trees.items() if f.stem not in HOMES),
        "type-ignores": sum(source.count("# type: " + "ignore") for source in sources),
        "cycles": cycles(),
        "hops": len(hops()),
    }


if __name__ == "__main__":
    print(json.dumps(measured(), indent=1))
