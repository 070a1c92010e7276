"""States as plain data beside tensors: what every file that holds states is made of.

A file names a state by its stable name in `NAMES`, never by where its class stands, so a class may
move or be renamed. Only what the table names is imported, whatever a file says.
"""

from collections.abc import Sequence
from dataclasses import fields
from importlib import import_module
from typing import Any

from torch import Tensor

from atlas_memory.memory.spec import CHOICES, MemorySpec
from atlas_memory.memory.tree import State, children

NAMES = {
    "memory": "memory.state.MemoryState",
    "gates": "memory.omega.Gates",
    "kernel": "memory.state.KernelPast",
    "open_chunk": "memory.state.OpenChunk",
    "mesa": "memory.mesa.MesaState",
    "memory_layer": "layers.memory_layer.MemoryLayerState",
    "mesa_layer": "layers.mesa_layer.MesaLayerState",
    "admission": "layers.gates.AdmissionState",
    "conv": "layers.projections.ConvState",
    "attention": "layers.attention.AttentionState",
    "kv_cache": "layers.kv_cache.KVCache",
    "hybrid": "layers.hybrids.HybridState",
    "context": "layers.memory_as_context.ContextState",
    "mamba": "layers.mamba.MambaState",
    "mamba2": "layers.mamba2.Mamba2State",
    "window": "retrofitting.window.WindowState",
    "retrofitted": "retrofitting.reading.RetrofittedState",
}

# Files of the first format name states and choices by their classes.
FIRST_FORMAT = {place.rpartition(".")[2]: name for name, place in NAMES.items()}
FIRST_FORMAT_CHOICES = {
    kind.__name__: name for known in CHOICES.values() for name, kind in known.items()
}


def encode(states: Sequence[State], tensors: dict[str, Tensor]) -> list[Any]:
    """A plan of each layer's state; its tensors go into `tensors`, by the path that leads there."""
    return [_plan(state, f"layers.{i}", tensors) for i, state in enumerate(states)]


def decode(plans: Sequence[Any], tensors: dict[str, Tensor]) -> list[State]:
    """The states that `encode` made the plans of."""
    try:
        return [_build(plan, tensors) for plan in plans]
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"the file's states cannot be built: {error!r}") from error


def _plan(part: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(part, Tensor):
        tensors[name] = part
        return {"tensor": name}
    if isinstance(part, MemorySpec):
        return {"spec": part.to_dict()}
    if isinstance(part, tuple):
        return {"tuple": [_plan(x, f"{name}.{key}", tensors) for key, x in children(part)]}
    if isinstance(part, State):
        parts = {key: _plan(x, f"{name}.{key}", tensors) for key, x in children(part)}
        return {"state": _name(type(part)), "fields": parts}
    assert part is None or isinstance(part, bool | int | float | str), f"{part!r} in a state"
    return part


def _name(kind: type[State]) -> str:
    place = f"{kind.__module__}.{kind.__qualname__}".removeprefix("atlas_memory.")
    return next(name for name, known in NAMES.items() if known == place)


def _build(plan: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(plan, dict):
        return plan
    if "tensor" in plan:
        return tensors[plan["tensor"]]
    if "tuple" in plan:
        return tuple(_build(item, tensors) for item in plan["tuple"])
    if "spec" in plan:
        return MemorySpec.from_dict(plan["spec"])
    kind = _kind(plan.get("state"))
    given, known = plan["fields"], [f.name for f in fields(kind)]
    if unknown := [name for name in given if name not in known]:
        raise ValueError(
            f"a state {plan['state']!r} of the file has {unknown[0]!r}, which this version does "
            f"not know; it has {', '.join(known)}"
        )
    return kind(**{key: _build(part, tensors) for key, part in given.items()})


def _kind(name: Any) -> type[State]:
    if name not in NAMES:
        raise ValueError(f"{name!r} is no state of atlas_memory; there are {', '.join(NAMES)}")
    module, _, kind = NAMES[name].rpartition(".")
    return getattr(import_module(f"atlas_memory.{module}"), kind)


def modern(plan: Any) -> Any:
    """A plan of the first format as `encode` makes it today; any other stays as it is."""
    if isinstance(plan, list):
        return [modern(item) for item in plan]
    if not isinstance(plan, dict) or "class" not in plan:
        return {key: modern(part) for key, part in plan.items()} if isinstance(plan, dict) else plan
    place, kind = ".".join(plan["class"]), plan["class"][-1]
    parts = {key: modern(part) for key, part in plan["fields"].items()}
    if kind == "MemorySpec":
        return {"spec": parts}
    if choice := FIRST_FORMAT_CHOICES.get(kind):
        lists = {key: x["tuple"] if isinstance(x, dict) else x for key, x in parts.items()}
        return {"name": choice, **lists}
    if kind not in FIRST_FORMAT:
        raise ValueError(f"{place} is no state of atlas_memory")
    return {"state": FIRST_FORMAT[kind], "fields": parts}
