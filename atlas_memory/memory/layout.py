"""Where tokens go when rows are cut into blocks: packed documents, ragged rows, open chunks.

A row is laid out in slots, and a document always begins at a block's first slot, so that inside
the engine a fresh memory is "replace the state at this border". The sequence that is laid out is
the state's last R pairs followed by the new tokens: index R + t is new token t.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from atlas_memory.memory.graphs import count


@dataclass(frozen=True)
class Layout:
    """source [b, R + slots]: index into (recent, new) of every slot, R slots of look-back first.
    slot [b, t]: where each new token went. fresh [b, blocks]: a document begins with this block.
    count [b, blocks]: slots in use. end [b]: the slot behind the row's last token.
    """

    source: Tensor
    slot: Tensor
    fresh: Tensor
    count: Tensor
    end: Tensor


def age_of_tokens(position: Tensor, tokens: int, starts: Tensor | None) -> Tensor:
    """How many tokens of its own document precede each new token. [b, t]"""
    if tokens == 1 and starts is None:
        return position[:, None]
    index = count(tokens, position.device)
    age = position[:, None] + index
    if starts is None:
        return age
    begin = torch.where(starts, index, -1).cummax(dim=1).values
    return torch.where(begin >= 0, index - begin, age)


def arrange(
    offset: Tensor,
    recent: int,
    tokens: int,
    block: int,
    starts: Tensor | None,
    lengths: Tensor | None,
) -> Layout:
    """Lay out rows that stand at `offset` in their open block."""
    rows = offset.shape[0]
    limits = [tokens] * rows if lengths is None else lengths.tolist()
    plans = [
        _plan_row(o, n, block, _row_starts(starts, r, n))
        for r, (o, n) in enumerate(zip(offset.tolist(), limits, strict=True))
    ]
    blocks = max(1, max(-(-plan[-1][2] // block) for plan in plans))
    source = torch.zeros(rows, recent + blocks * block, dtype=torch.long)
    slot = torch.zeros(rows, tokens, dtype=torch.long)
    fresh = torch.zeros(rows, blocks, dtype=torch.bool)
    used = torch.zeros(rows, blocks * block, dtype=torch.long)
    for r, plan in enumerate(plans):
        opened = plan[0][1]
        source[r, : recent + opened] = torch.arange(-opened, recent).clamp(min=0)
        used[r, :opened] = 1
        for first, begin, end, is_fresh in plan:
            source[r, recent + begin : recent + end] = recent + first + torch.arange(end - begin)
            slot[r, first : first + end - begin] = torch.arange(begin, end)
            used[r, begin:end] = 1
            if is_fresh:
                fresh[r, begin // block] = True
    ends = torch.tensor([plan[-1][2] for plan in plans])
    parts = (source, slot, fresh, used.unflatten(1, (blocks, block)).sum(-1), ends)
    return Layout(*(part.to(offset.device) for part in parts))


def _row_starts(starts: Tensor | None, row: int, length: int) -> list[int]:
    if starts is None:
        return []
    found: list[int] = starts[row, :length].nonzero().flatten().tolist()
    return found


def _plan_row(
    offset: int, length: int, block: int, starts: list[int]
) -> list[tuple[int, int, int, bool]]:
    """Segments (first token, first slot, slot behind the last, begins a document) of one row."""
    plan = []
    cursor, first, is_fresh = offset, 0, False
    for start in [*starts, length]:
        plan.append((first, cursor, cursor + start - first, is_fresh))
        cursor = -(-(cursor + start - first) // block) * block
        first, is_fresh = start, True
    return plan if len(plan) == 1 or plan[0][2] > 0 else [(0, 0, 0, False), *plan[1:]]


def gather(x: Tensor, index: Tensor) -> Tensor:
    """x [b, h, s, ..] at index [b, n] -> [b, h, n, ..]."""
    shape = index.shape[0], 1, index.shape[1], *(1,) * (x.dim() - 3)
    return x.gather(2, index.view(shape).expand(-1, x.shape[1], -1, *x.shape[3:]))


@dataclass(frozen=True)
class Blocks:
    """Rows cut where their chunks begin, whatever stands open: a block is one chunk or a part.

    first [b, blocks]: the block's first new token. count [b, blocks]: tokens that it has. fresh
    [b, blocks]: a document begins with it. place [b, blocks * width]: where in its chunk a slot's
    token stands. slot [b, t]: where each new token went. width: slots of a block.
    """

    first: Tensor
    count: Tensor
    fresh: Tensor
    place: Tensor
    slot: Tensor
    width: int

    def tokens(self, new: int, lookback: int = 0) -> Tensor:
        """Index of every slot's token, each block behind `lookback` others: [b, slots].

        Counted from the first of them: index `lookback` is new token 0.
        """
        offsets = torch.arange(self.width + lookback, device=self.first.device)
        return (self.first[..., None] + offsets).clamp(max=new + lookback - 1).flatten(1)


def cut_blocks(
    position: Tensor,
    tokens: int,
    chunk: int,
    width: int,
    starts: Tensor | None,
    lengths: Tensor | None,
) -> Blocks:
    """Blocks of rows that stand anywhere in their chunks, end anywhere and hold documents."""
    place = age_of_tokens(position, tokens, starts) % chunk
    begins = place == 0
    begins[:, 0] = True
    number = begins.long().cumsum(dim=1) - 1
    index = torch.arange(tokens, device=position.device)
    shape = len(position), int(number.max()) + 1
    first = torch.full(shape, tokens, device=position.device)
    first.scatter_reduce_(1, number, index.expand_as(number), "amin")
    there = torch.ones_like(number) if lengths is None else (index < lengths[:, None]).long()
    count = torch.zeros(shape, dtype=torch.long, device=position.device)
    count.scatter_add_(1, number, there)
    at = first.clamp(max=tokens - 1)
    fresh = torch.zeros_like(at, dtype=torch.bool) if starts is None else starts.gather(1, at)
    # A row with fewer blocks than others has empty ones behind its own, which begin nothing.
    fresh = fresh & (count > 0)
    places = place.gather(1, at)[..., None] + torch.arange(width, device=position.device)
    slot = number * width + index - first.gather(1, number)
    return Blocks(first, count, fresh, places.flatten(1), slot, width)
