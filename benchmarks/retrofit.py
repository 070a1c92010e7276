"""A retrofitted model beside its base: bits per byte, second reading and needles.

    python benchmarks/retrofit.py RUN --data books/            half an hour of one quiet core
    python benchmarks/retrofit.py RUN --data books/ --smoke    a minute or two, to see that it runs
    python benchmarks/retrofit.py RUN --data books/ --json FILE    what FILE lacks
    python benchmarks/retrofit.py RUN --items items/ --tasks squad,piqa    of `atlas eval`

Three models of the same weights: `full`, the base with full attention; `window`, the base with the
window and sinks of the run and no memory; `memory`, the run. Bits per byte are those of the second
half of stretches of so many tokens, each from the beginning of an unseen book, read with a carried
state; `afresh` are the same tokens, but at every 256th all that was read more than 256 tokens ago
is forgotten: what is gained there is worth the last 256 to 512 tokens, or was learned in training.
Second reading: what 200 tokens cost when they come again after a gap, as a share of the first
time. Needles: RULER's PK and N. `--base` names the base where it was trained along with the
memories; otherwise it is taken out of the run. `--items`: a folder as `atlas eval --data` takes it.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import atlas_memory as am
from atlas_memory.data.corpus import find_source
from atlas_memory.data.tokenizer import Tokenizer
from atlas_memory.evaluation import needle, suite
from atlas_memory.evaluation.harness import Options
from atlas_memory.model import surprise
from atlas_memory.reading.loading import Loaded, load_run
from atlas_memory.retrofitting.pretrained import load_pretrained
from atlas_memory.training.reread import LEAD, PASSAGE, second_reading

NAMES = ("full", "window", "memory")
BLOCK = 1_024  # tokens of a forward pass
FRESH = 256  # tokens that are read before and scored after everything older was forgotten
Plan = dict[str, dict[int, int]]  # what is measured: of how many tokens, and how often
FULL: Plan = {"stretches": {4_096: 4, 16_384: 1}, "afresh": {4_096: 4}}
FULL |= {"gaps": {1_024: 4, 8_192: 1}, "needles": {1_024: 5}}
SMOKE: Plan = {"stretches": {600: 1}, "afresh": {600: 1}, "gaps": {300: 1}, "needles": {600: 1}}


def models(run: Any, base: str | None) -> Iterator[tuple[str, Any]]:
    """The base with full attention, with the run's window alone, and the run."""
    plain = am.base_of(run) if base is None else load_pretrained(base, "float32").model
    shape = {"window": run.config.window, "sinks": run.config.sinks}
    yield "full", am.retrofit(plain, layers=(), window=None)
    yield "window", am.retrofit(plain, layers=(), **shape)
    yield "memory", run


def unseen(data: str, tokenizer: Tokenizer, tokens: int, count: int) -> list[Tensor]:
    """The beginnings of validation books, of so many tokens each."""
    _, validation = find_source(data, "text", say)
    if validation is None:
        raise SystemExit(f"{data} has no file whose name begins with valid")
    found = []
    for document in validation.documents():
        text = b"".join(islice(document, 2)).decode("utf-8", errors="replace")
        ids = tokenizer.fast.encode(text[: 8 * tokens], add_special_tokens=False)
        if len(ids) >= tokens:
            found.append(torch.tensor(ids[:tokens])[None])
        if len(found) == count:
            return found
    raise SystemExit(f"{data} has only {len(found)} validation texts of {tokens:,} tokens")


@torch.no_grad()
def bits_per_byte(model: Any, tokenizer: Tokenizer, stretches: list[Tensor]) -> float:
    """Of the second half of each stretch."""
    bits, size = 0.0, 0
    for ids in stretches:
        half = ids.shape[1] // 2
        bits += float(bits_of(model, ids)[:, half - 1 :].sum())
        size += len(tokenizer.fast.decode(ids[0, half:]).encode())
    return bits / size


@torch.no_grad()
def bits_afresh(model: Any, tokenizer: Tokenizer, stretches: list[Tensor]) -> float:
    """Of the same tokens, with no more than the last FRESH to 2 FRESH tokens before each."""
    bits, size = 0.0, 0
    for ids in stretches:
        half, total = ids.shape[1] // 2, ids.shape[1]
        for first in range(half, total, FRESH):
            piece = ids[:, first - FRESH : first + FRESH]
            bits += float(bits_of(model, piece)[:, FRESH - 1 :].sum())
        size += len(tokenizer.fast.decode(ids[0, half:]).encode())
    return bits / size


def bits_of(model: Any, ids: Tensor) -> Tensor:
    """Of every token but the first, [1, t - 1], the state carried from block to block."""
    cache, parts = None, []
    for block in ids[:, :-1].split(BLOCK, dim=1):
        out = model.model(block, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        first = sum(part.shape[1] for part in parts) + 1
        target = ids[:, first : first + block.shape[1]]
        parts.append(surprise(model, out.last_hidden_state, target))
    return torch.cat(parts, dim=1).double()


def again(model: Any, books: list[Tensor], gap: int) -> float:
    """The second reading of a passage of every book, the gap being the book itself."""
    leads, passages, fillers = torch.cat(books).split([LEAD, PASSAGE, gap], dim=1)
    return second_reading(model, passages, fillers, [gap], leads)[f"gap_{gap}"]


def questions(data: str, tokenizer: Tokenizer, plan: Plan) -> dict[str, Callable[[Any], float]]:
    """Every row of the table, and how a model answers it."""
    rows: dict[str, Callable[[Any], float]] = {}
    for tokens, count in plan["stretches"].items():
        books = partial(unseen, data, tokenizer, tokens, count)
        rows[f"bits per byte, {tokens:,}"] = lambda m, b=books: bits_per_byte(m, tokenizer, b())
    for tokens, count in plan["afresh"].items():
        books = partial(unseen, data, tokenizer, tokens, count)
        rows[f"bits per byte afresh, {tokens:,}"] = lambda m, b=books: bits_afresh(
            m, tokenizer, b()
        )
    for gap, count in plan["gaps"].items():
        books = partial(unseen, data, tokenizer, LEAD + PASSAGE + gap, count)
        rows[f"second reading, {gap:,}"] = lambda m, b=books, g=gap: again(m, b(), g)
    for kind, tokens in product(["pk", "n"], plan["needles"]):
        asked = {"kinds": [kind], "lengths": [tokens], "samples": plan["needles"][tokens]}
        asked |= {"corpus": data, "new_tokens": 16, "batch": 1, "megabytes": 0.2}
        rows[f"needle {kind}, {tokens:,}"] = lambda m, a=asked, k=f"{kind}_{tokens}": (
            needle.evaluate(m, tokenizer, a, say)[k]
        )
    return rows


def tasks(
    names: str, items: Path, limit: int, tokenizer: Tokenizer
) -> dict[str, Callable[[Any], float]]:
    """Tasks of `atlas eval` as rows of the table, by the last figure that the paper has of each."""

    def ask(name: str, model: Any) -> float:
        loaded, options = Loaded(model, tokenizer), Options(limit=limit, data=items, batch=4)
        figures = suite.evaluate(loaded, [name], options, say)["tasks"][name]
        return float(figures[suite.REPORTED[name][-1]])

    chosen = suite.require_tasks(names)
    return {f"{name}, {items.name}": partial(ask, name) for name in chosen}


def table(found: dict[str, dict[str, float]]) -> str:
    names = [name for name in NAMES if name in found]
    lines = [f"| | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    for row in {row: None for name in names for row in found[name]}:
        cells = [f"{found[name][row]:.3f}" if row in found[name] else "" for name in names]
        lines.append(f"| {row} | {' | '.join(cells)} |")
        if row.startswith("bits per byte, ") and len(names) == 3 and all(cells):
            full, window, memory = (found[name][row] for name in names)
            closed = (window - memory) / (window - full) if window != full else float("nan")
            lines.append(f"| of the gap closed | | | {closed:.2f} |")
    return "\n".join(lines)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path)
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--data")
    asked.add_argument("--items", type=Path)
    parser.add_argument("--tasks", default="squad,drop,nq,triviaqa,lambada_openai,piqa,arc_easy")
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--base")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--models", default=",".join(NAMES))
    parser.add_argument("--rows", default="", help="only those that contain this")
    given = parser.parse_args()
    plan, loaded = SMOKE if given.smoke else FULL, load_run(given.run, "float32")
    told: dict[str, Any] = {"items": {}} if given.items else {"plan": plan}
    told["found"] = found = {}
    if given.json and given.json.is_file():
        told |= json.loads(given.json.read_text())
        found = told["found"]
    if given.items:
        rows = tasks(given.tasks, given.items, given.limit, loaded.tokenizer)
    else:
        rows = questions(given.data, loaded.tokenizer, plan)
    for name, model in models(loaded.model, given.base):
        if name not in given.models.split(","):
            continue
        own = found.setdefault(name, {})
        for row, ask in rows.items():
            if row in own or given.rows not in row:
                continue
            started = time.monotonic()
            own[row] = ask(model.eval())
            say(f"{name}: {row}: {own[row]:.3f} in {time.monotonic() - started:,.0f} s")
            if given.items:
                told["items"][row] = given.limit
            if given.json:
                given.json.write_text(json.dumps(told, indent=2) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
