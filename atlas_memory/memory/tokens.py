"""Tokens: the new ones behind the recent ones that the state carries."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from atlas_memory.memory.layout import age_of_tokens
from atlas_memory.memory.omega import Gates
from atlas_memory.memory.state import MemoryState


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


def _pad_front(x: Tensor, count: int) -> Tensor:
    return pad(x, (0, 0) * (x.dim() - 3) + (count, 0)) if count else x
