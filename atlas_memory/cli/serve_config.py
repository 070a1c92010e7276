"""Options of `atlas serve` from a TOML file, and sizes as people write them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atlas_memory.names import suggest

UNITS = {"": 1, "B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}


def size(option: str, text: str) -> int:
    """Bytes of `512MB`, `1.5GB` or `0`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]?B?)", text.strip().upper())
    if found is None or found[2] not in UNITS:
        raise ValueError(f"{option} {text!r} is no size; give a number with B, KB, MB, GB or TB")
    return int(float(found[1]) * UNITS[found[2]])


def read_options(path: Path, known: Sequence[str]) -> dict[str, Any]:
    """The table of a file by the names of the command's parameters; any other key is refused."""
    try:
        table = tomllib.loads(path.read_text())
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no TOML file: {error}") from error
    names = {("run" if name == "run_folder" else name): name for name in known}
    found = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in names:
            raise ValueError(f"{path}: unknown option {key!r}; {suggest(name, list(names))}")
        if isinstance(value, dict) or (isinstance(value, list) and name != "memory"):
            raise ValueError(f"{path}: {key} = {value!r}: give a text or a number")
        found[names[name]] = [value] if name == "memory" and isinstance(value, str) else value
    return found
