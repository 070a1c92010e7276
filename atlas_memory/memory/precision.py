"""Where autocast has no say: states, decays, solves and sums stay in the precision they are in."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def as_given(x: Tensor) -> AbstractContextManager[Any]:
    """No autocast on the device of x; the meta device knows none."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)
