"""Sliding-window attention with sinks: what a pretrained attention becomes.

A token sees the last `window` tokens and the first `sinks` ones of its text, on which pretrained
models put the weight that they do not need elsewhere. Inside the window this is full attention,
computed by the call that transformers makes. Sinks that have left the window are seen as if they
lay right before it, so no distance is larger than any the model was trained with, however long
the text. (StreamingLLM, Xiao et al. 2024)
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from atlas_memory.layers.kv_cache import KVCache
from atlas_memory.layers.rows import Lengths
from atlas_memory.layers.softmax import visibility
from atlas_memory.memory.tree import State


@dataclass(frozen=True, repr=False)
class WindowState(State):
    """The window's slots, the text's first pairs, and the position of each row's next token."""

    cache: KVCache
    sinks: KVCache
    position: Tensor  # [b]


@dataclass(frozen=True)
class Sinks:
    """The first pairs of documents, as slots beside the window. All of [b, m] or [b, t, m].

    index: of their tokens in the row; negative ones came earlier and are in the state, `place`
    being which. visible: to which tokens. back: by how much each token is turned to see them.
    """

    index: Tensor
    place: Tensor
    visible: Tensor
    back: Tensor  # [b, t]


def first_pairs(past: KVCache, k: Tensor, v: Tensor, index: Tensor, place: Tensor) -> KVCache:
    """Pairs [b, m] from the row k, v [b, t, h, d] or, where the index is negative, from before."""
    now = index.clamp(0, k.shape[1] - 1)[:, :, None, None]
    before = (index < 0)[:, :, None, None]
    older = place[:, :, None, None]
    picked = [
        torch.where(
            before, torch.take_along_dim(o.to(x.dtype), older, 1), torch.take_along_dim(x, now, 1)
        )
        for o, x in ((past.keys, k), (past.values, v))
    ]
    return KVCache(*picked)


def carried_sinks(
    past: KVCache, k: Tensor, v: Tensor, after: Tensor, lengths: Lengths | None
) -> KVCache:
    """The first pairs of the document that each row is in now; zeros where it is shorter."""
    sinks, time = past.slots, k.shape[1]
    if not sinks:
        return past
    place = torch.arange(sinks, device=k.device).expand(len(k), -1)
    end = after.new_full((len(k),), time) if lengths is None else lengths
    index = (end - after)[:, None] + place
    found = first_pairs(past, k, v, index, place)
    there = (place < after[:, None])[:, :, None, None]
    return KVCache(found.keys * there, found.values * there)


@dataclass(frozen=True)
class Call:
    """How a pretrained attention asks for its answers, and how far it sees."""

    module: nn.Module
    scaling: float
    dropout: float
    window: int | None
    sinks: int

    def attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """softmax(q k^T scaling) v, all of them [b, t, h, d], as transformers computes it."""
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        mask = mask[:, None] if mask is not None and mask.ndim == 3 else mask
        answers, _ = sdpa_attention_forward(
            self.module, q, k, v, mask, dropout=self.dropout, scaling=self.scaling
        )
        return answers


def attend_all(call: Call, q: Tensor, slots: KVCache, document: Tensor | None) -> Tensor:
    """Every token sees every slot up to its own, of its own document."""
    time, older = q.shape[1], slots.slots - q.shape[1]
    mask = visibility(document, time, older, time + older, q.device)
    return call.attend(q, slots.keys, slots.values, mask)


def attend_window(
    call: Call,
    q: Tensor,
    slots: KVCache,
    document: Tensor | None,
    sinks: tuple[Tensor, KVCache, Tensor] | None,
) -> Tensor:
    """Blocks of at most `window` queries see the slots of their window, and the sinks.

    slots: window - 1 older ones and those of the queries. sinks: the queries turned to see them,
    their pairs, and to which tokens they are visible.
    """
    time, older, window = q.shape[1], slots.slots - q.shape[1], call.window
    assert window is not None
    block = min(window, time)
    padding = -time % block
    if document is None and padding:
        document = torch.zeros(slots.keys.shape[:2], dtype=torch.int64, device=q.device)
    if document is not None:
        document = F.pad(document, (0, padding), value=-1)
        document = document.unfold(1, older + block, block).flatten(0, 1)
    mask = visibility(document, block, older, window, q.device)
    k, v = (_blocks(_padded(x, padding), older + block, block) for x in (slots.keys, slots.values))
    queries = _blocks(_padded(q, padding), block, block)
    if sinks is None:
        answers = call.attend(queries, k, v, mask)
    else:
        turned, pairs, visible = sinks
        turned = _blocks(_padded(turned, padding), block, block)
        visible = F.pad(visible, (0, 0, 0, padding)).unflatten(1, (-1, block)).flatten(0, 1)
        answers = _with_sinks(call, queries, k, v, mask, turned, pairs, visible)
    return answers.reshape(len(q), time + padding, *answers.shape[2:])[:, :time]


def _with_sinks(
    call: Call,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    turned: Tensor,
    pairs: KVCache,
    visible: Tensor,
) -> Tensor:
    """One softmax over window and sinks, which are seen with other queries.

    (q, q') . (k, 0) = q . k for the window and (q, q') . (0, k) = q' . k for the sinks.
    """
    d, each = q.shape[-1], len(q) // len(pairs.keys)
    if mask is None:
        mask = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device=q.device).tril()
    mask = torch.cat([visible, mask.expand(len(q), -1, -1)], dim=2)
    first, values = (x.repeat_interleave(each, 0) for x in (pairs.keys, pairs.values))
    k = torch.cat([F.pad(first, (d, 0)), F.pad(k, (0, d))], dim=1)
    v = F.pad(torch.cat([values, v], dim=1), (0, d))
    return call.attend(torch.cat([q, turned], dim=-1), k, v, mask)[..., :d]


def _padded(x: Tensor, padding: int) -> Tensor:
    return F.pad(x, (0, 0, 0, 0, 0, padding))


def _blocks(x: Tensor, size: int, step: int) -> Tensor:
    """[b, s, h, d] -> [b * blocks, size, h, d], blocks that begin `step` apart."""
    return x.unfold(1, size, step).permute(0, 1, 4, 2, 3).flatten(0, 1)
