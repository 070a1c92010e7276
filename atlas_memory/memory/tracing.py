"""What torch.compile makes graphs of: the parts of a block, and nothing around them.

A graph of all chunks of a text would take minutes to compile and be as long as the text. A graph
of all layers would take as many times longer as there are layers, although they are alike. So the
memory and the book-keeping of a model stay plain Python, and a block that is called from plain
Python is compiled once for all layers of its kind. `compile_chunks` compiles the memory's chunks.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])


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
