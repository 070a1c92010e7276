"""One plain training loop for synthetic tasks; it goes on where a killed one stopped.

A batch is a pure function of the step, so that the weights, the optimizer and torch's generator
are all there is to keep: a resumed fit is the same, bit for bit.
"""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from atlas_memory.files import whole
from atlas_memory.training.weight_decay import decay_groups

if TYPE_CHECKING:
    from atlas_memory.experiments.experiment import Workspace

IGNORED = -100
SCHEDULES = ("cosine", "constant")
SECONDS_BETWEEN_CHECKPOINTS = 30.0
CHECKPOINT = "fit.pt"


@dataclass
class Fitted:
    """history: per evaluation the step, the mean loss since the last one, and the figures."""

    history: list[dict[str, Any]] = field(default_factory=list)
    steps: int = 0
    seconds: float = 0.0
    finite: bool = True
    finished: bool = False
    losses: list[float] = field(default_factory=list)

    @property
    def last(self) -> dict[str, Any]:
        return self.history[-1] if self.history else {}


def labelled_loss(model: Any, batch: Any) -> Tensor:
    """Cross entropy of an AtlasForCausalLM at the labelled positions; labels are NOT shifted.

    batch = (ids [b, t], labels [b, t]), the label of position t is what is said there, -100 is
    none. The head is applied at the labelled positions only.
    """
    ids, labels = batch
    asked = labels != IGNORED
    hidden = model.model(ids, use_cache=False).last_hidden_state[asked]
    return F.cross_entropy(model.lm_head(hidden).float(), labels[asked])


def asked_loss(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The same of a model of an experiment's own, which gives what its `head` reads."""
    ids, targets = batch
    asked = targets != IGNORED
    return F.cross_entropy(model.head(model(ids)[asked]), targets[asked])


@dataclass(frozen=True)
class Rate:
    """The learning rate: a linear warmup to the peak, then constant or a cosine to `final`."""

    peak: float
    schedule: str = "cosine"
    warmup: int = 0
    final: float = 0.0

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            choices = ", ".join(SCHEDULES)
            raise ValueError(f"unknown schedule {self.schedule!r}; choose from: {choices}")

    def at(self, step: int, steps: int) -> float:
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        if self.schedule == "constant":
            return self.peak
        share = (step - self.warmup) / max(1, steps - self.warmup)
        return self.final + (self.peak - self.final) * 0.5 * (1 + math.cos(math.pi * share))


def fit(
    model: nn.Module,
    batches: Callable[[int], Any],
    *,
    steps: int,
    rate: Rate,
    workspace: Workspace | None = None,
    weight_decay: float = 0.0,
    groups: list[dict[str, Any]] | None = None,
    betas: tuple[float, float] = (0.9, 0.95),
    clip: float | None = 1.0,
    loss: Callable[[Any, Any], Tensor] = labelled_loss,
    evaluate: Callable[[], dict[str, float]] | None = None,
    every: int = 100,
    stop_at: float | None = None,
) -> Fitted:
    """Train `model` in place, where it lies, on batches(0), batches(1), ...

    evaluate() gives figures every `every` steps and at the end; the fit ends early when its
    "accuracy" reaches `stop_at`, and when the loss is not finite. In a workspace it is kept on disk
    and goes on from there, under autocast of its precision. Weights decay by the rule of
    `weight_decay.py`, unless the parameters come in `groups` of their own.
    """
    groups = groups or decay_groups(model, weight_decay)
    optimizer = torch.optim.AdamW(groups, lr=rate.peak, betas=betas)
    kept = _Checkpoint(workspace.folder if workspace else None, model, optimizer)
    loss = _under(workspace.precision if workspace else None, loss)
    fitted = kept.load()
    while not fitted.finished:
        began, step = time.monotonic(), fitted.steps
        for group in optimizer.param_groups:
            group["lr"] = rate.at(step, steps)
        model.train()
        fitted.losses.append(_step(model, optimizer, loss, batches(step), clip))
        fitted.steps, fitted.finite = step + 1, math.isfinite(fitted.losses[-1])
        fitted.finished = fitted.steps == steps or not fitted.finite
        if fitted.steps % every == 0 or fitted.finished:
            _evaluate(model, fitted, evaluate, stop_at)
            if workspace:
                workspace.say(_line(fitted, steps))
        fitted.seconds += time.monotonic() - began
        kept.save(fitted, now=fitted.finished)
    return fitted


def device_of(model: nn.Module) -> torch.device:
    return next((x.device for x in model.parameters()), torch.device("cpu"))


def placed(batch: Any, device: torch.device) -> Any:
    """The tensors of a batch on a device; what else is in it as it is."""
    return tree_map_only(Tensor, lambda x: x.to(device), batch)


def _under(precision: str | None, loss: Callable[[Any, Any], Tensor]) -> Callable[..., Tensor]:
    """The loss under autocast; its backward pass needs none of its own."""
    if precision is None or precision == "float32":
        return loss

    def cast(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast(device_of(model).type, getattr(torch, precision)):
            return loss(model, batch)

    return cast


def _step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[Any, Any], Tensor],
    batch: Any,
    clip: float | None,
) -> float:
    """One step of the optimizer; a loss that is not finite changes nothing."""
    value = loss(model, placed(batch, device_of(model)))
    if not math.isfinite(figure := value.item()):
        return figure
    optimizer.zero_grad(set_to_none=True)
    value.backward()
    if clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    return figure


def _evaluate(
    model: nn.Module,
    fitted: Fitted,
    evaluate: Callable[[], dict[str, float]] | None,
    stop_at: float | None,
) -> None:
    model.eval()
    with torch.no_grad():
        figures = evaluate() if evaluate is not None and fitted.finite else {}
    mean = sum(fitted.losses) / len(fitted.losses)
    fitted.history.append({"step": fitted.steps, "loss": mean, **figures})
    fitted.losses = []
    if stop_at is not None and figures.get("accuracy", -math.inf) >= stop_at:
        fitted.finished = True


def _line(fitted: Fitted, steps: int) -> str:
    figures = {k: v for k, v in fitted.last.items() if k != "step" and isinstance(v, float)}
    shown = ", ".join(f"{name} {value:.4g}" for name, value in figures.items())
    return f"step {fitted.steps}/{steps}: {shown}"


class _Checkpoint:
    """The fit on disk, every half minute and at its end; written whole or not at all."""

    def __init__(
        self, folder: Path | None, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        self.path = None if folder is None else folder / CHECKPOINT
        self.model, self.optimizer, self.saved = model, optimizer, time.monotonic()

    def load(self) -> Fitted:
        """What is on disk, put into model and optimizer; a new fit if there is none, or broken."""
        if self.path is None or not self.path.is_file():
            return Fitted()
        try:
            kept = torch.load(self.path, weights_only=True, map_location="cpu")
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError):
            return Fitted()
        self.model.load_state_dict(kept["model"])
        self.optimizer.load_state_dict(kept["optimizer"])
        torch.set_rng_state(kept["generator"])
        return Fitted(**kept["fitted"])

    def save(self, fitted: Fitted, now: bool) -> None:
        due = time.monotonic() - self.saved >= SECONDS_BETWEEN_CHECKPOINTS
        if self.path is None or not (now or due):
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        kept = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generator": torch.get_rng_state(),
            "fitted": asdict(fitted),
        }
        with whole(self.path) as draft:
            torch.save(kept, draft)
        self.saved = time.monotonic()
