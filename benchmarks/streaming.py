"""Reading without end, and decoding behind it: what stays the same however long the text is.

    python benchmarks/streaming.py                       10,000,000 tokens; hours on one core
    python benchmarks/streaming.py --tokens 200000 --context 20000     minutes
    python benchmarks/streaming.py --json FILE           also writes the figures, model by model;
                                                         those of other models in FILE stay

Models of the shape that `make train` trains, float32, random weights, random bytes as text, one
thread unless --threads says otherwise. Speeds are per second of processor time, because the machine
may be doing other things too. Decoding times of different contexts are taken in turn, and the
median of the rounds is shown.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

import atlas_memory as am
from atlas_memory.reading.read import read_blocks

EARLY = 100_000  # tokens after which sizes are first looked at
SHORT, ATTENTION = 1_000, 16_384  # contexts: the short one, and transformer_plus's
BLOCK, ROUND = 4_096, 64  # tokens of a forward pass; decoding steps of a round
SHAPE: dict[str, Any] = {
    "size": "tiny",
    "vocab_size": 256,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 16,
}
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Mark:
    """How things stand after some tokens."""

    tokens: int
    seconds: float  # of this process
    wall_seconds: float
    state_bytes: int
    resident_bytes: int


@dataclass(frozen=True)
class Reading:
    """A text read to its end. early: after EARLY tokens; first, last: tokens/s of a tenth of it."""

    variant: str
    early: Mark
    end: Mark
    first: float
    last: float


@dataclass(frozen=True)
class Decoding:
    """Milliseconds per token behind a short and a long context, and attention's behind its own."""

    variant: str
    short: float
    long: float
    long_context: int
    attention: float
    attention_context: int


def build(variant: str) -> am.AtlasForCausalLM:
    torch.manual_seed(0)
    changes: dict[str, int] = {}
    if variant != "transformer_plus":
        changes |= {"memory.chunk": 64, "memory.architecture.expansion": 1}
    if variant == "atlas":
        changes |= {"memory.optimizer.period": 64}
    return am.AtlasForCausalLM(am.AtlasConfig.from_variant(variant, **SHAPE, **changes)).eval()


def text(tokens: int) -> Iterator[Tensor]:
    """Random bytes, made as they are read."""
    generator = torch.Generator().manual_seed(0)
    for begin in range(0, tokens, BLOCK):
        yield torch.randint(0, 256, (min(BLOCK, tokens - begin),), generator=generator)


def mark(memory: am.Memory) -> Mark:
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
    clocks = time.process_time(), time.monotonic()
    return Mark(memory.position, *clocks, memory.num_bytes, resident)


def read_all(model: am.AtlasForCausalLM, tokens: int, name: str) -> list[Mark]:
    """A mark for every forward pass."""
    marks: list[Mark] = []
    told = 0
    for memory in read_blocks(model, text(tokens), block=BLOCK):
        marks.append(mark(memory))
        if 20 * memory.position // tokens > told:
            told = 20 * memory.position // tokens
            print(f"{name}: {memory.position:,} tokens", file=sys.stderr, flush=True)
    return marks


def speed(begin: Mark, end: Mark) -> float:
    return (end.tokens - begin.tokens) / (end.seconds - begin.seconds)


def reading(variant: str, tokens: int) -> Reading:
    marks = read_all(build(variant), tokens, f"reading with {variant}")
    tenth = max(1, len(marks) // 10)
    early = next((m for m in marks if m.tokens >= EARLY), marks[len(marks) // 2])
    first = speed(marks[0], marks[tenth])
    return Reading(variant, early, marks[-1], first, speed(marks[-1 - tenth], marks[-1]))


def decoder(model: am.AtlasForCausalLM, context: int) -> Callable[[], float]:
    """A function that decodes a round behind a context and says how long a token took."""
    memory = am.read(model, text(context))
    cache, token = memory.cache, memory.last

    @torch.no_grad()
    def run() -> float:
        nonlocal cache, token
        began = time.process_time()
        for _ in range(ROUND):
            out = model(token, past_key_values=cache, use_cache=True)
            cache, token = out.past_key_values, out.logits[:, -1:].argmax(-1)
        return 1e3 * (time.process_time() - began) / ROUND

    return run


def decoding(variant: str, context: int, attention: int, rounds: int) -> Decoding:
    print(f"decoding with {variant}: reading {context:,} tokens", file=sys.stderr, flush=True)
    model = build(variant)
    runs = [
        decoder(model, SHORT),
        decoder(model, context),
        decoder(build("transformer_plus"), attention),
    ]
    for run in runs:
        run()
    times = [[run() for run in runs] for _ in range(rounds)]
    short, long, attending = (median(column) for column in zip(*times, strict=True))
    return Decoding(variant, short, long, context, attending, attention)


def show_readings(rows: list[Reading]) -> None:
    print(f"{'reading':10} {'tokens':>12} {'state bytes':>23} {'resident MB':>15} {'tokens/s':>15}")
    print(f"{'':10} {'':>12} {'early':>11} {'end':>11} {'early':>7} {'end':>7} first    last ratio")
    for r in rows:
        early, end = r.early, r.end
        print(
            f"{r.variant:10} {end.tokens:12,} {early.state_bytes:11,} {end.state_bytes:11,} "
            f"{early.resident_bytes / 2**20:7.1f} {end.resident_bytes / 2**20:7.1f} "
            f"{r.first:7,.0f} {r.last:7,.0f} {r.last / r.first:5.3f}"
        )


def show_decodings(rows: list[Decoding]) -> None:
    for r in rows:
        print(
            f"decoding {r.variant:10} {r.short:7.3f} ms/token at {SHORT:,}, {r.long:7.3f} at "
            f"{r.long_context:,} (ratio {r.long / r.short:.3f}); transformer_plus at "
            f"{r.attention_context:,}: {r.attention:.3f} ({r.attention / r.long:.2f} times)"
        )


def write(path: Path | None, kind: str, row: Reading | Decoding) -> None:
    """Put a row into the file, in the place of an earlier one of the same model."""
    if path is None:
        return
    rows = json.loads(path.read_text()) if path.exists() else {"reading": [], "decoding": []}
    others = [old for old in rows[kind] if old["variant"] != row.variant]
    rows[kind] = [*others, asdict(row)]
    path.write_text(json.dumps(rows, indent=2) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=10_000_000, help="of the text to read")
    parser.add_argument("--context", type=int, default=1_000_000, help="the long one of decoding")
    parser.add_argument("--attention-context", type=int, default=ATTENTION)
    parser.add_argument("--read", nargs="*", default=["omeganet", "atlas"], help="variants")
    parser.add_argument("--decode", nargs="*", default=["omeganet", "titans", "atlas"])
    parser.add_argument("--rounds", type=int, default=15, help=f"of {ROUND} decoded tokens")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="a file for the figures")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    torch.set_num_threads(given.threads)
    decodings = []
    for variant in given.decode:
        sizes = given.context, given.attention_context, given.rounds
        decodings.append(decoding(variant, *sizes))
        write(given.json, "decoding", decodings[-1])
    readings = []
    for variant in given.read:
        readings.append(reading(variant, given.tokens))
        write(given.json, "reading", readings[-1])
    show_readings(readings)
    show_decodings(decodings)


if __name__ == "__main__":
    main()
