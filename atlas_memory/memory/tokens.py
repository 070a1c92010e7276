"""Tokens, the new ones behind the recent ones that the state carries, and how they are cut.

A row is laid out in slots, and a document always begins at a block's first slot, so that inside
the engine a fresh memory is "replace the state at this border": packed documents, ragged rows and
open chunks alike. The sequence that is laid out is the state's last R pairs followed by the new
tokens: index R + t is new token t.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from atlas_memory.memory.graphs import count
from atlas_memory.memory.omega import Gates
from atlas_memory.memory.state import MemoryState
from atlas_memory.memory.tree import Tensors


@dataclass(frozen=True)
class Tokens:
    """keys, values, gates run over (recent, new): index recent + t is new token t; queries only
    over the new ones. Gates of recent tokens are meaningful for the open chunk alone, and an
    online memory has them of new tokens only.
    opened: whether an open chunk's tokens are read once more. phase: as in `MemoryState`.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    gates: Gates
    recent: int
    position: Tensor
    block: int
    opened: bool
    phase: int | None = None
    starts: Tensor | None = None
    lengths: Tensor | None = None
    constants: Tensor | None = None

    @classmethod
    def join(
        cls,
        state: MemoryState,
        qkv: tuple[Tensor, Tensor, Tensor],
        gates: Gates,
        starts: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> "Tokens":
        q, k, v = qkv
        recent, spec = state.keys.shape[2], state.spec
        missing = recent - spec.open_tokens
        carried = state.gates.named()
        joined = gates.named()
        if recent and not spec.online:
            joined = {
                name: torch.cat([_pad_front(carried.get(name, new[:, :, :0]), missing), new], 2)
                for name, new in joined.items()
            }
        return cls(
            queries=q,
            keys=torch.cat([state.keys, k], dim=2),
            values=torch.cat([state.values, v], dim=2),
            gates=Gates(**joined),
            recent=recent,
            position=state.position,
            block=spec.rhythm,
            opened=spec.open_tokens > 0,
            phase=state.phase,
            starts=starts,
            lengths=lengths,
            constants=state.constants,
        )

    @classmethod
    def of_state(cls, state: MemoryState) -> "Tokens":
        """The recent tokens alone."""
        nothing = state.keys[:, :, :0], state.keys[:, :, :0], state.values[:, :, :0]
        return cls.join(state, nothing, state.gates.map(lambda x: x[:, :, :0]))

    @property
    def new(self) -> int:
        return self.keys.shape[2] - self.recent

    @property
    def offset(self) -> Tensor:
        return self.position % self.block

    def indices(self) -> range:
        """From the first token of any row's open chunk to the last new one."""
        opened = int(self.offset.max()) if self.opened else 0
        return range(self.recent - opened, self.recent + self.new)

    def window(self, i: int, width: int) -> tuple[Tensor, Tensor]:
        """The pairs that step i looks at, oldest first; those before index 0 are zeros."""
        begin = i + 1 - width
        keys = self.keys[:, :, max(begin, 0) : i + 1]
        values = self.values[:, :, max(begin, 0) : i + 1]
        return _pad_front(keys, max(-begin, 0)), _pad_front(values, max(-begin, 0))

    def age(self, i: int) -> Tensor:
        """Tokens of its own document before token i, per row."""
        if i < self.recent:
            return self.position - (self.recent - i)
        return age_of_tokens(self.position, self.new, self.starts)[:, i - self.recent]

    def active(self, i: int) -> Tensor:
        """Rows for which token i exists and is not already in the state's accumulators."""
        if i < self.recent:
            return self.recent - i <= self.offset
        if self.lengths is None:
            return torch.ones_like(self.position, dtype=torch.bool)
        return i - self.recent < self.lengths

    def starts_at(self, i: int) -> Tensor | None:
        return None if self.starts is None or i < self.recent else self.starts[:, i - self.recent]

    @property
    def alike(self) -> bool:
        """Whether all rows stand at the same place, in one document, and have the same length."""
        return self.starts is None and self.lengths is None and self.phase is not None

    def end_phase(self) -> int | None:
        return (
            (self.phase + self.new) % self.block if self.alike and self.phase is not None else None
        )

    def end_position(self) -> Tensor:
        """Position of every row behind its last new token."""
        if self.new == 0:
            return self.position
        if self.starts is None and self.lengths is None:
            return self.position + self.new
        last = torch.full_like(self.position, self.new) if self.lengths is None else self.lengths
        ages = age_of_tokens(self.position, self.new, self.starts)
        at = ages.gather(1, (last - 1).clamp(min=0)[:, None])[:, 0] + 1
        return torch.where(last > 0, at, self.position)

    def end_offset(self) -> Tensor:
        return self.end_position() % self.block

    def layout(self, block: int) -> "Layout | None":
        """None where all rows stand at the same offset, of the same length, in one document."""
        if self.alike:
            return None
        return arrange(self.offset, self.recent, self.new, block, self.starts, self.lengths)

    def streams(self, layout: "Layout | None", lookback: int) -> Tensors:
        """q, k, v and the gates in slots, [g, (look-back +) slots, ..]."""
        recent, pairs = self.recent, (self.keys, self.values)
        gates, queries = self.gates.complete(), self.queries
        if recent:
            queries = torch.cat([self.keys[:, :, :recent], queries], dim=2)
        if layout is None:
            assert self.phase is not None
            opened = recent - self.phase
            cut = [x[:, :, opened - lookback :] for x in pairs]
            return flat((queries[:, :, opened:], *cut, *(x[:, :, opened:] for x in gates)))
        slots = layout.source[:, recent:]
        looking_back = layout.source[:, recent - lookback :]
        laid = [gather(x, looking_back) for x in pairs]
        return flat((gather(queries, slots), *laid, *(gather(x, slots) for x in gates)))


def flat(tensors: Tensors) -> Tensors:
    """Batch and heads as one axis, g = b * h."""
    return tuple(x.flatten(0, 1) for x in tensors)


def _pad_front(x: Tensor, count: int) -> Tensor:
    return pad(x, (0, 0) * (x.dim() - 3) + (count, 0)) if count else x


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


def gather(x: Tensor, index: Tensor) -> Tensor:
    """x [b, h, s, ..] at index [b, n] -> [b, h, n, ..]."""
    shape = index.shape[0], 1, index.shape[1], *(1,) * (x.dim() - 3)
    return x.gather(2, index.view(shape).expand(-1, x.shape[1], -1, *x.shape[3:]))


# ---- blocks --------------------------------------------------------------------------------------


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
    return starts[row, :length].nonzero().flatten().tolist()


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
