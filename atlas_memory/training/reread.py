"""Second reading: what a passage costs when it comes again, as a share of the first time.

Every row reads a little of another text, the passage, a gap of other text, and the passage again.
A model that remembers what it read pays less the second time; one that does not pays as much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from atlas_memory.cache import AtlasCache
from atlas_memory.model import feed, surprise

if TYPE_CHECKING:
    from atlas_memory.model import AtlasForCausalLM

GAPS = (0, 256, 1_024, 4_096)
ROWS = 8  # passages, read side by side
PASSAGE = 200  # tokens
LEAD = 32  # tokens before the first reading, so that it does not pay for a cold start
BLOCK = 2_048  # tokens of a forward pass through a gap


@torch.no_grad()
def second_reading(
    model: AtlasForCausalLM,
    passages: Tensor,
    fillers: Tensor,
    gaps: Sequence[int] = GAPS,
    leads: Tensor | None = None,
) -> dict[str, float]:
    """first_bits: mean bits of a token of the passages [rows, t]; gap_n: the share of it that the
    same tokens cost when n tokens of `fillers` [rows, g] were read in between.

    leads: other text before the first reading. The first token of a passage counts in neither
    reading: it is fed, not predicted.
    """
    cache = None if leads is None else _advance(model, None, leads)
    first, cache = _bits(model, cache, passages)
    figures, behind = {"first_bits": first}, 0
    for gap in sorted(gaps):
        cache, behind = _advance(model, cache, fillers[:, behind:gap]), gap
        figures[f"gap_{gap}"] = _bits(model, cache, passages)[0] / first
    return figures


def reread(model: AtlasForCausalLM, ids: np.ndarray[Any, Any]) -> dict[str, float] | None:
    """The second reading of passages all over a text; gaps it is too short for are left out."""
    gaps = [gap for gap in GAPS if LEAD + PASSAGE + gap <= len(ids)]
    if not gaps:
        return None
    passages, fillers, leads = _cut(ids, gaps[-1], model.device)
    return second_reading(model, passages, fillers, gaps, leads)


def draw(found: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """The shares of each model over the gap, as a picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.add_subplot()
    for name, figures in found.items():
        shares = {key[4:]: share for key, share in figures.items() if key.startswith("gap_")}
        axes.plot(list(shares), list(shares.values()), "o-", label=name)
    axes.axhline(1, color="0.6", lw=0.8)
    axes.set(xlabel="tokens in between", ylabel="bits, as a share of the first reading")
    axes.legend()
    figure.savefig(path, dpi=120)


def _cut(ids: np.ndarray[Any, Any], gap: int, device: torch.device) -> tuple[Tensor, ...]:
    """Passages, gaps and leads [rows, t] that share no token; a lead comes from behind its gap,
    so that neither reading begins with the words before the passage.
    """
    need = LEAD + PASSAGE + gap
    rows = min(ROWS, len(ids) // need)
    firsts = [row * (len(ids) // rows) for row in range(rows)]
    lanes = np.stack([ids[first : first + need] for first in firsts]).astype(np.int64)
    return torch.from_numpy(lanes).to(device).split([PASSAGE, gap, LEAD], dim=1)


def _advance(model: AtlasForCausalLM, cache: AtlasCache | None, ids: Tensor) -> AtlasCache | None:
    """What is known behind `ids`, of which nothing is predicted."""
    for block in ids.split(BLOCK, dim=1):
        if block.shape[1]:
            _, cache = feed(model, block, cache)
    return cache


def _bits(
    model: AtlasForCausalLM, cache: AtlasCache | None, ids: Tensor
) -> tuple[float, AtlasCache]:
    """Mean bits of all tokens but the first, and what is known behind them."""
    hidden, cache = feed(model, ids, cache)
    bits = surprise(model, hidden[:, :-1], ids[:, 1:])
    return float(bits.double().mean()), cache
