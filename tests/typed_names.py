"""What a type checker knows of the package; `make check` reads this file, nothing runs it."""

from typing import assert_type

from torch import Tensor

import atlas_memory as am
from atlas_memory.config import AtlasConfig
from atlas_memory.memory.state import MemoryState

assert_type(am.AtlasConfig.from_variant("atlas"), AtlasConfig)
assert_type(am.variants(), tuple[str, ...])
assert_type(am.__version__, str)


def weights(state: am.MemoryState) -> tuple[Tensor, ...]:
    assert_type(state, MemoryState)
    return state.weights


print(am.nonsense)  # type: ignore[attr-defined]
