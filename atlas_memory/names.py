"""Words for a user's mistake: the names there are to choose from, without importing torch."""

import ast
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pathlib import Path

PACKAGE = Path(__file__).parent


def suggest(name: str, choices: list[str]) -> str:
    """The valid choices, and the one that was probably meant."""
    close = get_close_matches(name, choices, n=1)
    meant = f"did you mean {close[0]!r}? " if close else ""
    return f"{meant}choose from: {', '.join(choices)}"


def reason(error: Exception) -> str:
    """The first line of what another library says, or at least what kind of error it is."""
    return str(error).strip().split("\n")[0] or type(error).__name__


def variant_names() -> list[str]:
    return _keys("family", "VARIANTS")


def size_names() -> list[str]:
    return _keys("family", "SIZES")


@cache
def _keys(module: str, table: str) -> list[str]:
    """The keys of a table of the package, read from its source: importing it takes seconds."""
    for node in ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            target = node.targets[0]
            if isinstance(target, ast.Name) and target.id == table:
                return [ast.literal_eval(key) for key in node.value.keys if key is not None]
    return list(getattr(import_module(f"atlas_memory.{module}"), table))
