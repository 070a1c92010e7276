"""Which model a memory belongs to: its layers, its precision and every one of its weights."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from atlas_memory.model import AtlasForCausalLM


@dataclass(frozen=True)
class Fingerprint:
    """layers: name, shape and digest of the architecture. weights: digest of the parameters."""

    layers: str
    precision: str
    weights: str

    def require(self, model: Fingerprint, what: str) -> None:
        """Refuse, of a memory made by this, any other model than `model`."""
        if self.layers != model.layers:
            raise ValueError(
                f"{what} belongs to another model: {self.layers} made it, and this is "
                f"{model.layers}"
            )
        if self.precision != model.precision:
            raise ValueError(
                f"{what} was made in {self.precision} and this model is in {model.precision}; "
                f"load the model in {self.precision}"
            )
        if self.weights != model.weights:
            raise ValueError(
                f"{what} belongs to another model: one with the same layers but weights "
                f"{self.weights}, and this has weights {model.weights}"
            )


def fingerprint(model: AtlasForCausalLM) -> Fingerprint:
    """Reads every parameter once, a fraction of a second per gigabyte."""
    digest = sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(raw_bytes(tensor))
    precision = str(model.dtype).removeprefix("torch.")
    return Fingerprint(model.config.fingerprint(), precision, digest.hexdigest()[:16])


def raw_bytes(tensor: Tensor) -> memoryview:
    """The numbers of a tensor as they lie in memory."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data
