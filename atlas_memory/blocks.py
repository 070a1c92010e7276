"""One block around any sequence mixer, and the mixers a model may be made of, as data.

A model is a pattern of mixers repeated over its depth: (Memory(),) is a recurrent model,
(Mamba(), Attention(window=2048)) is Samba. Each choice is a frozen dataclass that builds itself.
"""

from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Protocol

import torch.nn.functional as F
from torch import Tensor, nn

from atlas_memory.layers import attention, hybrids
from atlas_memory.layers.memory_as_context import MemoryAsContext
from atlas_memory.layers.memory_layer import MemoryLayer
from atlas_memory.layers.mesa_layer import MesaLayer
from atlas_memory.layers.projections import RMSNorm
from atlas_memory.layers.rows import Lengths, Starts
from atlas_memory.memory.spec import MemorySpec
from atlas_memory.memory.tree import State
from atlas_memory.names import suggest as suggest


class SwiGLU(nn.Module):
    """The feed-forward network between mixers: down(silu(gate(x)) * up(x)). [Atlas Sec. 5]"""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(dim, hidden, bias=False)
        self.up_proj = nn.Linear(dim, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """x + mixer(norm(x)), then x + SwiGLU(norm(x))."""

    def __init__(self, dim: int, hidden: int, mixer: nn.Module, eps: float) -> None:
        super().__init__()
        self.mixer_norm, self.mixer = RMSNorm(dim, eps), mixer
        self.mlp_norm, self.mlp = RMSNorm(dim, eps), SwiGLU(dim, hidden)

    def forward(
        self,
        x: Tensor,  # [b, t, dim]
        state: State | None = None,
        *,
        starts: Starts | None = None,
        lengths: Lengths | None = None,
    ) -> tuple[Tensor, State]:
        mixed, state = self.mixer(self.mixer_norm(x), state, starts=starts, lengths=lengths)
        x = x + mixed
        return x + self.mlp(self.mlp_norm(x)), state


@dataclass(frozen=True)
class Width:
    """What a mixer has to know about the model around it."""

    dim: int
    heads: int
    memory: MemorySpec | None = None
    rope_theta: float = 10_000.0
    designed_heads: str = "half"
    admission: bool = False
    value_path: bool = False
    products: str = "float32"

    def memory_layer(self) -> MemoryLayer:
        if self.memory is None:
            raise ValueError(
                "a mixer of this model needs a memory, got memory=None; give a MemorySpec"
            )
        return MemoryLayer(
            self.dim,
            self.heads,
            self.memory,
            designed_heads=self.designed_heads,
            admission=self.admission,
            value_path=self.value_path,
            products=self.products,
        )

    def attention(self, window: int | None, conv: int = 0, persistent: int = 0) -> nn.Module:
        return attention.Attention(
            self.dim,
            self.heads,
            window=window,
            conv=conv,
            persistent=persistent,
            rope_theta=self.rope_theta,
        )


class Mixer(Protocol):
    """Mixes tokens along time: forward(x, state, *, starts, lengths) -> (y, state)."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def build(self, width: Width) -> nn.Module: ...


@dataclass(frozen=True)
class Memory:
    """The memory of the model's MemorySpec, alone."""

    def build(self, width: Width) -> nn.Module:
        return width.memory_layer()


@dataclass(frozen=True)
class Attention:
    """Softmax attention; `window=None` sees all, `conv` is the short convolution's size."""

    window: int | None = None
    conv: int = 0
    persistent: int = 0

    def build(self, width: Width) -> nn.Module:
        return width.attention(self.window, self.conv, self.persistent)


@dataclass(frozen=True)
class MAG:
    """Memory beside a sliding-window attention with learned persistent tokens.

    combine: "product" gates the attention with the memory, "sum" adds the two.
    """

    window: int
    persistent: int = 0
    combine: str = "product"

    def build(self, width: Width) -> nn.Module:
        attending = width.attention(self.window, persistent=self.persistent)
        return hybrids.MemoryAsGate(width.dim, width.memory_layer(), attending, self.combine)


@dataclass(frozen=True)
class MAL:
    """Memory as a layer under a sliding-window attention with learned persistent tokens.

    residual: the attention sees the token beside what the memory says of it.
    """

    window: int
    persistent: int = 0
    residual: bool = False

    def build(self, width: Width) -> nn.Module:
        attending = width.attention(self.window, persistent=self.persistent)
        return hybrids.MemoryAsLayer(width.dim, width.memory_layer(), attending, self.residual)


@dataclass(frozen=True)
class MAC:
    """Memory as context: attention inside segments that begin with what the memory recalls."""

    segment: int
    persistent: int = 0

    def build(self, width: Width) -> nn.Module:
        return MemoryAsContext(
            width.dim,
            width.heads,
            width.memory_layer(),
            segment=self.segment,
            persistent=self.persistent,
            rope_theta=width.rope_theta,
        )


@dataclass(frozen=True)
class Mesa:
    """The least-squares memory of everything read so far, solved at every token."""

    def build(self, width: Width) -> nn.Module:
        return MesaLayer(width.dim, width.heads, designed_heads=width.designed_heads)


@dataclass(frozen=True)
class Mamba:
    """Mamba's selective state space."""

    state_size: int = 16

    def build(self, width: Width) -> nn.Module:
        from atlas_memory.layers import mamba

        return mamba.Mamba(width.dim, state_size=self.state_size)


@dataclass(frozen=True)
class Mamba2:
    """Mamba-2's layer around a scalar-decay linear memory."""

    state_size: int = 64

    def build(self, width: Width) -> nn.Module:
        from atlas_memory.layers import mamba2

        return mamba2.Mamba2(width.dim, width.heads, state_size=self.state_size)


MIXERS: dict[str, Any] = {
    "memory": Memory,
    "attention": Attention,
    "mag": MAG,
    "mal": MAL,
    "mac": MAC,
    "mesa": Mesa,
    "mamba": Mamba,
    "mamba2": Mamba2,
}


def mixer_to_dict(mixer: Mixer) -> dict[str, Any]:
    """Plain data for JSON; `mixer_from_dict` reads it back."""
    names = {choice: name for name, choice in MIXERS.items()}
    return {"mixer": names[type(mixer)], **asdict(mixer)}


def mixer_from_dict(plain: dict[str, Any]) -> Mixer:
    """A mixer from {"mixer": its name, .. its fields}."""
    name = plain.get("mixer")
    if name not in MIXERS:
        raise ValueError(f"mixer={name!r} is unknown; {suggest(str(name), list(MIXERS))}")
    given = {key: value for key, value in plain.items() if key != "mixer"}
    own = [field.name for field in fields(MIXERS[name])]
    for key in given:
        if key not in own:
            raise ValueError(f"unknown field {key!r} of mixer {name!r}; {suggest(key, own)}")
    return MIXERS[name](**given)
