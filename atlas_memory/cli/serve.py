"""atlas serve: a model over HTTP, for OpenAI's clients and for a browser."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atlas_memory.cli.options import RUN, Device, Precision, Tokenizer, load
from atlas_memory.names import suggest

if TYPE_CHECKING:
    from atlas_memory.reading.loading import Loaded
    from atlas_memory.serving.engine import Capacity
    from atlas_memory.serving.server.app import Settings
    from atlas_memory.serving.server.guard import Access
    from atlas_memory.serving.server.limits import Limits

TOKEN = "What every request must bear; better given as ATLAS_TOKEN, which `ps` does not show."
MEMORY = "A memory file to keep from the start; may be given again."
CONFIG = "A TOML file with any of these options, and with `run`; flags come before it."
STORE = "A folder in which memories outlive the server."
THREADS = "Of the model; all cores but the one that answers."
PREFIXES = "Bytes of states for prompts that begin alike; 0: none."


def _from_file(context: typer.Context, path: Path | None) -> Path | None:
    """Options of a file become the defaults."""
    if path is not None:
        known = [param.name for param in context.command.params if param.name]
        context.default_map = read_options(path, [name for name in known if name != "config"])
    return path


def run(
    run_folder: Annotated[Path | None, typer.Argument(metavar="RUN", help=RUN)] = None,
    config: Annotated[
        Path | None, typer.Option(help=CONFIG, is_eager=True, callback=_from_file)
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address; only this machine's by default.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    token: Annotated[str | None, typer.Option(envvar="ATLAS_TOKEN", help=TOKEN)] = None,
    memory: Annotated[list[Path] | None, typer.Option(help=MEMORY)] = None,
    name: Annotated[str | None, typer.Option(help="Of the model; default: the folder's.")] = None,
    rows: Annotated[int, typer.Option(min=1, help="Sequences that decode together.")] = 32,
    block: Annotated[int, typer.Option(min=1, help="Prompt tokens between two steps.")] = 512,
    waiting: Annotated[int, typer.Option(min=1, help="Answers that may wait.")] = 256,
    max_body: Annotated[float, typer.Option(min=0, help="Megabytes of a request.")] = 4,
    max_prompt_tokens: Annotated[int, typer.Option(min=1, help="Of a prompt.")] = 65_536,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Of an answer.")] = 4_096,
    store: Annotated[Path | None, typer.Option(help=STORE)] = None,
    prefix_cache: Annotated[str, typer.Option(metavar="SIZE", help=PREFIXES)] = "512MB",
    max_memories: Annotated[int, typer.Option(min=0, help="Kept at once.")] = 64,
    max_memory_bytes: Annotated[str, typer.Option(metavar="SIZE", help="Of all.")] = "16GB",
    resident: Annotated[str, typer.Option(metavar="SIZE", help="Of stored ones in RAM.")] = "1GB",
    max_upload: Annotated[str, typer.Option(metavar="SIZE", help="Of a memory file.")] = "256MB",
    timeout: Annotated[float, typer.Option(min=0, help="Seconds that a request may take.")] = 300,
    threads: Annotated[int | None, typer.Option(min=1, help=THREADS)] = None,
    precision: Precision = None,
    device: Device = "cpu",
    tokenizer: Tokenizer = None,
) -> None:
    """Answer OpenAI's clients at /v1 and a browser at /.

    Examples: atlas serve runs/quickstart; ATLAS_TOKEN=secret atlas serve runs/quickstart --host ::;
    atlas serve runs/quickstart --memory book.memory --store memories;
    atlas serve --config serve.toml
    """
    _require_extra()
    if run_folder is None:
        raise ValueError("no RUN to serve; give a folder of `atlas train`, or `run` in --config")
    from atlas_memory.reading.loading import require_run
    from atlas_memory.reading.memory_head import require_memory_file
    from atlas_memory.serving.server.limits import Limits

    prefix_bytes = size("--prefix-cache", prefix_cache)
    limits = Limits(
        body=int(max_body * 2**20),
        seconds=timeout,
        prompt_tokens=max_prompt_tokens,
        new_tokens=max_new_tokens,
        memories=max_memories,
        memory_bytes=size("--max-memory-bytes", max_memory_bytes),
        resident_bytes=size("--resident", resident),
        upload=size("--max-upload", max_upload),
    )
    require_run(run_folder, precision, tokenizer, device)
    for path in memory or []:
        require_memory_file(path)
    from atlas_memory.processor import leave_a_core
    from atlas_memory.serving.engine import Capacity

    leave_a_core(threads)
    capacity = Capacity(rows, block, waiting, prefix_bytes)
    loaded = load(run_folder, precision, tokenizer, device)
    named = name or run_folder.resolve().name
    settings = _settings(loaded, named, limits, capacity, memory or [])
    _listen(loaded, _stored(settings, store, loaded), host, port, token)


def _require_extra() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("fastapi", "python_multipart", "uvicorn") if not find_spec(name)]
    if missing:
        raise ValueError(
            f"atlas serve needs {missing[0]}; install it with `pip install 'atlas-memory[serve]'`"
        )


def _settings(
    loaded: Loaded, name: str, limits: Limits, capacity: Capacity, memories: list[Path]
) -> Settings:
    from atlas_memory.demo import routes
    from atlas_memory.reading.memory_file import load
    from atlas_memory.serving.server.app import Settings

    if len(memories) > limits.memories:
        raise ValueError(f"{len(memories)} memories given, and at most {limits.memories} are kept")
    files = tuple(load(path, loaded.model) for path in memories)
    if several := [
        path for path, file in zip(memories, files, strict=True) if file.memory.rows > 1
    ]:
        raise ValueError(f"{several[0]} has several rows; give memories of one text each")
    more = (routes.router(),)
    return Settings(name, limits=limits, capacity=capacity, memories=files, more=more)


def _stored(settings: Settings, folder: Path | None, loaded: Loaded) -> Settings:
    from dataclasses import replace

    from atlas_memory.serving.server.store import Store

    return settings if folder is None else replace(settings, store=Store(folder, loaded.model))


def _listen(loaded: Loaded, settings: Settings, host: str, port: int, token: str | None) -> None:
    from dataclasses import replace

    from atlas_memory.serving.server.listening import address, listen, serve

    access = _access(host, token)
    bound = listen(host, port)
    if access.hosts is None and token is None:
        print("atlas: no --token: whoever reaches this address may use it", file=sys.stderr)
    url = address(bound)
    print(f"serving {settings.name} at {url}; Ctrl-C finishes what runs and ends", file=sys.stderr)
    serve(loaded, replace(settings, access=access), bound)


def _access(host: str, token: str | None) -> Access:
    from atlas_memory.serving.server.guard import LOOPBACK, Access

    if token is not None and not (token and token.isascii() and token.isprintable()):
        raise ValueError("--token: give printable ASCII, at least one character")
    return Access(token, LOOPBACK if token is None and host in LOOPBACK else None)


# ---- options from a file -------------------------------------------------------------------------


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
