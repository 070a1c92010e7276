"""Softmax attention over slots: over all of them, or over a sliding window, block by block.

A slot is an entry of the past or the present: a key, a value and the number of its document, -1
for a slot that does not exist. The queries are those of the last slots. A prefix is a set of
pairs that every query sees.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

Queries = Tensor  # [b, t, h, d]
Slots = Tensor  # [b, s, h, d]
Documents = Tensor  # int64 [b, s]
Prefix = tuple[Tensor, Tensor]  # keys and values, [p, h, d]


def full_attention(
    q: Queries, k: Slots, v: Slots, document: Documents | None, prefix: Prefix | None = None
) -> Queries:
    """Token t attends to every slot up to its own, of its own document."""
    time, older = q.shape[1], k.shape[1] - q.shape[1]
    return attend(q, k, v, visibility(document, time, older, time + older, q.device), prefix)


def sliding_window_attention(
    q: Queries,
    k: Slots,
    v: Slots,
    document: Documents | None,
    window: int,
    prefix: Prefix | None = None,
) -> Queries:
    """Token t attends to slots t - window + 1 .. t of its own document, in O(t * window).

    Blocks of `window` queries see their own slots and the ones before them, so nothing is ever
    as large as t x t. Needs window - 1 slots older than the first query, or a single block.
    """
    time, older = q.shape[1], k.shape[1] - q.shape[1]
    assert older == window - 1 or time <= window
    block = min(window, time)
    padding = -time % block
    if document is None and padding:
        document = torch.zeros(k.shape[:2], dtype=torch.int64, device=k.device)
    if document is not None:
        document = F.pad(document, (0, padding), value=-1).unfold(1, older + block, block)
        document = document.flatten(0, 1)
    q, k, v = (F.pad(x, (0, 0, 0, 0, 0, padding)) for x in (q, k, v))
    mask = visibility(document, block, older, window, q.device)
    k, v = _blocks(k, older + block, block), _blocks(v, older + block, block)
    answers = attend(_blocks(q, block, block), k, v, mask, prefix)
    return answers.reshape(q.shape)[:, :time]


def _blocks(x: Tensor, size: int, step: int) -> Tensor:
    """[b, s, h, d] -> [b * blocks, size, h, d], blocks that begin `step` apart."""
    return x.unfold(1, size, step).permute(0, 1, 4, 2, 3).flatten(0, 1)


def visibility(
    document: Documents | None, time: int, older: int, window: int, device: torch.device
) -> Tensor | None:
    """Which slots the last `time` ones see; None stands for all up to oneself, of `time` slots."""
    if document is None and older == 0 and window >= time:
        return None
    query = torch.arange(time, device=device)[:, None] + older
    slot = torch.arange(older + time, device=device)
    near = (slot <= query) & (slot > query - window)
    if document is None:
        return near
    same = (document[:, older:, None] == document[:, None]) & (document[:, None] >= 0)
    # A query always sees itself, or the softmax of padding would be empty.
    return near & same | (slot == query)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, prefix: Prefix | None) -> Queries:
    """softmax(q k^T / sqrt(d)) v over the slots that `mask` shows and over the prefix."""
    time = q.shape[1]
    if prefix is not None:
        if mask is None:
            mask = torch.ones(time, time, dtype=torch.bool, device=q.device).tril()
        mask = F.pad(mask, (len(prefix[0]), 0), value=True)
        k, v = (
            torch.cat([pairs.to(x.dtype).expand(len(x), -1, -1, -1), x], dim=1)
            for pairs, x in zip(prefix, (k, v), strict=True)
        )
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    mask = mask[:, None] if mask is not None and mask.ndim == 3 else mask
    answers = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None and time > 1)
    return answers.transpose(1, 2)


def rotate(x: Tensor, position: Tensor, theta: float) -> Tensor:
    """Rotary position embedding: q.k comes to depend on their distance alone.

    Rotates the pairs (x_i, x_{i + d/2}) of x [b, t, h, d] by position [b, t] * theta^(-2i/d).

    Angles are taken in float64, so that the millionth position is as exact as the first, and
    the rotation is never done in less than float32.
    """
    half = x.shape[-1] // 2
    exponent = torch.arange(half, device=x.device, dtype=torch.float64) / half
    angle = position[:, :, None, None].double() * theta**-exponent
    wide = torch.promote_types(x.dtype, torch.float32)
    cos, sin = angle.cos().to(wide), angle.sin().to(wide)
    left, right = x.to(wide).chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1).to(x.dtype)
