"""Does lm-eval find the same numbers through the server as in the model itself?

    python benchmarks/lm_eval_server.py RUN ITEMS               100 items of each task
    python benchmarks/lm_eval_server.py RUN ITEMS --limit 10    a shorter look

lm-eval's own client of OpenAI's completions (`local-completions`) asks a server of RUN, a process
of its own, and its `HFLM` asks the same model here. Both take the items of the folder ITEMS
(lambada_openai.jsonl and piqa.jsonl, as `atlas eval --data` does), and must find the same
accuracies, and perplexities but for rounding.
"""

import argparse
import math
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from serve import Server

from atlas_memory.evaluation.harness import Options, _configure, _quiet, _run, harness_model
from atlas_memory.reading.loading import load_run

TASKS = ("lambada_openai", "piqa")
NEAR = 1e-5  # of a perplexity in float32


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("items", type=Path)
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--concurrent", type=int, default=4)
    parser.add_argument("--precision")
    return parser.parse_args()


def client(address: str, tokenizer: Path, concurrent: int) -> Any:
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    return LocalCompletionsAPI(
        base_url=f"{address}/v1/completions",
        model=tokenizer.name,
        tokenizer=str(tokenizer),
        tokenizer_backend="huggingface",
        num_concurrent=concurrent,
        batch_size=1,
    )


def measure(given: argparse.Namespace, folder: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """who was asked -> task -> metrics"""
    for task in TASKS:
        _configure(folder, task, given.items)
    loaded = load_run(given.run, given.precision)
    loaded.tokenizer.fast.save_pretrained(folder / given.run.name)
    asked = {"HFLM": lambda: harness_model(loaded.model, loaded.tokenizer, Options())}
    found, server = {}, Server(given.run, given.precision, 1)
    asked["server"] = lambda: client(server.address, folder / given.run.name, given.concurrent)
    try:
        for name, lm in asked.items():
            begin = time.perf_counter()
            found[name] = _run(lm(), folder, TASKS, given.limit)
            print(f"{name}: {time.perf_counter() - begin:.0f} s")
    finally:
        server.stop()
    return found


def main() -> None:
    given = arguments()
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder, _quiet():
        found = measure(given, Path(folder))
    same = True
    print(f"{'task':16} {'metric':12} {'HFLM':>18} {'server':>18}")
    for task in TASKS:
        for metric, here in found["HFLM"][task].items():
            if metric.endswith("_stderr"):  # a function of the share
                continue
            there = found["server"][task][metric]
            same &= math.isclose(here, there, rel_tol=NEAR if metric == "perplexity" else 0)
            print(f"{task:16} {metric:12} {here:18.9g} {there:18.9g}")
    raise SystemExit(not same)


if __name__ == "__main__":
    main()
