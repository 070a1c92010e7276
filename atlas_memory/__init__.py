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
    )
    from atlas_memory.inspection.trace import (
        trace as trace,
    )
    from atlas_memory.layers.memory_layer import MemoryLayer as MemoryLayer
    from atlas_memory.layers.mesa_layer import MesaLayer as MesaLayer
    from atlas_memory.memory import (
        L2 as L2,
    )
    from atlas_memory.memory import (
        MLP as MLP,
    )
    from atlas_memory.memory import (
        ChannelRetention as ChannelRetention,
    )
    from atlas_memory.memory import (
        DotProduct as DotProduct,
    )
    from atlas_memory.memory import (
        Elementwise as Elementwise,
    )
    from atlas_memory.memory import (
        Exponential as Exponential,
    )
    from atlas_memory.memory import (
        FixedRetention as FixedRetention,
    )
    from atlas_memory.memory import (
        GatedMLP as GatedMLP,
    )
    from atlas_memory.memory import (
        Gates as Gates,
    )
    from atlas_memory.memory import (
        GradientDescent as GradientDescent,
    )
    from atlas_memory.memory import (
        Huber as Huber,
    )
    from atlas_memory.memory import (
        Identity as Identity,
    )
    from atlas_memory.memory import (
        Implicit as Implicit,
    )
    from atlas_memory.memory import (
        Lp as Lp,
    )
    from atlas_memory.memory import (
        LqRetention as LqRetention,
    )
    from atlas_memory.memory import (
        Matrix as Matrix,
    )
    from atlas_memory.memory import (
        MemorySpec as MemorySpec,
    )
    from atlas_memory.memory import (
        MemoryState as MemoryState,
    )
    from atlas_memory.memory import (
        MesaState as MesaState,
    )
    from atlas_memory.memory import (
        Momentum as Momentum,
    )
    from atlas_memory.memory import (
        Muon as Muon,
    )
    from atlas_memory.memory import (
        NoRetention as NoRetention,
    )
    from atlas_memory.memory import (
        Polynomial as Polynomial,
    )
    from atlas_memory.memory import (
        ScalarRetention as ScalarRetention,
    )
    from atlas_memory.memory import (
        Sketch as Sketch,
    )
    from atlas_memory.memory import (
        SoftmaxRetention as SoftmaxRetention,
    )
    from atlas_memory.memory import (
        compile_chunks as compile_chunks,
    )
    from atlas_memory.memory import (
        memorize as memorize,
    )
    from atlas_memory.memory import (
        mesa as mesa,
    )
    from atlas_memory.model import (
        AtlasForCausalLM as AtlasForCausalLM,
    )
    from atlas_memory.model import (
        AtlasModel as AtlasModel,
    )
    from atlas_memory.reading.prefix_cache import PrefixCache as PrefixCache
    from atlas_memory.reading.read import (
        Memory as Memory,
    )
    from atlas_memory.reading.read import (
        read as read,
    )
    from atlas_memory.retrofitting.build import (
        base_of as base_of,
    )
    from atlas_memory.retrofitting.build import (
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
