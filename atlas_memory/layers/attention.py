"""Softmax attention with rotary positions, over everything or over a window. [Atlas Table 1]"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from atlas_memory.layers.kv_cache import KVCache
from atlas_memory.layers.projections import ConvState, ShortConv
from atlas_memory.layers.rows import Lengths, Starts, next_position
from atlas_memory.layers.softmax import full_attention, rotate, sliding_window_attention
from atlas_memory.memory.tokens import age_of_tokens
from atlas_memory.memory.tree import State


@dataclass(frozen=True, repr=False)
class AttentionState(State):
    """Rotated keys and values of the past, and the position of each row's next token."""

    cache: KVCache
    position: Tensor  # [b]
    conv: ConvState | None = None


class Attention(nn.Module):
    """Causal multi-head attention; `window=None` sees the whole past.

    conv: size of a short convolution on q, k and v (0: none), as there is in front of a memory.
    persistent: number of learned key-value pairs that every token sees.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        window: int | None = None,
        conv: int = 0,
        persistent: int = 0,
        rope_theta: float = 10_000.0,
    ) -> None:
        super().__init__()
        _check(dim, heads, window)
        self.heads, self.window, self.rope_theta = heads, window, rope_theta
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)
        self.conv = ShortConv(3 * dim, conv) if conv else None
        shape = (2, persistent, heads, dim // heads)
        self.persistent = nn.Parameter(torch.empty(shape)) if persistent else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.persistent is not None:
            nn.init.normal_(self.persistent)

    def forward(
        self,
        x: Tensor,  # [b, t, dim]
        state: AttentionState | None = None,
        *,
        starts: Starts | None = None,
        lengths: Lengths | None = None,
    ) -> tuple[Tensor, AttentionState]:
        begin = x.new_zeros(len(x), dtype=torch.int64) if state is None else state.position
        position = age_of_tokens(begin, x.shape[1], starts)
        (q, k, v), conv = self._project(x, state, starts, lengths)
        q, k = rotate(q, position, self.rope_theta), rotate(k, position, self.rope_theta)
        past = KVCache.empty(k, self._unseen_slots(k)) if state is None else state.cache
        slots = past.append(k, v, starts, lengths)
        y = self._attend(q, slots, past.documents(x.shape[1], starts, lengths=None))
        if self.window is not None:
            slots = slots.last(self.window - 1, x.shape[1], lengths)
        after = next_position(begin, x.shape[1], starts, lengths)
        return self.o_proj(y.flatten(2)), AttentionState(slots, after, conv)

    def _unseen_slots(self, k: Tensor) -> int:
        """Slots before the first token: the blocks of a longer text need a window of them."""
        return 0 if self.window is None or k.shape[1] <= self.window else self.window - 1

    def _project(
        self,
        x: Tensor,
        state: AttentionState | None,
        starts: Tensor | None,
        lengths: Tensor | None,
    ) -> tuple[tuple[Tensor, ...], ConvState | None]:
        """q, k and v of every head, after the short convolution where there is one."""
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        conv = None
        if self.conv is not None:
            older = None if state is None else state.conv
            mixed = torch.cat([q, k, v], dim=2)
            mixed, conv = self.conv(mixed, older, starts=starts, lengths=lengths)
            q, k, v = mixed.chunk(3, dim=2)
        return tuple(part.unflatten(2, (self.heads, -1)) for part in (q, k, v)), conv

    def _attend(self, q: Tensor, slots: KVCache, document: Tensor | None) -> Tensor:
        # Padding on the right needs no mask: no valid token sees it.
        learned = self.persistent
        prefix = None if learned is None else (learned[0], learned[1])
        if self.window is None:
            return full_attention(q, slots.keys, slots.values, document, prefix)
        keys, values, window = slots.keys, slots.values, self.window
        return sliding_window_attention(q, keys, values, document, window, prefix)


def _check(dim: int, heads: int, window: int | None) -> None:
    if dim % heads or dim // heads % 2:
        raise ValueError(f"attention needs heads of even size, got width {dim} and {heads} heads")
    if window is not None and window < 1:
        raise ValueError(f"a sliding window needs at least 1 token, got {window}")
