"""MAC: segments whose attention also sees what the memory recalls for them. [Titans Sec. 4.1]

A segment begins with the memory as the segments before it have left it. Token j attends to
[persistent | recalled 0..j | tokens 0..j]; the token with what it attended to, a, is written into
the memory, and what the memory then says, m, is added:

    a = attention(x | recalled),  m = memory(norm(x + a)),  o = a + m

Differs from Titans' picture: token j does not see what was recalled for the tokens after it, which
would show it the future; the token stays on a residual path, and the memory is added instead of
gating: without the path the memory is asked with what attention has made of the question.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atlas_memory.layers.kv_cache import KVCache
from atlas_memory.layers.memory_layer import MemoryLayer, MemoryLayerState
from atlas_memory.layers.projections import RMSNorm, in_heads, unit
from atlas_memory.layers.rows import Lengths, Starts, next_position, valid_tokens
from atlas_memory.layers.softmax import attend, rotate, visibility
from atlas_memory.memory.architectures import plain
from atlas_memory.memory.graphs import untraced, untraced_frame
from atlas_memory.memory.tokens import age_of_tokens
from atlas_memory.memory.tree import State

FOCUS = 0.7  # of q and k at the start: a token's own score is half of sqrt(head width)


@dataclass(frozen=True, repr=False)
class ContextState(State):
    """The memory, its matrices when the open segment began, and the segment's keys and values.

    The cache has two keys per token, of the recalled vector and of the token itself, side by
    side on the axis of heads.
    """

    memory: MemoryLayerState
    recalled_from: tuple[Tensor, ...]  # [b, h, out, in]
    cache: KVCache  # [b, segment - 1, 2 h, d]
    position: Tensor  # [b]


class MemoryAsContext(nn.Module):
    """Attention inside segments of `segment` tokens around a memory of all that came before."""

    def __init__(
        self,
        dim: int,
        heads: int,
        memory: MemoryLayer,
        *,
        segment: int,
        persistent: int = 0,
        rope_theta: float = 10_000.0,
    ) -> None:
        super().__init__()
        if memory.spec.features.kernel:
            raise ValueError("MAC recalls from matrices; Exponential() keeps pairs, use MAG or MAL")
        if segment < 1:
            raise ValueError(f"a segment needs at least 1 token, got {segment}")
        self.heads, self.segment, self.rope_theta = heads, segment, rope_theta
        self.memory = memory
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)
        self.recalled_norm, self.norm = RMSNorm(dim), RMSNorm(dim)
        shape = (2, persistent, heads, dim // heads)
        self.persistent = nn.Parameter(torch.empty(shape)) if persistent else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """It starts as the memory alone: attention adds nothing yet, its q and k are one map."""
        _orthogonal(self.q_proj.weight, FOCUS)
        nn.init.zeros_(self.o_proj.weight)
        with torch.no_grad():
            self.k_proj.weight.copy_(self.q_proj.weight)
        if self.persistent is not None:
            nn.init.normal_(self.persistent)

    @untraced_frame
    def forward(
        self,
        x: Tensor,  # [b, t, dim]
        state: ContextState | None = None,
        *,
        starts: Starts | None = None,
        lengths: Lengths | None = None,
    ) -> tuple[Tensor, ContextState]:
        whole = starts is None and lengths is None
        if whole and self._may_guess(x, state):
            assert state is not None
            if (read := self._read_shut(x, state)) is not None:
                return read
        if state is None and whole:
            cut = cut_fresh(len(x), x.shape[1], self.segment, x.device)
        else:
            begin = x.new_zeros(len(x), dtype=torch.int64) if state is None else state.position
            cut = cut_rows(begin, x.shape[1], self.segment, starts, lengths)
        outputs = []
        for piece in cut.pieces:
            y, state = self._read(piece.pick(x), piece, state)
            outputs.append(y)
        assert state is not None
        return cut.join(outputs), state

    def _read(
        self, x: Tensor, piece: Piece, state: ContextState | None
    ) -> tuple[Tensor, ContextState]:
        """One piece: recall, attend, and write the token with what it attended to."""
        position = x.new_zeros(len(x), dtype=torch.int64) if state is None else state.position
        starts = None if piece.starts is None else _first(piece.starts, x.shape[1])
        weights = self._weights(piece, state, len(x))
        recalled = self.recalled_norm(self.recall(x, weights))
        place = age_of_tokens(position, x.shape[1], starts) % self.segment
        attended, cache = self._attend(x, recalled, place, piece, state)
        past = None if state is None else state.memory
        # The memory's gates are made for inputs of unit scale, as a block's norm gives them.
        inner = self.norm(x + attended)
        said, memory = self.memory(inner, past, starts=starts, lengths=piece.lengths)
        y = attended + said
        after = next_position(position, x.shape[1], starts, piece.lengths)
        return y, ContextState(memory, weights, cache, after)

    def _may_guess(self, x: Tensor, state: ContextState | None) -> bool:
        """Whether several segments may turn out to write nothing, and looking costs no wait."""
        several = x.shape[1] > self.segment and x.shape[1] % self.segment == 0
        shuts = self.memory.write_gate is not None and x.device.type == "cpu"
        if state is None or not several or not shuts or torch.is_grad_enabled():
            return False
        return not bool((state.position % self.segment).any())

    def _read_shut(self, x: Tensor, state: ContextState) -> tuple[Tensor, ContextState] | None:
        """Whole segments side by side, as if the write gate stayed shut: then all of them recall
        from the memory as it is. None where it did not, for then they have to wait for each other.
        """
        weights = state.memory.memory.weights
        recalled = self.recalled_norm(self.recall(x, weights))
        tokens, found = (y.unflatten(1, (-1, self.segment)).flatten(0, 1) for y in (x, recalled))
        index = torch.arange(self.segment, device=x.device).expand(len(tokens), -1)
        attended, cache = self._attend(tokens, found, index, Piece(index), None)
        attended = attended.unflatten(0, (len(x), -1)).flatten(1, 2)
        said, memory = self.memory(self.norm(x + attended), state.memory)
        if not all(map(torch.equal, weights, memory.memory.weights)):
            return None
        segments = x.shape[1] // self.segment
        last = torch.arange(segments - 1, len(tokens), segments, device=x.device)
        after = ContextState(memory, weights, cache.select(last), state.position + x.shape[1])
        return attended + said, after

    @untraced
    def recall(self, x: Tensor, weights: tuple[Tensor, ...]) -> Tensor:
        """What a memory with fixed matrices answers to the tokens x, nothing being written."""
        layer = self.memory
        q = unit(in_heads(layer.projections.q_proj(x), layer.heads))
        phi = layer.spec.features(q, layer.coefficients())
        y, _ = layer.spec.architecture.forward([plain(W) for W in weights], phi, q)
        return layer.read_out(x, y)

    @untraced
    def _weights(self, piece: Piece, state: ContextState | None, batch: int) -> tuple[Tensor, ...]:
        """The matrices as they were when each row's open segment began."""
        first = tuple(w.expand(batch, *w.shape) for w in self.memory.initial_weights())
        if state is None:
            return first
        begins = piece.begins
        weights = state.memory.memory.weights
        if piece.starts is not None:
            weights = _choose(piece.starts, first, weights)
        return weights if begins is None else _choose(begins, weights, state.recalled_from)

    def _attend(
        self, x: Tensor, recalled: Tensor, place: Tensor, piece: Piece, state: ContextState | None
    ) -> tuple[Tensor, KVCache]:
        both = torch.stack([recalled, x], dim=2)
        q = rotate(self.q_proj(x).unflatten(2, (self.heads, -1)), place, self.rope_theta)
        k = self.k_proj(both).flatten(2).unflatten(2, (2 * self.heads, -1))
        v = self.v_proj(both).flatten(2).unflatten(2, (2 * self.heads, -1))
        k = rotate(k, place, self.rope_theta)
        past = KVCache.empty(k, 0)
        if state is not None and piece.begins is not None:
            valid = state.cache.valid
            assert valid is not None
            past = replace(state.cache, valid=valid & ~piece.begins[:, None])
        slots = past.append(k, v, None, piece.lengths)
        document = past.documents(x.shape[1], None, None)
        y = self._attend_twice(q, slots, document)
        return self.o_proj(y.flatten(2)), slots.last(self.segment - 1, x.shape[1], piece.lengths)

    def _attend_twice(self, q: Tensor, slots: KVCache, document: Tensor | None) -> Tensor:
        """Recalled vectors and tokens in one softmax, each of them up to the query's own."""
        time, total = q.shape[1], slots.keys.shape[1]
        mask = visibility(document, time, total - time, total, q.device)
        if mask is None:
            mask = torch.ones(time, time, dtype=torch.bool, device=q.device).tril()
        keys, values = (torch.cat(x.chunk(2, dim=2), dim=1) for x in (slots.keys, slots.values))
        learned = self.persistent
        prefix = None if learned is None else (learned[0], learned[1])
        return attend(q, keys, values, torch.cat([mask, mask], dim=-1), prefix)


def _orthogonal(weight: Tensor, gain: float) -> None:
    """torch's own, and in float32 where torch has no QR of the weight's precision."""
    try:
        nn.init.orthogonal_(weight, gain)
    except NotImplementedError:
        drawn = nn.init.orthogonal_(torch.empty_like(weight, dtype=torch.float32), gain)
        with torch.no_grad():
            weight.copy_(drawn)


def _first(flag: Tensor, time: int) -> Tensor:
    """[b] -> [b, t], the flag at the first token."""
    return F.pad(flag[:, None], (0, time - 1))


def _choose(rows: Tensor, a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The matrices of a for the given rows, of b for the others."""
    return tuple(torch.where(rows[:, None, None, None], x, y) for x, y in zip(a, b, strict=True))


# ---- the pieces of a row -------------------------------------------------------------------------


@dataclass(frozen=True)
class Piece:
    """Tokens of one segment that are read together, one run of them per row.

    index [b, n]: their places in the row. lengths [b]: how many of the n are tokens; None: all.
    begins [b]: they open a segment; None: in every row. starts [b]: they open a document.
    """

    index: Tensor
    lengths: Lengths | None = None
    begins: Tensor | None = None
    starts: Tensor | None = None

    def pick(self, x: Tensor) -> Tensor:
        return torch.take_along_dim(x, self.index[:, :, None], dim=1)


@dataclass(frozen=True)
class Cut:
    """The pieces of a row in order, and where each token is among them, [b, t]."""

    pieces: list[Piece]
    place: Tensor

    def join(self, outputs: list[Tensor]) -> Tensor:
        """The outputs of all pieces, every token back in its place."""
        return torch.take_along_dim(torch.cat(outputs, dim=1), self.place[:, :, None], dim=1)


def cut_fresh(batch: int, time: int, segment: int, device: torch.device) -> Cut:
    """Full rows of one document each that are read from their beginning."""
    index = torch.arange(time, device=device).expand(batch, -1)
    return Cut([Piece(part) for part in index.split(segment, dim=1)], index)


def cut_rows(
    begin: Tensor, time: int, segment: int, starts: Starts | None, lengths: Lengths | None
) -> Cut:
    """Rows that may stand anywhere: `begin` [b] is the position of each row's first token."""
    column = torch.arange(time, device=begin.device)
    opens = age_of_tokens(begin, time, starts) % segment == 0
    number = opens.long().cumsum(dim=1)
    if lengths is not None:
        number = number.masked_fill(~valid_tokens(time, lengths), -1)
    if time == 1:  # nothing to look up, so that a decoding step never waits for its own tensors
        number = number.clamp(max=0)
    last = 0 if time == 1 else max(0, int(number.max()))
    pieces, place, offset = [], torch.zeros_like(number), 0
    for j in range(last + 1):
        member = number == j
        count = member.sum(dim=1)
        width = 1 if time == 1 else int(count.max())
        if width == 0 and j < last:
            continue
        width = max(1, width)
        first = member.long().argmax(dim=1, keepdim=True)
        index = (first + torch.arange(width, device=begin.device)).clamp(max=time - 1)
        place = torch.where(member, offset + column - first, place)
        offset += width
        ragged = lengths is not None if time == 1 else bool((count < width).any())
        begins = (opens & member).any(dim=1)
        fresh = None if starts is None else (starts & member).any(dim=1)
        pieces.append(Piece(index, count if ragged else None, begins, fresh))
    return Cut(pieces, place)
