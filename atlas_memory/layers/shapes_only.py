"""Build modules for their shapes alone: parameters on the meta device, no random numbers."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode


def num_parameters(module: nn.Module) -> int:
    """All learned numbers, tied ones counted once."""
    return sum(parameter.numel() for parameter in module.parameters())


class ShapesOnly(TorchFunctionMode):
    """Inside this context `torch.empty` takes no memory and `torch.nn.init` does nothing.

    The whole meta device would do too, but drawing numbers or taking a logarithm on it loads
    half a compiler: seconds where a count takes milliseconds.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if func is torch.empty:
            return func(*args, **{**given, "device": "meta"})
        if getattr(func, "__module__", "") == "torch.nn.init":
            return given.get("tensor", args[0] if args else None)
        return func(*args, **given)
