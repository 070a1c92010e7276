"""The linear rows of Table 1, each against its own recurrence written out.

150 tokens in both forms, outputs and final matrix, to 1e-9.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import atlas_memory as am
from tests.memory.cases import Sizes, draw, package
from tests.memory.grid import BEFORE, matrix
from tests.paper.recurrences import FORMS, LINEAR, T, agree, erase, outer, recurrence, tokens, wide


@FORMS
def test_linear_attention(form: str) -> None:
    """M + v k^T"""
    spec = matrix(bias=LINEAR)
    p = replace(draw(spec, T), gates=am.Gates())
    kv = tokens(p)
    agree(p, spec, form, lambda M, t: M + outer(kv[t][1], kv[t][0]))


@FORMS
def test_polynomial_linear_attention(form: str) -> None:
    """PolySketchFormer's row with exact features: y = sum_i p(q.k_i) v_i."""
    spec = matrix(bias=LINEAR, features=am.Polynomial(3))
    p = draw(spec, T)
    p = replace(p, gates=am.Gates(), weights=(torch.zeros_like(p.weights[0]),))
    dots = p.q @ p.k.mT
    scores = sum(a * dots**i for i, a in enumerate(p.coefficients))
    y, _ = package(p, spec, form)
    torch.testing.assert_close(y, scores.tril() @ p.v, rtol=1e-9, atol=1e-9)


@FORMS
def test_retnet(form: str) -> None:
    """alpha M + v k^T, one alpha per head"""
    spec = matrix(bias=LINEAR, retention=am.FixedRetention())
    p = draw(spec, T)
    alpha = 1 - 2.0 ** (-5 - torch.arange(2, dtype=torch.float64))
    p, kv = replace(p, gates=am.Gates(alpha=alpha)), tokens(p)
    agree(p, spec, form, lambda M, t: wide(alpha) * M + outer(kv[t][1], kv[t][0]))


@FORMS
def test_mamba2(form: str) -> None:
    """exp(-dt a) M + dt v k^T, the scalar decay and the step made from one dt"""
    spec = matrix(bias=LINEAR, retention=am.ScalarRetention())
    p = draw(spec, T)
    dt = p.gates.eta
    alpha = torch.exp(-dt * torch.tensor([1.0, 4.0], dtype=torch.float64)[:, None])
    p, kv = replace(p, gates=am.Gates(alpha=alpha, eta=dt)), tokens(p)
    agree(
        p,
        spec,
        form,
        lambda M, t: wide(alpha[:, :, t]) * M + wide(dt[:, :, t]) * outer(*kv[t][::-1]),
    )


@FORMS
@pytest.mark.parametrize("low", [0.9, 0.05], ids=["mild", "strong"])
def test_gla(form: str, low: float) -> None:
    """M diag(alpha_t) + v k^T; a strong decay underflows where its inverse would overflow"""
    spec = matrix(bias=LINEAR, retention=am.ChannelRetention())
    p = draw(spec, T)
    alpha = low + (1 - low) * (p.gates.alpha - 0.9) * 10
    p, kv = replace(p, gates=am.Gates(alpha=alpha)), tokens(p)
    agree(p, spec, form, lambda M, t: M * alpha[:, :, t, None, :] + outer(kv[t][1], kv[t][0]))


@FORMS
@pytest.mark.parametrize("beta", [None, 1.0, 1.9], ids=["drawn", "overwrite", "reflect"])
def test_deltanet(form: str, beta: float | None) -> None:
    """M (I - beta k k^T) + beta v k^T"""
    p = draw(matrix(), T)
    eta = p.gates.eta if beta is None else torch.full_like(p.gates.eta, beta)
    p, kv = replace(p, gates=am.Gates(eta=eta)), tokens(p)

    def step(M: Tensor, t: int) -> Tensor:
        return erase(M, kv[t][0], eta[:, :, t]) + wide(eta[:, :, t]) * outer(kv[t][1], kv[t][0])

    agree(p, matrix(), form, step)


# M, k, v, alpha and eta of a token -> M. RWKV-7's decay does not reach the gradient.
FORGETFUL: dict[str, tuple[am.MemorySpec, Callable[..., Tensor]]] = {
    "gated_deltanet: alpha M (I - beta k k^T) + beta v k^T": (
        matrix(retention=BEFORE),
        lambda M, k, v, a, b: erase(wide(a) * M, k, b) + wide(b) * outer(v, k),
    ),
    "after the gradient: M (alpha I - beta k k^T) + beta v k^T": (
        matrix(retention=am.ScalarRetention()),
        lambda M, k, v, a, b: erase(M, k, b) - wide(1 - a) * M + wide(b) * outer(v, k),
    ),
    "rwkv7: M (diag(alpha) - beta k k^T) + beta v k^T": (
        matrix(retention=am.ChannelRetention()),
        lambda M, k, v, a, b: (
            M @ (torch.diag_embed(a) - wide(b) * outer(k, k)) + wide(b) * outer(v, k)
        ),
    ),
}


@FORMS
@pytest.mark.parametrize("low", [0.9, 1e-4], ids=["mild", "strong"])
@pytest.mark.parametrize(("spec", "step"), FORGETFUL.values(), ids=FORGETFUL)
def test_rows_that_forget(
    spec: am.MemorySpec, step: Callable[..., Tensor], low: float, form: str
) -> None:
    p = draw(spec, T)
    alpha, eta = low + (1 - low) * (p.gates.alpha - 0.9) * 10, 4 * p.gates.eta
    p, kv = replace(p, gates=am.Gates(alpha=alpha, eta=eta)), tokens(p)
    agree(p, spec, form, lambda M, t: step(M, *kv[t], alpha[:, :, t], eta[:, :, t]))


@FORMS
def test_longhorn(form: str) -> None:
    """The minimizer of |M' - M|^2 + beta |M' k - v|^2, found by solving for it"""
    spec = matrix(optimizer=am.Implicit())
    p = draw(spec, T)
    p = replace(p, k=3 * p.k, gates=am.Gates(eta=p.gates.eta * 20))
    kv, beta = tokens(p), p.gates.eta

    def step(M: Tensor, t: int) -> Tensor:
        k, v = kv[t]
        left = torch.eye(4, dtype=torch.float64) + wide(beta[:, :, t]) * outer(k, k)
        right = M + wide(beta[:, :, t]) * outer(v, k)
        return torch.linalg.solve(left, right.mT).mT

    agree(p, spec, form, step)


@FORMS
def test_linear_rows_have_exact_gradients(form: str) -> None:
    """The triangular solve, differentiated: against autograd through the recurrence."""
    spec = matrix(retention=BEFORE)
    p, leaf = draw(spec, T).leaves()
    kv, gates = tokens(p), p.gates
    eta = gates.eta * gates.gamma[..., 0]

    def step(M: Tensor, t: int) -> Tensor:
        kept = erase(wide(gates.alpha[:, :, t]) * M, kv[t][0], eta[:, :, t])
        return kept + wide(eta[:, :, t]) * outer(kv[t][1], kv[t][0])

    y, state = package(p, spec, form)
    expected, M = recurrence(p, step)
    found = torch.autograd.grad(y.sin().sum() + state.weights[0].sin().sum(), list(leaf.values()))
    right = torch.autograd.grad(expected.sin().sum() + M.sin().sum(), list(leaf.values()))
    for name, a, b in zip(leaf, found, right, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7, msg=lambda m, n=name: f"{n}: {m}")


@FORMS
def test_gated_deltanet_equals_transformers(form: str) -> None:
    """Qwen3-Next's own implementation: [b, t, h, d], log decay, queries scaled, float32 inside."""
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

    spec = matrix(retention=BEFORE)
    p = draw(spec, T, Sizes(dk=6, dv=5))
    p = replace(p, gates=am.Gates(alpha=p.gates.alpha, eta=4 * p.gates.eta))
    theirs, last = torch_chunk_gated_delta_rule(
        p.q.transpose(1, 2) * 6**0.5,
        p.k.transpose(1, 2),
        p.v.transpose(1, 2),
        g=p.gates.alpha.log().transpose(1, 2),
        beta=p.gates.eta.transpose(1, 2),
        initial_state=p.weights[0].mT.expand(2, -1, -1, -1),
        output_final_state=True,
    )
    y, state = package(p, spec, form)
    torch.testing.assert_close(y, theirs.transpose(1, 2).double(), rtol=1e-4, atol=2e-6)
    torch.testing.assert_close(state.weights[0], last.mT.double(), rtol=1e-4, atol=2e-6)
