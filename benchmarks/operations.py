"""How many operations a training step, reading and a decoded token launch, and how often they wait.

    python benchmarks/operations.py [--variants atlas,titans] [--out docs/results/operations.json]

Counted with a TorchDispatchMode: every operation that an accelerator would have to launch, views
and allocations left out, and every host sync (a value of a tensor that Python asks for). The
shape: 2 layers, width 128, 16 heads, expansion 1, chunk 128, and the errors of a whole chunk solved
at once, as an accelerator does (a processor solves fewer at a time, and launches more for less
work; `--unknowns 64` counts that). Counts do not depend on the machine or on what else it does, so
they can be compared where a clock cannot.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from atlas_memory import AtlasConfig, AtlasForCausalLM
from atlas_memory.family import VARIANTS
from atlas_memory.layers import projections
from atlas_memory.memory import online_chunk

CHUNK = 128
LAYERS, SHAPE = 2, {"hidden_size": 128, "num_attention_heads": 16, "intermediate_size": 256}
# What moves no data: views, allocations, and questions about shapes.
FREE = {
    "alias as_strided detach detach_ diagonal empty empty_like empty_strided expand lift_fresh "
    "new_empty new_empty_strided permute select slice split split_with_sizes squeeze t transpose "
    "unbind unfold unsqueeze unsafe_split view _unsafe_view _reshape_alias resize_ set_ chunk "
    "is_same_size sym_size movedim swapaxes unflatten promote_types"
}
FREE = set(" ".join(FREE).split())
SYNCS = {"_local_scalar_dense", "item", "nonzero", "equal", "is_nonzero", "masked_select"}


@dataclass
class Counted(TorchDispatchMode):
    """Counts what runs inside it."""

    operations: Counter[str] = field(default_factory=Counter)
    syncs: int = 0

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in SYNCS:
            self.syncs += 1
        elif name not in FREE:
            self.operations[name] += 1
        return func(*args, **(kwargs or {}))

    @property
    def total(self) -> int:
        return sum(self.operations.values())


def build(variant: str) -> AtlasForCausalLM:
    torch.manual_seed(0)
    memory = VARIANTS[variant].memory
    chunk = {} if memory is None or memory.chunk == 1 else {"memory.chunk": CHUNK}
    if memory is not None and hasattr(memory.architecture, "expansion"):
        chunk["memory.architecture.expansion"] = 1
    layers = max(LAYERS, len(VARIANTS[variant].mixers))
    config = AtlasConfig.from_variant(
        variant, "tiny", num_hidden_layers=layers, vocab_size=256, **SHAPE, **chunk
    )
    return AtlasForCausalLM(config)


def training_step(model: AtlasForCausalLM) -> Counted:
    ids = torch.randint(0, 256, (8, 256))
    model.train()
    model(ids, labels=ids).loss.backward()  # tables of the first call are not counted
    with Counted() as counted:
        model(ids, labels=ids).loss.backward()
    return counted


@torch.no_grad()
def reading(model: AtlasForCausalLM, tokens: int = 4096) -> Counted:
    model.eval()
    ids = torch.randint(0, 256, (1, tokens))
    with Counted() as counted:
        model.model(ids, use_cache=True)
    return counted


@torch.no_grad()
def decoded_token(model: AtlasForCausalLM) -> Counted:
    """The mean of 64 tokens behind a prompt: a chunk closes once among them."""
    model.eval()
    cache = model(torch.randint(0, 256, (1, 100)), use_cache=True).past_key_values
    token = torch.randint(0, 256, (1, 1))
    with Counted() as counted:
        for _ in range(64):
            cache = model(token, past_key_values=cache, use_cache=True).past_key_values
    mean = Counter({name: n / 64 for name, n in counted.operations.items()})
    return Counted(mean, round(counted.syncs / 64))


def measure(variant: str) -> dict[str, float]:
    model = build(variant)
    layers = model.config.num_hidden_layers
    step, read, token = training_step(model), reading(model), decoded_token(model)
    return {
        "training step": step.total,
        "training syncs": step.syncs,
        "reading 4096": read.total,
        "reading syncs": read.syncs,
        "token per layer": round(token.total / layers, 1),
        "token syncs": token.syncs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--unknowns", type=int, default=online_chunk.ON_ACCELERATOR)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    online_chunk.UNKNOWNS, projections.BY_TAPS = given.unknowns, ()
    found = {}
    for variant in given.variants.split(","):
        found[variant] = measure(variant)
        print(f"{variant:18}", *(f"{name} {n:>8}" for name, n in found[variant].items()), sep="  ")
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
