"""Functions whose backward pass is written out."""

from typing import TYPE_CHECKING, Any

import torch


class OwnBackward(torch.autograd.Function):
    """torch's class, for which a type checker knows `apply`."""

    if TYPE_CHECKING:

        @classmethod
        def apply(cls, *given: Any) -> Any: ...
