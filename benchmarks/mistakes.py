"""How long a user waits for the sentence that says what was wrong.

    python benchmarks/mistakes.py            from Enter to the sentence, the best of three
    python benchmarks/mistakes.py 1          each once

Each mistake is made in a process of its own. The claim is that none takes 1.5 s on a quiet machine;
the second column, the processor's seconds, holds on a busy one too. tests/cli/test_mistakes.py
tests why it is so: none of them imports torch.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

LIMIT = 1.5
WIDTH = 120  # of the sentences, which may name every variant
HEAVY = ("torch", "transformers", "matplotlib", "datasets")
MISTAKES = (
    ("trian",),
    ("train", "quikstart"),
    ("train", "quickstart", "--set", "train.stepz=3"),
    ("train", "--data", "missing.txt"),
    ("train", "--data", "book.txt", "--variant", "atlass"),
    ("train", "no-run", "--resume"),
    ("show", "atlass"),
    ("show", "atlas", "--size", "huge"),
    ("generate", "no-run", "--prompt", "It was"),
    ("generate", "run", "--prompt", "It was", "--precision", "int3"),
    ("generate", "run", "--prompt", "It was", "--device", "tpu"),
    ("generate", "run", "--memory", "missing.memory"),
    ("generate", "run", "--memory", "book.txt"),
    ("generate", "run", "--file", "missing.txt"),
    ("memorize", "run", "missing.txt", "--out", "x.memory"),
    ("memorize", "run", "book.txt", "--out", "there.memory"),
    ("memory", "missing.memory"),
    ("memory", "book.txt"),
    ("inspect", "run", "missing.txt"),
    ("inspect", "no-run", "book.txt"),
    ("eval", "no-run", "--task", "piqa"),
    ("eval", "run", "--task", "piqqa"),
    ("experiment", "mqarr"),
    ("experiment", "mqar", "--preset", "tiny"),
    ("demo", "--text", "missing.txt"),
    ("demo", "--facts", "Bob went home."),
    ("demo", "--words", "10"),
    ("demo", "--words", "ten"),
    ("serve", "no-run"),
    ("serve", "config-only"),
    ("serve", "run", "--memory", "book.txt"),
    ("serve", "run", "--prefix-cache", "much"),
    ("generate", "bare", "--prompt", "It was"),
    ("generate", "run", "--prompt", "It was", "--tokenizer", "missing.json"),
    ("generate", "book.txt", "--prompt", "It was"),
    ("show", "book.txt"),
    ("show", "there"),
    ("data", "enwik9"),
    ("tokenizer", "train", "missing.txt"),
)


def prepare(folder: Path) -> None:
    """What the mistakes need around them: texts, folders, and what looks like a model."""
    parts = {
        "run": ("config.json", "model.safetensors", "tokenizer.json"),
        "bare": ("config.json", "model.safetensors"),
        "config-only": ("config.json",),
        "there": (),
    }
    for name, files in parts.items():
        (folder / name).mkdir(parents=True)
        for file in files:
            (folder / name / file).write_text(json.dumps({"model_type": "atlas_memory"}))
    (folder / "book.txt").write_text("Once upon a time.\n")
    (folder / "there.memory").write_text("")


@dataclass(frozen=True)
class Told:
    """The sentence, and how long it took by the clock and by the processor."""

    sentence: str
    clock: float
    processor: float


def tell(words: tuple[str, ...], folder: Path) -> Told:
    command = [sys.executable, "-m", "atlas_memory.cli", *words]
    begun, worked = time.monotonic(), _processor()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    taken = time.monotonic() - begun, _processor() - worked
    assert done.returncode == 2, f"{words}: {done.stderr}"
    return Told(_sentence(done.stderr), *taken)


def _sentence(printed: str) -> str:
    """Without the box that typer draws around its own."""
    boxed = [line.strip("│ ") for line in printed.splitlines() if line.startswith("│")]
    return " ".join(boxed) or printed.strip().removeprefix("atlas: ")


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        print(f"{'clock':>8} {'processor':>10}  what was typed, and what was told")
        taken = [_best(words, folder, times) for words in MISTAKES]
    clock, processor = (max(getattr(t, of) for t in taken) for of in ("clock", "processor"))
    print(f"{clock:6.2f} s {processor:8.2f} s  the slowest; the limit is {LIMIT} s")


def _best(words: tuple[str, ...], folder: Path, times: int) -> Told:
    best = min((tell(words, folder) for _ in range(times)), key=lambda told: told.clock)
    print(f"{best.clock:6.2f} s {best.processor:8.2f} s  atlas {' '.join(words)}")
    print(f"{'':22}{best.sentence[:WIDTH]}", flush=True)
    return best


if __name__ == "__main__":
    main()
