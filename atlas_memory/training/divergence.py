"""When the loss is no number: what was being read, and what the gates did with it."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from atlas_memory.layers.gates import GateProjections
from atlas_memory.memory import Gates


class DivergedError(Exception):
    """A run whose loss or gradient is not finite."""


def report(
    folder: Path, model: nn.Module | None, batch: dict[str, Tensor], step: int, what: str
) -> DivergedError:
    """Save the step, the batch and the statistics of the gates; return what to raise.

    model: None where one process cannot run it alone.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: x.detach().cpu().contiguous().clone() for name, x in batch.items()}
    save_file(tensors, folder / "batch.safetensors")
    found: dict[str, Any] = {"step": step, "what": what}
    if model is not None:
        found["gates"] = gate_statistics(model, batch)
        parameters = dict(model.named_parameters())
        found["parameters_not_finite"] = [
            name for name, p in parameters.items() if not bool(torch.isfinite(p).all())
        ]
    (folder / "report.json").write_text(json.dumps(found, indent=2) + "\n")
    return DivergedError(
        f"{what} at step {step}; the batch and the gates' statistics are in {folder}; "
        "resume from the last checkpoint with a lower train.learning_rate"
    )


def gate_statistics(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Any]:
    """Lowest, mean and highest value of every gate of every memory layer on a batch."""
    seen: dict[str, Any] = {}

    def listen(name: str) -> Any:
        def hear(module: nn.Module, inputs: Any, gates: Gates) -> None:
            seen[name] = {
                gate: _range(value)
                for gate in ("alpha", "eta", "theta", "gamma")
                if (value := getattr(gates, gate)) is not None
            }

        return hear

    layers = [(n, m) for n, m in model.named_modules() if isinstance(m, GateProjections)]
    hooks = [layer.register_forward_hook(listen(name)) for name, layer in layers]
    try:
        with torch.no_grad():
            model(input_ids=batch["input_ids"], position_ids=batch.get("position_ids"))
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def _range(x: Tensor) -> dict[str, float]:
    x = x.detach().double()
    return {"lowest": x.min().item(), "mean": x.mean().item(), "highest": x.max().item()}
