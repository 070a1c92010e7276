"""The simplest task of a memory: 32 random tokens, four times in a row.

    python benchmarks/copy_task.py --out docs/results/copy.json       three seeds of every variant
    python benchmarks/copy_task.py --variants titans atlas --seeds 1 --set memory.window=1
    python benchmarks/copy_task.py --variants gated_deltanet --set designed_heads=half

Vocabulary 2,048, 2 layers of width 64 with 2 heads through AtlasForCausalLM, AdamW 4e-3, every
batch new. The loss is that of the repetitions alone, in nats, on 64 texts that were never trained
on; a model that does not use its memory stays at log 2,048 = 7.62.
"""

import argparse
import json
import math
import os
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atlas_memory.config import AtlasConfig
from atlas_memory.experiments.experiment import Workspace
from atlas_memory.experiments.fit import IGNORED, Rate, fit, labelled_loss
from atlas_memory.family import variants
from atlas_memory.model import AtlasForCausalLM

DEFAULT = ["gated_deltanet", "deltanet", "titans", "omeganet", "atlas", "atlas_mac"]
DEFAULT += ["transformer_plus"]
VOCABULARY, TOKENS, TIMES = 2_048, 32, 4
BATCH, LEARNING_RATE, WARMUP, EVERY = 16, 4e-3, 20, 100
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


@dataclass(frozen=True)
class Result:
    """losses: of the repetitions, by step."""

    variant: str
    seed: int
    losses: dict[int, float]
    parameters: int
    seconds: float


def draw(step: int, seed: int, count: int = BATCH) -> tuple[Tensor, Tensor]:
    """Batch number `step` of a seed: ids and labels [count, 128].

    A label is the token that follows. The first one of a repetition is asked for only where it
    has followed before: nothing announces the first repetition.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    ids = torch.randint(VOCABULARY, (count, TOKENS), generator=generator).repeat(1, TIMES)
    labels = ids.roll(-1, dims=1)
    labels[:, :TOKENS] = IGNORED
    labels[:, -1] = IGNORED
    return ids, labels


def run(config: AtlasConfig, seed: int, steps: int) -> Result:
    torch.manual_seed(seed)
    model, fresh = AtlasForCausalLM(config), draw(0, 10**6 + seed, count=64)
    name = config.variant or "custom"

    def say(line: str) -> None:
        print(f"{name} seed {seed} {line}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as folder:
        fitted = fit(
            model,
            partial(draw, seed=seed),
            steps=steps,
            rate=Rate(LEARNING_RATE, "constant", WARMUP),
            workspace=Workspace(Path(folder), say),
            evaluate=lambda: {"repeated": labelled_loss(model, fresh).item()},
            every=EVERY,
        )
    losses = {point["step"]: point.get("repeated", math.nan) for point in fitted.history}
    return Result(name, seed, losses, model.num_parameters(), fitted.seconds)


def table(results: Iterable[Result]) -> str:
    """One line per run."""
    results = list(results)
    steps = sorted({step for result in results for step in result.losses})
    lines = [" | ".join(["variant", "seed", *(f"step {s}" for s in steps), "parameters", "s"])]
    lines.append("|".join(["---"] * (len(steps) + 4)))
    for r in results:
        losses = [f"{r.losses[s]:.3f}" if s in r.losses else "-" for s in steps]
        lines.append(
            " | ".join([r.variant, str(r.seed), *losses, f"{r.parameters:,}", f"{r.seconds:.0f}"])
        )
    return "\n".join(f"| {line} |" if "---" not in line else f"|{line}|" for line in lines)


def assignment(text: str) -> tuple[str, Any]:
    """name=value; a value is JSON where it can be read as such, else text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: write name=value")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def write(path: Path, results: list[Result], overrides: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = {"set": overrides, "runs": [asdict(result) for result in results]}
    other = path.with_name(f".{path.name}.{os.getpid()}")
    other.write_text(json.dumps(plain, indent=1) + "\n")
    other.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--variants", nargs="+", choices=variants(), default=DEFAULT, metavar="VARIANT"
    )
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds of every variant")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument(
        "--set", type=assignment, action="append", default=[], help="memory.window=1, repeatable"
    )
    parser.add_argument("--out", type=Path, help="write the results here too, as JSON")
    args = parser.parse_args()
    if args.seeds < 1 or args.steps < 1:
        parser.error(f"--seeds {args.seeds} --steps {args.steps}: both must be at least 1")
    overrides, results = dict(args.set), []
    try:
        chosen = {**SHAPE, **overrides}
        configs = [AtlasConfig.from_variant(name, "tiny", **chosen) for name in args.variants]
    except ValueError as error:
        parser.error(str(error))
    for config in configs:
        for seed in range(args.seeds):
            results.append(run(config, seed, args.steps))
            if args.out:
                write(args.out, results, overrides)
    print(table(results))


if __name__ == "__main__":
    main()
