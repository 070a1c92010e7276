"""A trace as one self-contained page: the text, the gates, the norms, all without a network."""

import json
import math
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor

from atlas_memory.data.tokenizer import Tokenizer
from atlas_memory.inspection.trace import LayerTrace, MemoryTrace, Trace

BINS = 240  # points of a chart; more cannot be told apart
SURPRISING = 16  # places to jump to
DIGITS = 4


@dataclass(frozen=True)
class Excerpt:
    """The beginning of a text: its ids, and the piece of text that each of them stands for."""

    ids: list[int]
    pieces: list[str]


def excerpt(text: str, tokenizer: Tokenizer, most: int) -> Excerpt:
    """At most so many tokens; a character of several tokens belongs to the first of them."""
    found = tokenizer.fast(text, add_special_tokens=False, return_offsets_mapping=True)
    ids, ends = found["input_ids"][:most], [end for _, end in found["offset_mapping"][:most]]
    pieces, begin = [], 0
    for end in ends:
        pieces.append(text[begin:end])
        begin = max(begin, end)
    return Excerpt(ids, pieces)


def page(trace: Trace, pieces: list[str], title: str, model: str) -> str:
    """The page as text."""
    template = files("atlas_memory.inspection").joinpath("report.html").read_text(encoding="utf-8")
    data = json.dumps(describe(trace, pieces, title, model), separators=(",", ":"), allow_nan=False)
    # nothing in a text may end the script element that it stands in
    return template.replace("__DATA__", data.replace("<", "\\u003c"))


def describe(trace: Trace, pieces: list[str], title: str, model: str) -> dict[str, Any]:
    """Everything that the page shows, as plain data."""
    time = len(trace.tokens)
    size = math.ceil(time / BINS)
    kept = torch.arange(0, len(trace.points), math.ceil(len(trace.points) / BINS))
    predicted = trace.surprise[1:]
    return {
        "title": title,
        "model": model,
        "tokens": time,
        "pieces": pieces,
        "surprise": [None, *(round(bits, DIGITS) for bits in predicted.tolist())],
        "mean": _plain(torch.tensor(trace.mean_surprise)) if time > 1 else None,
        "scale": _plain(predicted.quantile(0.98).clamp(min=1.0)) if time > 1 else 1.0,
        "surprising": (1 + predicted.argsort(descending=True)[:SURPRISING]).sort()[0].tolist(),
        "bin": size,
        "bins": [start + (min(start + size, time) - start) / 2 for start in range(0, time, size)],
        "points": trace.points[kept].tolist(),
        "layers": [_layer(layer, size, kept) for layer in trace.layers],
    }


def _layer(layer: LayerTrace, size: int, kept: Tensor) -> dict[str, Any]:
    return {
        "mixer": layer.mixer,
        "contribution": _plain(_binned(layer.contribution, size)),
        "feed_forward": _plain(_binned(layer.feed_forward_contribution, size)),
        "memory": None if layer.memory is None else _memory(layer.memory, size, kept),
    }


def _memory(memory: MemoryTrace, size: int, kept: Tensor) -> dict[str, Any]:
    def gate(values: Tensor | None) -> Any:
        return None if values is None else _plain(_binned(values, size))

    gamma = None if memory.gamma is None else memory.gamma.mean(dim=0).T
    return {
        "alpha": gate(memory.alpha),
        "eta": gate(memory.eta),
        "theta": gate(memory.theta),
        "gamma": gate(gamma),
        "weights": _plain(memory.weights[:, kept]),
        "momentum": None if memory.momentum is None else _plain(memory.momentum[:, kept]),
    }


def _binned(values: Tensor, size: int) -> Tensor:
    """Means of `size` values along the last axis; the last bin may have fewer."""
    return torch.stack([part.mean(dim=-1) for part in values.double().split(size, dim=-1)], dim=-1)


def _plain(values: Tensor) -> Any:
    """Numbers with a few digits, which a page has enough of."""
    if values.dim() == 0:
        return float(f"{values.item():.{DIGITS + 1}g}")
    return [_plain(value) for value in values]
