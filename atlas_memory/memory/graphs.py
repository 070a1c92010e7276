"""What torch is told around the equations: autocast, autograd, constants and torch.compile.

A graph of all chunks of a text would take minutes to compile and be as long as the text. A graph
of all layers would take as many times longer as there are layers, although they are alike. So the
memory and the book-keeping of a model stay plain Python, and a block that is called from plain
Python is compiled once for all layers of its kind. `compile_chunks` compiles the memory's chunks.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import torch
from torch import Tensor

Function = TypeVar("Function", bound=Callable[..., Any])
Arguments = ParamSpec("Arguments")
Made = TypeVar("Made")


def untraced(function: Function) -> Function:
    """Never compiled, nor what it calls: its course depends on values and lengths."""
    plain: Function = torch.compiler.disable(function, reason="it depends on values and lengths")
    return plain


def untraced_frame(function: Function) -> Function:
    """Not compiled itself, but what it calls is, each on its own."""
    plain: Function = torch.compiler.disable(
        function, recursive=False, reason="what it calls is compiled, once for all layers alike"
    )
    return plain


_compiles = False


def compile_chunks(on: bool = True) -> None:
    """Compile the body of a chunk with torch.compile from now on; off again with False.

    Worth its 20 to 40 seconds per spec and shape in a long training run of a deep memory. Rules
    that need a matrix per token and linear memories stay as they are.
    """
    global _compiles
    _compiles = on


def chunk_body(make: Callable[..., Made], *choices: Any) -> Made:
    """make(*choices), compiled once for all chunks alike where `compile_chunks` asks for it."""
    return _compiled(make, *choices) if _compiles else make(*choices)


@lru_cache(maxsize=64)
def _compiled(make: Callable[..., Any], *choices: Any) -> Any:
    return torch.compile(make(*choices), dynamic=False)


def as_given(x: Tensor) -> AbstractContextManager[Any]:
    """No autocast on the device of x: states, decays, solves and sums stay as precise as they are.

    The meta device knows no autocast.
    """
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


class _NoGraph:
    """Stands for the node of a graph where there is none: keeps nothing."""

    def save_for_backward(self, *tensors: Any) -> None:
        pass


class OwnBackward(torch.autograd.Function):
    """A function whose backward pass is written out; a type checker knows `apply`."""

    if TYPE_CHECKING:

        @classmethod
        def apply(cls, *given: Any) -> Any: ...

    @classmethod
    def run(cls, *given: Any) -> Any:
        """`apply`; without gradients `forward` alone, for a node costs more than a token's work."""
        if torch.is_grad_enabled():
            return cls.apply(*given)
        return cls.forward(_NoGraph(), *given)


def table(make: Callable[Arguments, Made]) -> Callable[Arguments, Made]:
    """Keep what `make` returns, which follows from shapes alone.

    Unless a tracer is at work: its tensors are not for later calls.
    """
    kept: Callable[..., Made] = lru_cache(maxsize=64)(torch.inference_mode(False)(make))

    @wraps(make)
    def get(*args: Arguments.args, **named: Arguments.kwargs) -> Made:
        traced = torch.compiler.is_compiling() or type(torch.empty(0)) is not Tensor
        return make(*args, **named) if traced else kept(*args, **named)

    return get


@table
def scalar(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full((), value, dtype=dtype, device=device)


@table
def count(n: int, device: torch.device) -> Tensor:
    """0, 1, .. n - 1."""
    return torch.arange(n, device=device)
