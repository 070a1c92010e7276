"""torch.compile of a training step and of a decoding step: what it costs and what it gives.

    python benchmarks/compile.py                 the variants below; about 15 minutes of one core
    python benchmarks/compile.py atlas mamba     only these
    python benchmarks/compile.py --json FILE     also writes the figures

Tiny models, float32, one thread. Every variant is compiled in a process of its own with an empty
cache, after the headers of the C++ compiler, which are compiled once per machine. Seconds are of
processor time, the C++ compiler's included, because the machine may be doing other things too.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.utils import counters

import atlas_memory as am

VARIANTS = ["transformer_plus", "swa", "mamba", "mamba2", "gated_deltanet", "titans", "omeganet"]
VARIANTS += ["atlas", "deeptransformer"]
CHUNKED = ["titans", "omeganet", "atlas"]  # deep memories, whose chunks can be compiled too
ROWS, LENGTH = 2, 128
PROMPT, DECODED = 32, 64
Step = Callable[[], Any]


@dataclass(frozen=True)
class Compiled:
    """seconds: of the first two steps. speed: eager time / compiled time, after that.

    error: largest difference from eager, of logits or gradients. graphs: of these, `late` were
    made after the second step.
    """

    seconds: float
    speed: float
    error: float
    graphs: int
    late: int


def processor_seconds() -> float:
    """Of this process and of the compilers that it has waited for."""
    whose = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    return sum(sum(resource.getrusage(who)[:2]) for who in whose)


def build(variant: str) -> am.AtlasForCausalLM:
    torch.manual_seed(0)
    return am.AtlasForCausalLM(am.AtlasConfig.from_variant(variant, size="tiny"))


def text(length: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (ROWS, length), generator=generator)


def train(variant: str, chunks: bool = False) -> tuple[Step, Step, Step]:
    """(eager, compiled, reset): a step returns its gradients. chunks: compile those too."""
    eager, compiled, ids = build(variant).train(), build(variant).train(), text(LENGTH)
    compiled.compile()

    def step(model: am.AtlasForCausalLM, chunks: bool) -> list[Tensor]:
        am.compile_chunks(chunks)
        model.zero_grad()
        model(ids, labels=ids, use_cache=False).loss.backward()
        return [p.grad for p in model.parameters()]

    return lambda: step(eager, False), lambda: step(compiled, chunks), lambda: None


def decode(variant: str) -> tuple[Step, Step, Step]:
    """(eager, compiled, reset): a step reads one token and returns its logits."""
    eager, compiled, ids = build(variant).eval(), build(variant).eval(), text(PROMPT + DECODED)
    compiled.compile()
    caches: dict[am.AtlasForCausalLM, am.AtlasCache] = {}

    @torch.no_grad()
    def step(model: am.AtlasForCausalLM) -> list[Tensor]:
        cache = caches[model]
        token = ids[:, cache.seen : cache.seen + 1]
        out = model(token, past_key_values=cache, use_cache=True)
        caches[model] = out.past_key_values
        return [out.logits]

    @torch.no_grad()
    def reset() -> None:
        caches[eager] = caches[compiled] = eager(ids[:, :PROMPT], use_cache=True).past_key_values

    reset()
    return lambda: step(eager), lambda: step(compiled), reset


def measure(make: Callable[[str], tuple[Step, Step, Step]], variant: str, steps: int) -> Compiled:
    torch.compiler.reset()
    counters.clear()
    eager, compiled, reset = make(variant)
    expected = [[x.clone() for x in eager()] for _ in range(2)]
    began = processor_seconds()
    found = [[x.clone() for x in compiled()] for _ in range(2)]
    seconds, graphs = processor_seconds() - began, counters["stats"]["unique_graphs"]
    pairs = [p for a, b in zip(expected, found, strict=True) for p in zip(a, b, strict=True)]
    times: dict[Step, list[float]] = {eager: [], compiled: []}
    for _ in range(3):
        for step in times:
            reset()
            began = time.process_time()
            for _ in range(steps):
                step()
            times[step].append(time.process_time() - began)
    late = counters["stats"]["unique_graphs"] - graphs
    error = max(float((a - b).abs().max()) for a, b in pairs)
    speed = median(times[eager]) / median(times[compiled])
    return Compiled(round(seconds, 1), round(speed, 2), error, graphs + late, late)


def measure_variant(variant: str) -> dict[str, Any]:
    """Everything about one variant, in this process."""
    torch.set_num_threads(1)
    torch.compile(lambda x: x.sin() + 1)(torch.ones(8))  # compiles the headers
    row = {"decode": measure(decode, variant, DECODED), "train": measure(train, variant, 4)}
    if variant in CHUNKED:
        row["train and chunks"] = measure(partial(train, chunks=True), variant, 4)
    return {"variant": variant, **{name: asdict(figures) for name, figures in row.items()}}


def in_a_process_of_its_own(variant: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as cache:
        # With one thread the C++ compiler is a child of the process and its time is counted.
        one = {"TORCHINDUCTOR_CACHE_DIR": cache, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        command = [sys.executable, __file__, "--here", variant]
        ran = subprocess.run(
            command, env={**os.environ, **one}, stdout=subprocess.PIPE, text=True, check=True
        )
    return json.loads(ran.stdout.splitlines()[-1])


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| variant | step | compiling, s | speed against eager | largest difference |"]
    lines += ["|---|---|---|---|---|"]
    for row in rows:
        for step in ("train", "train and chunks", "decode"):
            if step in row:
                x = Compiled(**row[step])
                figures = f"{x.seconds:.0f} | {x.speed:.2f} | {x.error:.0e}"
                lines.append(f"| {row['variant']} | {step} | {figures} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("variants", nargs="*", default=VARIANTS)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--here", action="store_true", help="in this process, one JSON a variant")
    given = parser.parse_args()
    if given.here:
        for variant in given.variants:
            print(json.dumps(measure_variant(variant)))
        return
    rows: list[dict[str, Any]] = []
    for variant in given.variants:
        rows.append(in_a_process_of_its_own(variant))
        print(json.dumps(rows[-1]), file=sys.stderr)
        if given.json:
            plain = {"torch": torch.__version__, "rows": rows}
            given.json.write_text(json.dumps(plain, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
