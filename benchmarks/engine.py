"""Speed and memory of the engine, every figure a ratio taken in one run on the same threads.

    make bench                                 the whole table, about 4 minutes on 2 cores
    python benchmarks/engine.py --only window  one row; --json FILE writes the figures

Configuration unless a row says otherwise: float32, batch 1, 4 heads, d = 64, MLP memory of hidden
width 256, chunk 64, Momentum, T = 2048, forward + backward. A row's two sides are timed in turn,
and the median of the rounds is taken, because the machine may be doing other things too.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import torch
from torch import Tensor
from torch.nn.functional import normalize, scaled_dot_product_attention

import atlas_memory as am
from atlas_memory.processor import flush_tiny_numbers, processor_name

HEADS, DIM, CHUNK, TOKENS = 4, 64, 64, 2048
Run = Callable[[], None]


@dataclass(frozen=True)
class Row:
    """One figure beside its target; `better` says which side of the target is good."""

    name: str
    figure: float
    target: float
    better: str
    note: str


def spec(window: int = 1, optimizer: object | None = None, output: str = "chunk") -> am.MemorySpec:
    return am.MemorySpec(
        features=am.Identity(),
        architecture=am.MLP(expansion=4, normalize=output == "online"),
        bias=am.L2(),
        optimizer=optimizer or am.Momentum(),
        retention=am.ScalarRetention(),
        window=window,
        chunk=CHUNK,
        output=output,
    )


def draw(
    tokens: int, dim: int, window: int = 1
) -> tuple[tuple[Tensor, ...], am.Gates, tuple[Tensor, ...]]:
    """Inputs in the model's own regime: normalized keys and queries, small steps."""
    g = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g)

    rows = (1, HEADS, tokens)
    q, k = (normalize(normal(*rows, dim), dim=-1) for _ in range(2))
    gates = am.Gates(
        alpha=torch.sigmoid(normal(*rows) + 4),
        eta=0.1 * torch.sigmoid(normal(*rows)),
        theta=torch.sigmoid(normal(*rows)),
        gamma=torch.sigmoid(normal(*rows, window)) / window,
    )
    weights = (normal(HEADS, dim, 4 * dim) * 0.05, normal(HEADS, 4 * dim, dim) * 0.05)
    qkv = (q, k, normal(*rows, dim))
    for x in (*qkv, *weights, *gates.named().values()):
        x.requires_grad_()
    return qkv, gates, weights


def engine(
    tokens: int = TOKENS,
    dim: int = DIM,
    window: int = 1,
    optimizer: object | None = None,
    output: str = "chunk",
    products: str = "float32",
) -> Run:
    qkv, gates, weights = draw(tokens, dim, window)
    chosen = spec(window, optimizer, output)
    gates = gates if chosen.optimizer.momentum else replace(gates, theta=None)

    def run() -> None:
        y, _ = am.memorize(*qkv, gates, weights, chosen, products=products)
        y.sum().backward()

    return run


def attention(tokens: int) -> Run:
    (q, k, v), _, _ = draw(tokens, DIM)

    def run() -> None:
        scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()

    return run


def titans(tokens: int) -> Run:
    """titans-pytorch at token level, the only public memory that is exact there."""
    from titans_pytorch import MemoryMLP, NeuralMemory

    torch.manual_seed(0)
    memory = NeuralMemory(
        dim=HEADS * DIM,
        heads=HEADS,
        dim_head=DIM,
        chunk_size=1,
        batch_size=CHUNK,
        model=MemoryMLP(DIM, depth=2, expansion_factor=4.0),
    )
    x = torch.randn(1, tokens, HEADS * DIM, requires_grad=True)

    def run() -> None:
        memory(x)[0].sum().backward()

    return run


def matmul(size: int = 1024, times: int = 8) -> Run:
    a, b = torch.randn(size, size), torch.randn(size, size)

    def run() -> None:
        for _ in range(times):
            a @ b

    return run


def seconds(run: Run) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def ratio(slow: Run, fast: Run, rounds: int) -> float:
    """Median over rounds of time(slow) / time(fast), each round timing both."""
    seconds(fast), seconds(slow)
    return median(seconds(slow) / seconds(fast) for _ in range(rounds))


def useful_work(tokens: int, dim: int) -> float:
    """Multiply-adds, as 2 FLOP, that the equations need per forward + backward (3 forwards' worth).

    Keys: two products and one transposed. Queries: W and S of both matrices, and the sums over the
    chunk's pairs. State: d^T x for W and S of both matrices. Recomputation is not counted.
    """
    hidden = 4 * dim
    weights = dim * hidden
    keys, queries, state = 3 * weights, 4 * weights, 4 * weights
    pairs = CHUNK * (2 * dim + 2 * hidden)
    return 3 * 2 * tokens * HEADS * (keys + queries + state + pairs)


def row_titans(rounds: int) -> Row:
    few = 512  # at 2048 its graph of a matrix per token does not fit into 24 GB
    figure = ratio(titans(few), engine(), max(1, rounds // 2)) * TOKENS / few
    return Row(
        "tokens/s against titans-pytorch, chunk_size=1", figure, 100, "above", f"titans at T={few}"
    )


def row_window(window: int, target: float) -> Callable[[int], Row]:
    def row(rounds: int) -> Row:
        figure = ratio(engine(window=window), engine(), rounds)
        return Row(f"window c = {window} against c = 1", figure, target, "below", "time")

    return row


def row_online(rounds: int) -> Row:
    """Gradient descent, which the presets write exactly with."""
    plain = am.GradientDescent()
    figure = ratio(engine(optimizer=plain, output="online"), engine(optimizer=plain), rounds)
    return Row('output="online" against "chunk"', figure, 1.0, "below", "gradient descent, time")


def row_online_window(rounds: int) -> Row:
    plain = am.GradientDescent()
    four, one = (engine(window=c, optimizer=plain, output="online") for c in (4, 1))
    figure = ratio(four, one, rounds)
    return Row('output="online": c = 4 against c = 1', figure, 2.0, "below", "time")


def row_products(rounds: int) -> Row:
    figure = ratio(engine(), engine(products="bfloat16"), rounds)
    return Row('speed of products="bfloat16"', figure, 1.3, "above", "against float32")


def row_work(rounds: int) -> Row:
    product = matmul()
    share = ratio(product, engine(), rounds)
    figure = share * useful_work(TOKENS, DIM) / (8 * 2 * 1024**3)
    return Row("useful work as a share of the matmul rate", figure, 0.35, "above", "1024^3 matmul")


def row_muon(period: int, target: float) -> Callable[[int], Row]:
    def row(rounds: int) -> Row:
        tokens = 512 if period == 1 else TOKENS
        slow = engine(tokens, 32, optimizer=am.Muon(period=period))
        figure = ratio(slow, engine(tokens, 32), rounds)
        return Row(
            f"Muon(period={period}) against momentum",
            figure,
            target,
            "below",
            f"d = 32, T={tokens}",
        )

    return row


def row_attention(tokens: int) -> Callable[[int], Row]:
    def row(rounds: int) -> Row:
        figure = ratio(attention(tokens), engine(tokens), max(2, rounds // 2))
        target = {2048: 0.8, 4096: 1.2, 8192: 2.4}.get(tokens, 0.0)
        return Row(
            f"speed against softmax attention at T = {tokens}", figure, target, "above", "SDPA"
        )

    return row


def row_length(rounds: int) -> Row:
    figure = ratio(engine(4 * 4096), engine(4096), max(2, rounds // 2))
    return Row("time at T = 16384 against T = 4096", figure, 4.4, "below", "4x the length")


def row_memory(rounds: int) -> Row:
    """Peak resident memory above the inputs, in a process of its own."""
    figure = float(
        subprocess.run(
            [sys.executable, __file__, "--peak"], check=True, capture_output=True, text=True
        ).stdout
    )
    return Row("peak GB above the inputs at T = 16384", figure, 1.5, "below", "resident set")


def print_peak() -> None:
    def peak() -> float:
        (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in x)
        return int(line.split()[1]) * 1024 / 1e9

    flush_tiny_numbers()
    torch.set_num_threads(2)
    engine(256)()  # what torch itself allocates on first use is not the engine's
    run = engine(16384)
    before = peak()
    run()
    print(peak() - before)


ROWS: dict[str, Callable[[int], Row]] = {
    "titans": row_titans,
    "window16": row_window(16, 1.15),
    "window64": row_window(64, 2.0),
    "online": row_online,
    "online-window": row_online_window,
    "products": row_products,
    "work": row_work,
    "muon": row_muon(1, 15),
    "muon-chunk": row_muon(CHUNK, 1.6),
    **{f"attention{t}": row_attention(t) for t in (2048, 4096, 8192, 16384)},
    "length": row_length,
    "memory": row_memory,
}


def table(rows: list[Row]) -> str:
    lines = ["| what | figure | target | holds |", "|---|---|---|---|"]
    for row in rows:
        holds = row.figure >= row.target if row.better == "above" else row.figure <= row.target
        target = f"{row.better} {row.target:g}" if row.target else "-"
        verdict = "yes" if holds else "NO"
        lines.append(f"| {row.name} ({row.note}) | {row.figure:.2f} | {target} | {verdict} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", help=f"rows whose name starts so: {', '.join(ROWS)}")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--peak", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.peak:
        return print_peak()
    names = [name for name in ROWS if name.startswith(chosen.only or "")]
    if not names:
        parser.error(f"--only {chosen.only}: choose from {', '.join(ROWS)}")
    flush_tiny_numbers()  # before there are other threads
    torch.set_num_threads(2)
    rows = []
    for name in names:
        print(f"measuring {name} ..", file=sys.stderr, flush=True)
        rows.append(ROWS[name](chosen.rounds))
    print(table(rows))
    if chosen.json:
        figures = {name: asdict(row) for name, row in zip(names, rows, strict=True)}
        told = {"torch": torch.__version__, "processor": processor_name(), "rows": figures}
        chosen.json.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
