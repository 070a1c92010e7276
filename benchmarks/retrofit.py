"""A retrofitted model beside its base: bits per byte, second reading and needles.

    python benchmarks/retrofit.py RUN --data books/            an hour or two on two cores
    python benchmarks/retrofit.py RUN --data books/ --smoke    a minute or two, to see that it runs
    python benchmarks/retrofit.py RUN --data books/ --json FILE

Three models of the same weights: `full`, the base with full attention; `window`, the base with the
window and sinks of the run and no memory; `memory`, the run. Bits per byte are those of the second
half of stretches of so many tokens, each from the beginning of an unseen book, read with a carried
state. Second reading: what 200 tokens cost when they come again after a gap, as a share of the
first time. Needles: RULER's PK and N. `--base` names the base where it was trained along with the
memories; otherwise it is taken out of the run.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import atlas_memory as am
from atlas_memory.data.corpus import find_source
from atlas_memory.data.tokenizer import Tokenizer
from atlas_memory.evaluation import needle
from atlas_memory.model import surprise
from atlas_memory.reading.loading import load_run
from atlas_memory.retrofitting.pretrained import load_pretrained
from atlas_memory.training.reread import LEAD, PASSAGE, second_reading

BLOCK = 1_024  # tokens of a forward pass
FULL: dict[str, Any] = {"lengths": [4_096, 16_384], "stretches": 4, "gaps": [0, 1_024, 8_192]}
FULL |= {"needles": [1_024, 4_096], "samples": 20}
SMOKE: dict[str, Any] = {"lengths": [600], "stretches": 1, "gaps": [0, 300]}
SMOKE |= {"needles": [600], "samples": 1}


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
        cache, parts = None, []
        for block in ids[:, :-1].split(BLOCK, dim=1):
            out = model.model(block, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            first = sum(part.shape[1] for part in parts) + 1
            target = ids[:, first : first + block.shape[1]]
            parts.append(surprise(model, out.last_hidden_state, target))
        half = ids.shape[1] // 2
        bits += float(torch.cat(parts, dim=1)[:, half - 1 :].double().sum())
        size += len(tokenizer.fast.decode(ids[0, half:]).encode())
    return bits / size


def again(model: Any, books: list[Tensor], gaps: list[int]) -> dict[str, float]:
    """The second reading of a passage of every book, the gap being the book itself."""
    lanes = torch.cat([ids[:, : LEAD + PASSAGE + max(gaps)] for ids in books])
    leads, passages, fillers = lanes.split([LEAD, PASSAGE, max(gaps)], dim=1)
    return second_reading(model, passages, fillers, gaps, leads)


def measured(model: Any, tokenizer: Tokenizer, data: str, plan: dict[str, Any]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for tokens in plan["lengths"]:
        books = unseen(data, tokenizer, tokens, plan["stretches"])
        figures[f"bits per byte, {tokens:,}"] = bits_per_byte(model, tokenizer, books)
    need = LEAD + PASSAGE + max(plan["gaps"])
    found = again(model, unseen(data, tokenizer, need, plan["stretches"]), plan["gaps"])
    for gap in plan["gaps"]:
        figures[f"second reading, {gap:,}"] = found[f"gap_{gap}"]
    asked = {"kinds": ["pk", "n"], "lengths": plan["needles"], "samples": plan["samples"]}
    asked |= {"corpus": data, "new_tokens": 16, "batch": 1, "megabytes": 0.2}
    said = needle.evaluate(model, tokenizer, asked, say)
    for kind in asked["kinds"]:
        for tokens in plan["needles"]:
            figures[f"needle {kind}, {tokens:,}"] = said[f"{kind}_{tokens}"]
    return figures


def table(found: dict[str, dict[str, Any]], plan: dict[str, Any]) -> str:
    names = list(found)
    lines = [f"| | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    for row in found["memory"]:
        cells = [f"{found[name][row]:.3f}" for name in names]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    for tokens in plan["lengths"]:
        full, window, memory = (found[n][f"bits per byte, {tokens:,}"] for n in names)
        closed = (window - memory) / (window - full) if window != full else float("nan")
        lines.append(f"\nAt {tokens:,} tokens the memory closes {closed:.2f} of the gap.")
    return "\n".join(lines)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--base")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    plan, loaded, found = SMOKE if given.smoke else FULL, load_run(given.run, "float32"), {}
    for name, model in models(loaded.model, given.base):
        started = time.monotonic()
        found[name] = measured(model.eval(), loaded.tokenizer, given.data, plan)
        say(f"{name}: {found[name]} in {time.monotonic() - started:,.0f} s")
        if given.json:
            given.json.write_text(json.dumps({"plan": plan, "found": found}, indent=2) + "\n")
    print(table(found, plan))


if __name__ == "__main__":
    main()
