"""A user's mistake gets one sentence: the offending value, and what would be right."""

from collections.abc import Sequence

import torch
from torch import Tensor

from atlas_memory.memory.omega import Gates
from atlas_memory.memory.spec import MemorySpec
from atlas_memory.memory.state import MemoryState
from atlas_memory.memory.tree import Tensors


def check_inputs(
    qkv: tuple[Tensor, Tensor, Tensor],
    gates: Gates,
    weights: Tensors,
    spec: MemorySpec,
    rows: tuple[Tensor | None, Tensor | None],
) -> None:
    q, k, v = qkv
    if k.dim() != 4 or q.shape != k.shape or v.shape[:3] != k.shape[:3]:
        shapes = f"q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
        raise ValueError(f"{shapes}: memorize needs q, k [b, h, t, dk] and v [b, h, t, dv]")
    if spec.architecture.residual and k.shape[-1] != v.shape[-1]:
        raise ValueError(
            f"dk={k.shape[-1]} and dv={v.shape[-1]}: {type(spec.architecture).__name__}(residual="
            "True) adds the key to the answer and needs dk = dv; use residual=False"
        )
    _check_weights(weights, spec, k, v)
    if spec.retention.positive and not all(bool((w > 0).all()) for w in weights):
        raise ValueError(f"{spec.retention!r} starts from log W_0, so every entry must be > 0")
    _check_gates(gates, spec, k)
    _check_rows(*rows, k)


def check_form(form: str, forms: Sequence[str]) -> None:
    if form not in forms:
        raise ValueError(f"form={form!r}: choose one of {', '.join(forms)}")


def check_constants(spec: MemorySpec, constants: Tensor | None, k: Tensor) -> None:
    expected = spec.features.constants(k.shape[-1])
    if constants is None:
        return
    if expected is None:
        raise ValueError(f"coefficients were given, but {spec.features!r} has none")
    shapes = [list(expected.shape), [k.shape[1], *expected.shape]]
    if list(constants.shape) not in shapes:
        raise ValueError(
            f"coefficients {list(constants.shape)}: {spec.features!r} needs {shapes[0]}, or "
            f"{shapes[1]} with one set per head"
        )


def _check_weights(weights: Tensors, spec: MemorySpec, k: Tensor, v: Tensor) -> None:
    (b, h, _, dk), dv = k.shape, v.shape[-1]
    shapes = spec.architecture.shapes(spec.features.dim(dk), dv)
    right = [f"[{h}, {out}, {inner}]" for out, inner in shapes]
    given = [list(w.shape) for w in weights]
    fits = len(given) == len(shapes) and all(
        w in ([h, *shape], [b, h, *shape]) for w, shape in zip(given, shapes, strict=True)
    )
    if not fits:
        raise ValueError(
            f"weights {given}: {spec.architecture!r} with {spec.features!r}, dk={dk}, dv={dv} "
            f"needs {', '.join(right)} (or with the batch of {b} in front)"
        )


def _check_gates(gates: Gates, spec: MemorySpec, k: Tensor) -> None:
    b, h, t, dk = k.shape
    wide = [spec.features.dim(dk)] if spec.retention.channel else []
    alpha = [h] if spec.retention.fixed else [b, h, t, *wide]
    if not spec.retention.forgets and gates.alpha is not None:
        raise ValueError(
            f"alpha {list(gates.alpha.shape)}: {spec.retention!r} keeps everything, alpha must be "
            "None"
        )
    if not spec.optimizer.momentum and gates.theta is not None:
        raise ValueError(
            f"theta {list(gates.theta.shape)}: {spec.optimizer!r} has no momentum, theta must be "
            "None"
        )
    if gates.hidden is not None and not spec.online:
        raise ValueError(
            f'hidden {list(gates.hidden.shape)}: only a deep memory with output="online" steps its '
            "hidden matrices apart, here it must be None"
        )
    right = {"alpha": alpha, "eta": [b, h, t], "theta": [b, h, t], "gamma": [b, h, t, spec.window]}
    right["hidden"] = [b, h, t]
    for name, gate in gates.named().items():
        shape = right[name]
        if list(gate.shape) != shape:
            why = {"alpha": f" for {spec.retention!r}", "gamma": f" for window={spec.window}"}
            raise ValueError(
                f"{name} {list(gate.shape)}: memorize needs {shape}{why.get(name, '')}"
            )
        if name in ("alpha", "theta") and bool((gate < 0).any()):
            raise ValueError(f"{name} has {float(gate.min()):.3g}: a decay must be 0 or more")


def _check_rows(starts: Tensor | None, lengths: Tensor | None, k: Tensor) -> None:
    b, _, t, _ = k.shape
    if starts is not None and (list(starts.shape) != [b, t] or starts.dtype != torch.bool):
        given = f"{starts.dtype} {list(starts.shape)}"
        raise ValueError(f"starts {given}: memorize needs torch.bool [b, t] = [{b}, {t}]")
    if lengths is None:
        return
    if list(lengths.shape) != [b] or lengths.is_floating_point():
        given = f"{lengths.dtype} {list(lengths.shape)}"
        raise ValueError(f"lengths {given}: memorize needs whole numbers [b] = [{b}]")
    if bool((lengths > t).any()) or bool((lengths < 0).any()):
        raise ValueError(f"lengths {lengths.tolist()}: each must be between 0 and t={t}")


def check_state(
    state: MemoryState, spec: MemorySpec, initial: Tensors, k: Tensor, v: Tensor
) -> None:
    if state.spec is not spec and state.spec != spec:
        ours, theirs = spec.to_dict(), state.spec.to_dict()
        name = next(n for n in ours if ours[n] != theirs[n])
        raise ValueError(
            f"the state was made with {name}={theirs[name]}, this call has {name}={ours[name]}; "
            "continue it with the spec that made it"
        )
    made, here = _sizes(state.start, state.keys, state.values), _sizes(initial, k, v)
    if made != here:
        rows, heads, _ = made[-2]
        raise ValueError(
            f"the state holds {list(map(list, made[:-2]))} for {rows} rows and {heads} heads, this "
            f"call needs {list(map(list, here[:-2]))}; select the rows, or start from state=None"
        )
    if state.start[0].dtype != initial[0].dtype:
        raise ValueError(
            f"the state is {state.start[0].dtype}, this call computes in {initial[0].dtype}; "
            "convert one of them"
        )


def _sizes(matrices: Tensors, k: Tensor, v: Tensor) -> list[tuple[int, ...]]:
    """All but the number of tokens."""
    return [*(w.shape for w in matrices), *((*x.shape[:2], x.shape[3]) for x in (k, v))]
