"""A model and its tokenizer from a run of `atlas train`, or from any folder that holds both."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atlas_memory.data.tokenizer import Tokenizer, load_tokenizer, require_tokenizer
from atlas_memory.names import reason

if TYPE_CHECKING:
    from atlas_memory.model import AtlasForCausalLM

MODELS = ("atlas_memory", "atlas_retrofit")
WEIGHTS = (".safetensors", ".bin")
PRECISIONS = ("float32", "bfloat16", "float16", "float64")
DEVICES = ("cpu", "cuda", "mps", "xpu")  # and cuda:0, cuda:1 ..


@dataclass(frozen=True)
class Loaded:
    """What reads and writes text."""

    model: AtlasForCausalLM
    tokenizer: Tokenizer


def load_run(
    run: Path, precision: str | None = None, tokenizer: str | None = None, device: str = "cpu"
) -> Loaded:
    """The best model of a run, or the newest of one that is not done; a saved model's folder.

    precision: what its weights are turned into; None keeps what was saved.
    """
    folder = require_run(run, precision, tokenizer, device)
    require_there(device)
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=precision or "auto")
    except Exception as error:
        # safetensors, json and transformers each raise their own for a damaged file
        raise ValueError(f"{folder} holds no whole model: {reason(error)}") from error
    model = model.eval().to(device)
    return Loaded(model, _tokenizer(run, folder, tokenizer, model.config.vocab_size))


def require_device(device: str) -> None:
    """Refuse what is no name of a device."""
    kind, colon, number = device.partition(":")
    if kind not in DEVICES or (colon and not number.isdecimal()):
        raise ValueError(f"unknown device {device!r}; choose from: {', '.join(DEVICES)}, cuda:1")


def require_there(device: str) -> None:
    """Refuse a device that torch does not see."""
    import torch

    kind, _, number = device.partition(":")
    if kind == "cpu":
        return
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if found is None or found.type != kind:
        seen = "only cpu" if found is None else f"cpu and {found.type}"
        raise ValueError(f"device {device!r} is not there: this torch sees {seen}")
    if int(number or 0) >= torch.accelerator.device_count():
        raise ValueError(
            f"device {device!r} is not there: there are {torch.accelerator.device_count()}, "
            "counted from 0"
        )


def require_run(
    run: Path, precision: str | None = None, tokenizer: str | None = None, device: str = "cpu"
) -> Path:
    """The model's folder; what is wrong or missing is told before anything heavy is imported."""
    require_device(device)
    if precision is not None and precision not in PRECISIONS:
        raise ValueError(f"unknown precision {precision!r}; choose from: {', '.join(PRECISIONS)}")
    folder = model_folder(run)
    if not any(file.suffix in WEIGHTS for file in folder.iterdir()):
        raise ValueError(f"{folder} holds no whole model: it has a config.json and no weights")
    require_tokenizer(_tokenizer_name(run, folder, tokenizer))
    return folder


def model_folder(run: Path) -> Path:
    """Where the model of a run lies."""
    from atlas_memory.training.checkpoints import newest_whole

    if not run.is_dir():
        raise ValueError(f"{run} is no folder; give a run of `atlas train` or a saved model")
    for folder in (run / "model", run):
        if _json(folder / "config.json").get("model_type") in MODELS:
            return folder
    newest = newest_whole(run / "checkpoints", lambda _: None)
    if newest is None:
        raise ValueError(f"{run} holds no model of atlas_memory: no config.json says it is one")
    return newest


def _json(file: Path) -> dict[str, Any]:
    try:
        plain = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return plain if isinstance(plain, dict) else {}


def _tokenizer(run: Path, folder: Path, given: str | None, ids: int) -> Tokenizer:
    loaded = load_tokenizer(_tokenizer_name(run, folder, given))
    if loaded.vocab_size > ids:
        raise ValueError(
            f"tokenizer {loaded.name!r} has {loaded.vocab_size} ids and the model only {ids}; "
            "give the tokenizer that the model was trained with"
        )
    return loaded


def _tokenizer_name(run: Path, folder: Path, given: str | None) -> str:
    """The one asked for, else the run's own; a model of bytes needs no file for it."""
    if given is not None:
        return given
    recipe = _json(run / "recipe.json")
    data, pretrained = recipe.get("data"), (recipe.get("retrofit") or {}).get("base")
    name = data.get("tokenizer") if isinstance(data, dict) and not pretrained else None
    if name == "bytes":
        return name
    if any((folder / file).is_file() for file in ("tokenizer.json", "tokenizer_config.json")):
        return str(folder)
    raise ValueError(f"{folder} has no tokenizer; name one with --tokenizer, such as bytes")
