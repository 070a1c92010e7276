"""Whole models against Transformer++: a training step, reading, and a decoded token.

    python benchmarks/model_speed.py                            the variants below, about 6 minutes
    python benchmarks/model_speed.py --variants atlas --threads 2 --json FILE

The shape of `make train`: 2 layers, width 128, 4 heads, vocabulary 2,048, models of equal size.
Figures are times as multiples of Transformer++'s, median and extremes of rounds that measure all
models in turn, because the machine may be doing other things too; below 1 is faster. Behind them
stands what the arithmetic asks for: the multiply-adds of all matrix products, as a multiple too.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from atlas_memory.config import AtlasConfig
from atlas_memory.model import AtlasForCausalLM
from atlas_memory.processor import flush_tiny_numbers, processor_name
from atlas_memory.training.prepare import equal_width, parameters_of

VARIANTS = "atlas,omeganet,titans,gated_deltanet"
BASE = "transformer_plus"
SHAPE = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 2048}
DECODED = 32
Work = Callable[[AtlasForCausalLM], Callable[[], None]]


def build(variant: str, parameters: int | None = None) -> AtlasForCausalLM:
    torch.manual_seed(0)
    config = AtlasConfig.from_variant(variant, "tiny", **SHAPE)
    if parameters is not None:
        config.intermediate_size = equal_width(config, parameters)
    return AtlasForCausalLM(config)


def training_step(model: AtlasForCausalLM) -> Callable[[], None]:
    """Forward and backward of 4 x 512 tokens."""
    ids = torch.randint(0, SHAPE["vocab_size"], (4, 512))

    def run() -> None:
        model(ids, labels=ids).loss.backward()
        model.zero_grad(set_to_none=True)

    return run


def reading(tokens: int) -> Work:
    def prepared(model: AtlasForCausalLM) -> Callable[[], None]:
        ids = torch.randint(0, SHAPE["vocab_size"], (1, tokens))

        @torch.no_grad()
        def run() -> None:
            model.model(ids, use_cache=True)

        return run

    return prepared


@torch.no_grad()
def decoding(model: AtlasForCausalLM) -> Callable[[], None]:
    """Tokens one by one behind 1,024 others."""
    ids = torch.randint(0, SHAPE["vocab_size"], (1, 1024))
    behind = model(ids, use_cache=True).past_key_values

    @torch.no_grad()
    def run() -> None:
        cache = behind
        for _ in range(DECODED):
            cache = model(ids[:, :1], past_key_values=cache, use_cache=True).past_key_values

    return run


def compiled(work: Work) -> Work:
    """The same with blocks compiled, which is in place: the last thing to measure."""

    def prepared(model: AtlasForCausalLM) -> Callable[[], None]:
        model.compile()
        return work(model)

    return prepared


WORKS: dict[str, Work] = {
    "training step": training_step,
    "reading 2,048 tokens": reading(2_048),
    "reading 4,096 tokens": reading(4_096),
    "reading 8,192 tokens": reading(8_192),
    f"{DECODED} decoded tokens": decoding,
    "training step, compiled": compiled(training_step),
    "reading 4,096, compiled": compiled(reading(4_096)),
    "reading 8,192, compiled": compiled(reading(8_192)),
    f"{DECODED}, compiled": compiled(decoding),
}


def seconds(run: Callable[[], None]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def multiply_adds(run: Callable[[], None], attention: bool) -> float:
    """Of its matrix products; those of causal attention are half of the square that is counted."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        run()
    counts = counter.get_flop_counts()["Global"]
    batched = sum(n for operation, n in counts.items() if "bmm" in str(operation))
    return (counter.get_total_flops() - (batched / 2 if attention else 0)) / 2


def multiples(runs: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Every model's time as a multiple of the first one's, round by round."""
    for run in runs.values():
        run()
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        taken = {name: seconds(run) for name, run in runs.items()}
        for name, value in taken.items():
            found[name].append(value / taken[BASE])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--variants", default=VARIANTS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="what begins so: training, reading, 32")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    flush_tiny_numbers()
    torch.set_num_threads(given.threads)
    torch._dynamo.config.recompile_limit = 64  # all models' blocks are one function
    names = [name for name in given.variants.split(",") if name != BASE]
    size = max(parameters_of(AtlasConfig.from_variant(v, "tiny", **SHAPE)) for v in (BASE, *names))
    models = {name: build(name, size).eval() for name in (BASE, *names)}
    figures = {}
    chosen = {what: work for what, work in WORKS.items() if what.startswith(given.only)}
    if not chosen:
        parser.error(f"--only {given.only}: choose a beginning of {', '.join(WORKS)}")
    for what, work in chosen.items():
        runs = {name: work(model) for name, model in models.items()}
        figures[what] = of = {}
        if "compiled" not in what:
            asked = {name: multiply_adds(run, name == BASE) for name, run in runs.items()}
            of["products"] = {name: asked[name] / asked[BASE] for name in names}
        found = multiples(runs, given.rounds)
        of["time"] = {name: median(found[name]) for name in names}
        shown = [
            f"{name} {median(found[name]):.2f} ({min(found[name]):.2f} to {max(found[name]):.2f})"
            for name in names
        ]
        print(f"{what:23}", *shown, sep="  ", flush=True)
        if "products" in of:
            print(
                "  matrix products      ",
                *(f"{n} {x:.2f}" for n, x in of["products"].items()),
                sep="  ",
            )
        if given.json:
            told = {"processor": processor_name(), "threads": given.threads, "parameters": size}
            given.json.write_text(json.dumps({**told, "multiples": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
