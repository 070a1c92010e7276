"""Matrix products of the memory, of factors as they are or rounded to bfloat16.

Only what enters a product is rounded: sums, solves, decays and states stay in float32, and so does
the product where the device can (an accelerator; a processor without instructions for bfloat16
multiplies the rounded factors in float32, which is as exact and no faster). Which of the two is
for `memorize` to say; a function whose backward pass is written out remembers it (`graphs.py`).
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from atlas_memory.memory.graphs import OwnBackward
from atlas_memory.memory.native import functions as native
from atlas_memory.memory.native.library import served
from atlas_memory.memory.precision import rounds

PRODUCTS = ("float32", "bfloat16")
# Whether the processor has instructions for it. That torch can do it says less: without them it is
# slower, and rounds what comes out as well.
_told: Any = getattr(torch.cpu, "get_capabilities", dict)()
PROCESSOR_ROUNDS = any(_told.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def require_products(given: str, field: str = "products") -> None:
    if given not in PRODUCTS:
        raise ValueError(f"{field}={given!r}; choose from: {', '.join(PRODUCTS)}")


def bmm(a: Tensor, b: Tensor) -> Tensor:
    if served((a, b)):
        return native.Product.run(a, b)
    return _Rounded.run(a, b) if rounds() else torch.bmm(a, b)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """a b; a token's small products [b, h, ..] are never rounded, for it would take longer."""
    return bmm(a, b) if a.dim() == b.dim() == 3 else a @ b


def baddbmm(x: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta x + alpha a b."""
    if not rounds() and not served((x, a, b)):
        return torch.baddbmm(x, a, b, beta=beta, alpha=alpha)
    return torch.add(x if beta == 1 else beta * x, bmm(a, b), alpha=alpha)


def baddbmm_(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """x + a b, in the place of x."""
    if served((x, a, b)):
        return native.onto(x, a, b)
    return x.add_(_Rounded.run(a, b)) if rounds() else x.baddbmm_(a, b)


class _Rounded(OwnBackward):
    """a b of matrices [g, .., ..] in bfloat16, and so its gradients."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        dtype, a, b = a.dtype, a.to(torch.bfloat16), b.to(torch.bfloat16)
        ctx.save_for_backward(a, b)
        return _product(a, b).to(dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        dtype, g = g.dtype, g.to(torch.bfloat16)
        return _product(g, b.mT).to(dtype), _product(a.mT, g).to(dtype)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Of bfloat16, in float32 if the device can keep the sums."""
    if a.is_cuda:
        return torch.bmm(a, b, out_dtype=torch.float32)
    if a.device.type == "cpu" and not PROCESSOR_ROUNDS:
        return torch.bmm(a.float(), b.float())
    return torch.bmm(a, b).float()
