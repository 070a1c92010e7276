"""Which memories learn associative recall: MQAR, five rows, one recipe.

    make train                                    one seed of every row
    python benchmarks/recall.py --full            five seeds: the table of docs/log.md
    python benchmarks/recall.py --rows titans --seeds 3 --json FILE

Vocabulary 128, length 64, 8 pairs; 2 layers of width 64 with 2 heads, batch 32. Every batch is
new, so the running recall is already that of fresh data: a run ends when it has passed 0.99, or
after --steps. The table shows the recall on 512 sequences that were never trained on.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from atlas_memory.blocks import SwiGLU
from atlas_memory.layers.attention import Attention
from atlas_memory.layers.memory_layer import MemoryLayer
from atlas_memory.layers.projections import RMSNorm
from atlas_memory.memory import L2, MLP, Huber, Matrix, MemorySpec, Momentum, Muon, NoRetention
from atlas_memory.tasks.mqar import MQAR
from atlas_memory.training.weight_decay import decay_groups

TASK = MQAR(vocabulary=128, length=64, pairs=8)
DIM, HEADS, LAYERS, BATCH = 64, 2, 2, 32
LEARNING_RATE, WARMUP, REPORT = 3e-3, 50, 50
PASSED, ENOUGH = 0.97, 0.99

TITANS = MemorySpec(architecture=MLP(2), bias=Huber(1.0), optimizer=Momentum(), chunk=16)
OMEGANET = MemorySpec(architecture=MLP(2), bias=Huber(1.0), window=8, chunk=16)
ATLAS = MemorySpec(
    architecture=MLP(2), bias=Huber(1.0), optimizer=Muon(period=16), window=8, chunk=16
)
DELTANET = MemorySpec(architecture=Matrix(), bias=L2(), retention=NoRetention(), chunk=1)

ROWS: dict[str, Callable[[], nn.Module]] = {
    "titans": lambda: MemoryLayer(DIM, HEADS, TITANS),
    "omeganet": lambda: MemoryLayer(DIM, HEADS, OMEGANET),
    "atlas": lambda: MemoryLayer(DIM, HEADS, ATLAS),
    "deltanet": lambda: MemoryLayer(DIM, HEADS, DELTANET),
    "attention": lambda: Attention(DIM, HEADS, conv=4),
}


@dataclass(frozen=True)
class Result:
    """passed: steps until the running recall passed 0.97, None if it never did."""

    row: str
    seed: int
    recall: float
    passed: int | None
    steps: int
    seconds: float


def draw(step: int, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Batch number `step` of a seed: ids and labels [count, 64]."""
    ids, labels = TASK.draws(count, (seed,), step * count)
    return torch.from_numpy(ids), torch.from_numpy(labels)


class Block(nn.Module):
    """Pre-norm mixer and SwiGLU, each on a residual path."""

    def __init__(self, mixer: nn.Module) -> None:
        super().__init__()
        self.mixer, self.feed_forward = mixer, SwiGLU(DIM, 2 * DIM)
        self.first, self.second = RMSNorm(DIM), RMSNorm(DIM)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mixer(self.first(x))[0]
        return x + self.feed_forward(self.second(x))


def build(row: str) -> nn.Sequential:
    blocks = [Block(ROWS[row]()) for _ in range(LAYERS)]
    head = nn.Linear(DIM, TASK.vocabulary, bias=False)
    return nn.Sequential(nn.Embedding(TASK.vocabulary, DIM), *blocks, RMSNorm(DIM), head)


def schedule(step: int, steps: int) -> float:
    cosine = 0.5 * (1 + math.cos(math.pi * step / steps))
    return min(1.0, (step + 1) / WARMUP) * (0.1 + 0.9 * cosine)


def learn(
    model: nn.Module, ids: Tensor, labels: Tensor, optimizer: torch.optim.AdamW
) -> tuple[float, float]:
    """One step; the loss and the recall before it."""
    asked = labels >= 0
    answers, truth = model(ids)[asked], labels[asked]
    loss = cross_entropy(answers, truth)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    optimizer.step()
    return loss.item(), (answers.argmax(-1) == truth).float().mean().item()


@torch.no_grad()
def recall(model: nn.Module, seed: int) -> float:
    ids, labels = draw(0, 512, 10**6 + seed)
    asked = labels >= 0
    right = torch.cat([model(part).argmax(-1) for part in ids.split(64)]) == labels
    return right[asked].float().mean().item()


def run(row: str, seed: int, steps: int) -> Result:
    torch.manual_seed(seed)
    model, begin, passed, window = build(row), time.perf_counter(), None, []
    groups = decay_groups(model, 0.1)
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.95))
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * schedule(step, steps)
        loss, right = learn(model, *draw(step, BATCH, 1000 + seed), optimizer)
        window = [*window[1 - REPORT :], right]
        mean = sum(window) / len(window)
        if (step + 1) % REPORT == 0:
            print(
                f"{row} seed {seed} step {step + 1}: loss {loss:.2f}, recall {mean:.2f}, "
                f"{time.perf_counter() - begin:.0f} s",
                file=sys.stderr,
                flush=True,
            )
        if len(window) == REPORT and mean >= PASSED and passed is None:
            passed = step + 1
        if len(window) == REPORT and mean >= ENOUGH:
            break
    seconds = time.perf_counter() - begin
    return Result(row, seed, recall(model, seed), passed, step + 1, seconds)


def table(results: list[Result]) -> str:
    """One line for each row: recall by seed, then steps to 0.97, then seconds."""
    seeds = sorted({r.seed for r in results})
    lines = [
        "row        " + "".join(f"  seed {s}" for s in seeds) + "   passed at          seconds"
    ]
    for row in dict.fromkeys(r.row for r in results):
        mine = {r.seed: r for r in results if r.row == row}
        figures = "".join(f"{mine[s].recall:8.3f}" if s in mine else "       -" for s in seeds)
        steps = " ".join(str(r.passed or "never") for r in mine.values())
        seconds = sum(r.seconds for r in mine.values()) / len(mine)
        good = sum(r.recall >= PASSED for r in mine.values())
        lines.append(
            f"{row:11}{figures}   {steps}   {seconds:.0f}   {good}/{len(mine)} >= {PASSED}"
        )
    return "\n".join(lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds of every row")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1_500, help="the most steps of a run")
    parser.add_argument("--full", action="store_true", help="five seeds")
    parser.add_argument("--json", type=Path, help="write the results here too")
    return parser.parse_args()


def main() -> None:
    args, results = arguments(), []
    seeds = range(args.first_seed, args.first_seed + (5 if args.full else args.seeds))
    try:
        for seed in seeds:
            for row in args.rows:
                results.append(run(row, seed, args.steps))
    except KeyboardInterrupt:
        print("interrupted: the table holds the runs that ended", file=sys.stderr)
    if results:
        print(table(results))
    if args.json:
        args.json.write_text(json.dumps([asdict(result) for result in results], indent=1))


if __name__ == "__main__":
    main()
