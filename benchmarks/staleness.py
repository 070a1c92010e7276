"""How far a chunk takes a memory from the paper's rule, one gradient per token (b = 1).

    python benchmarks/staleness.py RUN TEXT [--layer 0] [--tokens 1024] [--out FILE.json]

The keys, values, queries and gates of a trained layer, read from a text; the memory of that layer
in float64, l2, gradient descent, one step size for all matrices. The figure is the mean over
tokens of ||y - y_1|| / ||y_1||, y_1 what the paper's rule answers at b = 1. "inf": it diverged.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import atlas_memory as am
from atlas_memory.layers.gates import largest_step
from atlas_memory.layers.memory_layer import MemoryLayer
from atlas_memory.reading.loading import load_run

CHUNKS = (1, 16, 64, 256)


def seen_by_layer(run: Path, text: str, layer: int, tokens: int) -> tuple[MemoryLayer, Any, Any]:
    """A trained layer with the q, k, v and gates that the text gives it."""
    loaded = load_run(run)
    ids = torch.tensor([loaded.tokenizer.fast(text)["input_ids"][:tokens]])
    found: dict[str, Any] = {}
    layers = [m for m in loaded.model.modules() if isinstance(m, MemoryLayer)]
    chosen = layers[layer]
    hooks = [
        chosen.projections.register_forward_hook(lambda _, __, out: found.update(qkv=out[0])),
        chosen.register_forward_pre_hook(lambda _, inputs: found.update(x=inputs[0])),
    ]
    with torch.no_grad():
        loaded.model(ids)
    for hook in hooks:
        hook.remove()
    return chosen, found["qkv"], found["x"]


@torch.no_grad()
def distances(layer: MemoryLayer, qkv: Any, x: torch.Tensor) -> dict[str, dict[int, float]]:
    spec = replace(
        layer.spec,
        bias=am.L2(),
        optimizer=am.GradientDescent(),
        retention=am.ScalarRetention(),
        output="chunk",
        chunk=1,
    )
    weights, coefficients = layer.initial_weights(), layer.coefficients()
    told = layer.gates(x, largest_step(layer.spec, weights, coefficients))
    gates = am.Gates(told.alpha.double(), told.eta.double(), None, _double(told.gamma))
    q, k, v = (z.double() for z in qkv)
    arguments = (q, k, v, gates, tuple(w.double() for w in weights))

    def answer(spec: am.MemorySpec) -> torch.Tensor:
        return am.memorize(*arguments, spec, coefficients=_double(coefficients))[0]

    exact = answer(spec)
    scale = exact.norm(dim=-1).mean()
    found: dict[str, dict[int, float]] = {"chunk": {}, "online": {}}
    for output in found:
        for chunk in CHUNKS:
            y = answer(replace(spec, output=output, chunk=chunk))
            found[output][chunk] = float((y - exact).norm(dim=-1).mean() / scale)
    return found


def _double(x: torch.Tensor | None) -> torch.Tensor | None:
    return None if x is None else x.double()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--layer", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    text = given.text.read_text(errors="replace")[: 8 * given.tokens]
    found = distances(*seen_by_layer(given.run, text, given.layer, given.tokens))
    print("output   " + "".join(f"b = {chunk:<9}" for chunk in CHUNKS))
    for output, row in found.items():
        print(f"{output:9}" + "".join(f"{value:<13.4g}" for value in row.values()))
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
