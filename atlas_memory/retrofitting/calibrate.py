"""A memory's first maps, solved from a text: it recalls before anything is trained.

Copies of the attention's maps give keys that mean something, but a recalled value must find its
way to the logits of a token, and a key must differ from a thousand others. Both are least squares:

    q = k = C^(-1/2) x              C = E[x x^T]: keys of different tokens are almost orthogonal
    v     = A x, A x_t ~ S^(-1/2) u_w    of the token w itself; u_w is its row of the head, centered
    out   = S^(-1/2)                so that an answer v of w raises the logit of w
    gate  = SiLU(OPEN)              from the map that is 1 at every token, as near as x allows

The key of a token is that of the token before it (taps of the short convolution), so a query finds
what came next. The gate of the layer stays 0: the model still says what the base says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from atlas_memory.layers.memory_layer import MemoryLayer
from atlas_memory.retrofitting.build import base_of, retrofit
from atlas_memory.retrofitting.model import RetrofittedForCausalLM

OPEN = 2.0  # SiLU(2) = 1.76, the read-out's gate of every channel
SMALL = 1e-3  # of the mean eigenvalue, added to all of C
RARE = 2e-2  # the same of S, most of whose weight is on few tokens
LOWER = 0.02  # a feature map's coefficients below its highest degree, which is the sharpest
REMEMBER, WRITE = 9.0, 1.0  # where the gates alpha and eta start, before the sigmoid


@torch.no_grad()
def calibrate(model: RetrofittedForCausalLM, rows: Sequence[Tensor]) -> None:
    """rows: texts of token ids [t], some ten thousand tokens in all.

    Memories that have been trained, which an open gate shows, are left as they are.
    """
    if any(bool(part.gate.any()) for _, part in model.memories()):
        return
    inputs = _inputs(model, rows)
    ids = torch.cat(list(rows)).to(model.device)
    unembedding = _unembedding(model)
    share = torch.bincount(ids, minlength=len(unembedding)).float() / len(ids)
    centered = unembedding - share @ unembedding
    back = _inverse_root((centered * share[:, None]).T @ centered, RARE)
    said = torch.nn.functional.normalize(centered[ids] @ back, dim=1)
    for layer, part in model.memories():
        _solve(part.memory, inputs[layer], said - said.mean(dim=0), back)


def _inputs(model: RetrofittedForCausalLM, rows: Sequence[Tensor]) -> dict[int, Tensor]:
    """What each memory is given at every token of the texts, [tokens, dim].

    The gates are shut, so the base with its window alone shows it, without the memories' work.
    """
    config = model.config
    plain = retrofit(base_of(model), layers=(), window=config.window, sinks=config.sinks)
    seen: dict[int, list[Tensor]] = {layer: [] for layer, _ in model.memories()}

    def look(layer: int, given: dict[str, Any]) -> None:
        seen[layer].append(given["hidden_states"][0].float())

    attentions = {layer: plain.model.layers[layer].self_attn for layer in seen}
    for layer, attention in attentions.items():
        attention.register_forward_pre_hook(lambda _, __, g, n=layer: look(n, g), with_kwargs=True)
    for row in rows:
        plain.model(row[None].to(model.device), use_cache=False)
    return {layer: torch.cat(parts) for layer, parts in seen.items()}


def _unembedding(model: RetrofittedForCausalLM) -> Tensor:
    """How the last hidden state is turned into logits, the final norm's weights included."""
    head: Any = model.lm_head
    weight: Tensor = head.weight.float()
    norm: Any = model.model.base.norm
    return weight * norm(torch.ones_like(head.weight[0])).float()


def _inverse_root(C: Tensor, share: float) -> Tensor:
    """C^(-1/2), `share` of the mean eigenvalue added to all of them."""
    values, vectors = torch.linalg.eigh(C)
    floor = share * values.mean()
    return (vectors * (values.clamp(min=0) + floor).rsqrt()) @ vectors.T


def _solve(memory: MemoryLayer, x: Tensor, said: Tensor, back: Tensor) -> None:
    own, read_out = memory.projections, memory.read_out
    C = x.T @ x / len(x)
    inverse = torch.linalg.inv(C + SMALL * C.diagonal().mean() * torch.eye(len(C)).to(C))
    keys = _inverse_root(C, SMALL)
    own.q_proj.weight.copy_(keys)
    own.k_proj.weight.copy_(keys)
    own.v_proj.weight.copy_(said.T @ x / len(x) @ inverse)
    taps = torch.unflatten(own.conv.weight, 0, (3, -1))
    taps.zero_()
    taps[[0, 2], :, 0] = 1.0
    taps[1, :, 1] = 1.0
    always = inverse @ x.mean(dim=0)
    read_out.gate_proj.weight.copy_(OPEN * always.expand_as(read_out.gate_proj.weight))
    read_out.out_proj.weight.copy_(back)
    if memory.log_coefficients is not None:
        memory.log_coefficients[:, :-1] = torch.tensor(LOWER).log()
    for name, bias in memory.gates._split(memory.gates.bias).items():
        bias.fill_({"alpha": REMEMBER, "eta": WRITE}.get(name, 0.0))
