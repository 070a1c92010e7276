"""Sequence models that learn to memorize their context at test time."""

from importlib import import_module
from typing import TYPE_CHECKING

from atlas_memory.registration import install

__version__ = "0.1.0"

if TYPE_CHECKING:
    from atlas_memory import demo as demo
    from atlas_memory.cache import AtlasCache as AtlasCache
    from atlas_memory.config import AtlasConfig as AtlasConfig
    from atlas_memory.family import variants as variants
    from atlas_memory.inspection.trace import (
        Trace as Trace,
        trace as trace,
    )
    from atlas_memory.layers.memory_layer import MemoryLayer as MemoryLayer
    from atlas_memory.layers.mesa_layer import MesaLayer as MesaLayer
    from atlas_memory.memory import (
        L2 as L2,
        MLP as MLP,
        ChannelRetention as ChannelRetention,
        DotProduct as DotProduct,
        Elementwise as Elementwise,
        Exponential as Exponential,
        FixedRetention as FixedRetention,
        GatedMLP as GatedMLP,
        Gates as Gates,
        GradientDescent as GradientDescent,
        Huber as Huber,
        Identity as Identity,
        Implicit as Implicit,
        Lp as Lp,
        LqRetention as LqRetention,
        Matrix as Matrix,
        MemorySpec as MemorySpec,
        MemoryState as MemoryState,
        MesaState as MesaState,
        Momentum as Momentum,
        Muon as Muon,
        NoRetention as NoRetention,
        Polynomial as Polynomial,
        ScalarRetention as ScalarRetention,
        Sketch as Sketch,
        SoftmaxRetention as SoftmaxRetention,
        compile_chunks as compile_chunks,
        memorize as memorize,
        mesa as mesa,
    )
    from atlas_memory.model import (
        AtlasForCausalLM as AtlasForCausalLM,
        AtlasModel as AtlasModel,
    )
    from atlas_memory.reading.prefix_cache import PrefixCache as PrefixCache
    from atlas_memory.reading.read import (
        Memory as Memory,
        read as read,
    )
    from atlas_memory.retrofitting.build import (
        base_of as base_of,
        retrofit as retrofit,
    )
    from atlas_memory.retrofitting.config import RetrofitConfig as RetrofitConfig
    from atlas_memory.retrofitting.model import RetrofittedForCausalLM as RetrofittedForCausalLM

_HOMES = {
    "memory": (
        "ChannelRetention DotProduct Elementwise Exponential FixedRetention GatedMLP Gates "
        "GradientDescent Huber Identity Implicit L2 Lp LqRetention MLP Matrix MemorySpec "
        "MemoryState MesaState Momentum Muon NoRetention Polynomial ScalarRetention Sketch "
        "SoftmaxRetention compile_chunks memorize mesa"
    ),
    "layers.memory_layer": "MemoryLayer",
    "layers.mesa_layer": "MesaLayer",
    "config": "AtlasConfig",
    "cache": "AtlasCache",
    "model": "AtlasForCausalLM AtlasModel",
    "retrofitting.build": "base_of retrofit",
    "retrofitting.config": "RetrofitConfig",
    "retrofitting.model": "RetrofittedForCausalLM",
    "reading.prefix_cache": "PrefixCache",
    "reading.read": "Memory read",
    "inspection.trace": "Trace trace",
    "family": "variants",
    "demo": "demo",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = list(_HOME)

if not TYPE_CHECKING:  # for a type checker this would be a package that has every name

    def __getattr__(name):
        """Import a name where it lives when it is first asked for; the package loads at once."""
        if name not in _HOME:
            raise AttributeError(f"module 'atlas_memory' has no attribute {name!r}")
        home = import_module(f"atlas_memory.{_HOME[name]}")
        return home if name == _HOME[name] else getattr(home, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])


install()
