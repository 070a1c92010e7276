"""Who may import whom.

memory <- layers <- blocks <- model <- data <- tasks <- training <- reading
       <- inspection <- serving <- evaluation <- {experiments, demo} <- cli
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "atlas_memory"

FLOOR = {"memory": 1, "layers": 2, "blocks": 3, "model": 4, "data": 5, "tasks": 6}
FLOOR |= {"training": 7, "reading": 8, "inspection": 9, "serving": 10, "evaluation": 11}
FLOOR |= {"experiments": 12, "demo": 12, "cli": 13}
# The edge of the model: what it is built from, and what wraps it for other libraries.
FLOOR |= {"registration": 0, "names": 0, "family": 3, "config": 4, "cache": 4, "rollback": 4}
FLOOR |= {"codec": 4, "files": 0, "processor": 0}
FLOOR |= {"retrofitting": 4}


def imports(source: str, package: str) -> Iterator[str]:
    """Every module that `source` imports anywhere, lazily too; `package` resolves relative ones."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            module = ".".join([*(above if node.level else []), *filter(None, [node.module])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def complaints(module: str, source: str) -> list[str]:
    """What `module` (dotted, with `__init__` where it is one) imports and may not."""
    here = module.split(".")[1]
    found = []
    for target in imports(source, module.rpartition(".")[0]):
        top, _, rest = target.partition(".")
        there = rest.partition(".")[0]
        if top != "atlas_memory":
            saves = module == "atlas_memory.memory.state" and top == "safetensors"
            if here == "memory" and not saves and top not in {"torch", *sys.stdlib_module_names}:
                found.append(f"{module} imports {target}: memory/ stands on torch alone")
        elif there not in {*FLOOR, "__version__"}:
            found.append(f"{module} imports {target}: import from the module that defines it")
        elif FLOOR.get(there, 0) > FLOOR[here]:
            found.append(f"{module} imports {target}: {there} stands above {here}")
    return found


def modules() -> list[str]:
    files = sorted(PACKAGE.rglob("*.py"))
    return [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]


@pytest.mark.parametrize("module", [m for m in modules() if m != "atlas_memory.__init__"])
def test_imports_go_down(module: str) -> None:
    source = (ROOT / module.replace(".", "/")).with_suffix(".py").read_text()
    assert module.split(".")[1] in FLOOR, f"{module} has no floor in this test"
    assert complaints(module, source) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("atlas_memory.memory.omega", "import numpy"),
        ("atlas_memory.memory.omega", "def f():\n    from safetensors.torch import save_file"),
        ("atlas_memory.memory.omega", "from atlas_memory.layers.projections import RMSNorm"),
        ("atlas_memory.memory.omega", "from ..layers import rows"),
        ("atlas_memory.memory.__init__", "from ..layers import rows"),
        ("atlas_memory.layers.rows", "import atlas_memory.model"),
        ("atlas_memory.tasks.mqar", "from atlas_memory.cli import main"),
        ("atlas_memory.layers.rows", "from atlas_memory import MemorySpec"),
    ],
)
def test_a_wrong_import_is_seen(module: str, source: str) -> None:
    assert len(complaints(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("atlas_memory.memory.omega", "import math\nimport torch.nn.functional as F"),
        ("atlas_memory.memory.omega", "from .state import MemoryState"),
        ("atlas_memory.memory.omega", "from atlas_memory.memory.state import MemoryState"),
        ("atlas_memory.memory.__init__", "from .omega import windowed"),
        (
            "atlas_memory.layers.rows",
            "from atlas_memory.memory.spec import MemorySpec\nimport numpy",
        ),
        ("atlas_memory.cli.main", "from atlas_memory import tasks"),
    ],
)
def test_a_right_import_passes(module: str, source: str) -> None:
    assert complaints(module, source) == []
