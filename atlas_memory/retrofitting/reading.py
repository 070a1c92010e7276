"""One forward pass through a retrofitted model: the states that came, and those it leaves.

The layers of a pretrained model are transformers' own code and return their output alone. So the
states go beside them: every pass makes a Reading and hands it to all layers, each attention and
each memory takes its state from it and leaves the next one there. transformers lets one register
how queries meet keys; `window_attention` at the bottom is what a retrofitted model's base uses.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from atlas_memory.layers.kv_cache import KVCache
from atlas_memory.layers.rows import Rows, document_ids, next_position
from atlas_memory.memory.tokens import age_of_tokens
from atlas_memory.memory.tree import State
from atlas_memory.retrofitting.config import RetrofitConfig
from atlas_memory.retrofitting.window import (
    Call,
    Sinks,
    WindowState,
    attend_all,
    attend_window,
    carried_sinks,
    first_pairs,
)

NAME = "atlas_window"

Turn = Callable[[Tensor, Tensor], Tensor]  # queries [b, t, h, d] turned back by [b, t] positions


@dataclass(frozen=True, repr=False)
class RetrofittedState(State):
    """What a layer carries: its attention's window and, where it has one, its memory."""

    attention: WindowState
    memory: State | None = None


class Reading:
    """Made for one pass; `before` are the states of all layers, or nothing at the beginning."""

    def __init__(
        self,
        x: Tensor,
        rows: Rows,
        before: tuple[RetrofittedState, ...],
        config: RetrofitConfig,
        turn: Turn,
    ) -> None:
        self.rows, self.before, self.turn, self.time = rows, before, turn, x.shape[1]
        self.window, self.sinks = config.window, config.sinks
        none = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        self.begin = before[0].attention.position if before else none
        self.position = age_of_tokens(self.begin, self.time, rows.starts)
        self.next = next_position(self.begin, self.time, rows.starts, rows.lengths)
        self.windows: dict[int, WindowState] = {}
        self.memories: dict[int, State] = {}
        self._sinks: dict[int, Sinks | None] = {}  # of each window; the same for all layers

    def after(self) -> list[State]:
        """The states of all layers behind this pass."""
        layers = range(len(self.windows))
        return [RetrofittedState(self.windows[n], self.memories.get(n)) for n in layers]

    def remember(self, layer: int, memory: nn.Module, x: Tensor) -> Tensor:
        past = self.before[layer].memory if self.before else None
        rows = self.rows
        y, self.memories[layer] = memory(x, past, starts=rows.starts, lengths=rows.lengths)
        return y

    def attend(self, layer: int, call: Call, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Answers [b, t, h, d] to the queries; keys and values have heads of their own number."""
        starts, lengths, window = self.rows.starts, self.rows.lengths, call.window
        cache, firsts = self._past(layer, k, call)
        slots = cache.append(k, v, starts, lengths)
        document = cache.documents(self.time, starts, lengths=None)
        if window is None or not cache.slots:
            y = attend_all(call, q, slots, document)
        else:
            beside = self._beside(firsts, q, k, v, window) if call.sinks else None
            y = attend_window(call, q, slots, document, beside)
        if window is not None:
            slots = slots.last(window - 1, self.time, lengths)
        firsts = carried_sinks(firsts, k, v, self.next, lengths)
        self.windows[layer] = WindowState(slots, firsts, self.next)
        return y

    def _past(self, layer: int, k: Tensor, call: Call) -> tuple[KVCache, KVCache]:
        """Older slots, window - 1 unless everything fits into one block, and the first pairs."""
        window = call.window
        if not self.before:
            slots = 0 if window is None or self.time <= window else window - 1
            firsts = k.new_zeros(len(k), call.sinks, *k.shape[2:])
            return KVCache.empty(k, slots), KVCache(firsts, firsts)
        state = self.before[layer].attention
        if window is None or state.cache.slots == window - 1:
            return state.cache, state.sinks
        return state.cache.last(window - 1, 0, None), state.sinks  # rows that were joined

    def _beside(
        self, firsts: KVCache, q: Tensor, k: Tensor, v: Tensor, window: int
    ) -> tuple[Tensor, KVCache, Tensor] | None:
        if window not in self._sinks:
            self._sinks[window] = self._find_sinks(window)
        sinks = self._sinks[window]
        if sinks is None:
            return None
        pairs = first_pairs(firsts, k, v, sinks.index, sinks.place)
        return self.turn(q, sinks.back), pairs, sinks.visible

    def _find_sinks(self, window: int) -> Sinks | None:
        """The first pairs of every document that reaches beyond a window; None if there is none."""
        if not bool((self.position >= window).any()):
            return None
        begins, documents, here = self._long_documents(window)
        j = torch.arange(self.sinks, device=begins.device)
        index = (begins[:, :, None] + j).flatten(1)
        place = j.repeat(begins.shape[1]).expand_as(index)
        own = documents.repeat_interleave(self.sinks, 1)[:, None] == here[:, :, None]
        left = self.position[:, :, None] - place[:, None] >= window
        back = (self.position - (window + self.sinks - 1)).clamp(min=0)
        return Sinks(index, place, own & left, back)

    def _long_documents(self, window: int) -> tuple[Tensor, Tensor, Tensor]:
        """Where documents that outgrow the window begin, their numbers, and that of each token."""
        carried = -self.begin[:, None]
        if self.rows.starts is None:
            number = torch.zeros_like(self.position)
            return carried, torch.zeros_like(carried), number
        number = document_ids(self.rows.starts)
        outgrows = (self.position == window) & (number > 0)
        most = int(outgrows.sum(dim=1).max())
        column = torch.arange(self.time, device=number.device)
        found = torch.where(outgrows, column, self.time).sort(dim=1).values[:, :most]
        there = found < self.time
        named = number.gather(1, found.clamp(max=self.time - 1)).masked_fill(~there, -1)
        begins = torch.cat([carried, found - window], dim=1)
        return begins, torch.cat([torch.zeros_like(carried), named], dim=1), number


def window_attention(
    module: Any,  # an attention of transformers
    query: Tensor,  # [b, h, t, d], rotated
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    reading: Reading,
    scaling: float,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """What every attention of the base calls; one with a smaller window of its own keeps it."""
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    window, sinks = reading.window, reading.sinks
    if sliding_window is not None and (window is None or sliding_window <= window):
        window, sinks = sliding_window, 0
    call = Call(module, scaling, dropout, window, sinks if window is not None else 0)
    return reading.attend(module.layer_idx, call, q, k, v), None


AttentionInterface.register(NAME, window_attention)
