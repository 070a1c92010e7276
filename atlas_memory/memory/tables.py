"""Tensors that follow from shapes alone: made once, and kept."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

Function = TypeVar("Function", bound=Callable[..., Any])


def table(make: Function) -> Function:
    """Keep what `make` returns, unless a tracer is at work: its tensors are not for later calls."""
    kept = lru_cache(maxsize=64)(torch.inference_mode(False)(make))

    @wraps(make)
    def get(*args: Any) -> Any:
        traced = torch.compiler.is_compiling() or type(torch.empty(0)) is not Tensor
        return make(*args) if traced else kept(*args)

    return get  # type: ignore[return-value]


@table
def scalar(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full((), value, dtype=dtype, device=device)


@table
def count(n: int, device: torch.device) -> Tensor:
    """0, 1, .. n - 1."""
    return torch.arange(n, device=device)
