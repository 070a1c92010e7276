"""How long a user waits for the sentence that says what was wrong.

    python benchmarks/mistakes.py            from Enter to the sentence, the best of three

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
from pathlib import Path

LIMIT = 1.5
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
    ("data", "enwik9"),
    ("tokenizer", "train", "missing.txt"),
)


def prepare(folder: Path) -> None:
    """What the mistakes need around them: a text, a file that exists, and a model's folder."""
    (folder / "run").mkdir(parents=True)
    (folder / "run" / "config.json").write_text(json.dumps({"model_type": "atlas_memory"}))
    (folder / "book.txt").write_text("Once upon a time.\n")
    (folder / "there.memory").write_text("")


def seconds(words: tuple[str, ...], folder: Path) -> tuple[float, float]:
    """By the clock and by the processor."""
    command = [sys.executable, "-m", "atlas_memory.cli", *words]
    begun, worked = time.monotonic(), _processor()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 2, f"{words}: {done.stderr}"
    return time.monotonic() - begun, _processor() - worked


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        taken = {words: min(seconds(words, folder) for _ in range(3)) for words in MISTAKES}
    for words, (clock, processor) in taken.items():
        print(f"{clock:6.2f} s {processor:6.2f} s  atlas {' '.join(words)}")
    worst = max(clock for clock, _ in taken.values())
    print(f"{worst:6.2f} s  the slowest; {'below' if worst < LIMIT else 'NOT below'} {LIMIT} s")


if __name__ == "__main__":
    main()
