"""What type checkers know of the package; nothing runs this file.

mypy reads it in `make check`, pyright in `test_public_names.py`: of the names here, which are all
public ones, the last alone is unknown to them.
"""

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


print(
    am.AtlasCache,
    am.AtlasConfig,
    am.AtlasForCausalLM,
    am.AtlasModel,
    am.ChannelRetention,
    am.DotProduct,
    am.Elementwise,
    am.Exponential,
    am.FixedRetention,
    am.GatedMLP,
    am.Gates,
    am.GradientDescent,
    am.Huber,
    am.Identity,
    am.Implicit,
    am.L2,
    am.Lp,
    am.LqRetention,
    am.MLP,
    am.Matrix,
    am.Memory,
    am.MemoryLayer,
    am.MemorySpec,
    am.MemoryState,
    am.MesaLayer,
    am.MesaState,
    am.Momentum,
    am.Muon,
    am.NoRetention,
    am.Polynomial,
    am.PrefixCache,
    am.RetrofitConfig,
    am.RetrofittedForCausalLM,
    am.ScalarRetention,
    am.Sketch,
    am.SoftmaxRetention,
    am.Trace,
    am.base_of,
    am.compile_chunks,
    am.demo,
    am.memorize,
    am.mesa,
    am.read,
    am.retrofit,
    am.trace,
    am.variants,
)
print(am.nonsense)  # type: ignore[attr-defined]
