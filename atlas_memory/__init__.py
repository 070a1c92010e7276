"""Sequence models that learn to memorize their context at test time."""

from importlib import import_module
from typing import Any

from atlas_memory.registration import install

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
    "serving.prefix_cache": "PrefixCache",
    "serving.reading": "Memory read",
    "serving.trace": "Trace trace",
    "variants": "variants",
    "demo": "demo",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    """Import a name where it lives when it is first asked for; the package itself loads at once."""
    if name not in _HOME:
        raise AttributeError(f"module 'atlas_memory' has no attribute {name!r}")
    home = import_module(f"atlas_memory.{_HOME[name]}")
    return home if name == _HOME[name] else getattr(home, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])


install()
