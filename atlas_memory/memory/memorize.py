"""memorize: one call for every memory of the paper."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from atlas_memory.memory.checks import check_constants, check_form, check_inputs, check_state
from atlas_memory.memory.chunkwise import memorize_chunkwise
from atlas_memory.memory.decode import decode
from atlas_memory.memory.graphs import as_given, untraced
from atlas_memory.memory.kernel import memorize_kernel
from atlas_memory.memory.learner import newborn, to_state
from atlas_memory.memory.linear_token import read_linear_token
from atlas_memory.memory.omega import Gates, mask_young
from atlas_memory.memory.online import memorize_online_recurrent
from atlas_memory.memory.online_chunk import memorize_online
from atlas_memory.memory.online_token import read_token
from atlas_memory.memory.precision import Rounding
from atlas_memory.memory.products import require_products
from atlas_memory.memory.recurrent import memorize_recurrent
from atlas_memory.memory.spec import MemorySpec
from atlas_memory.memory.state import KernelPast, MemoryState
from atlas_memory.memory.tokens import Tokens, age_of_tokens, gather
from atlas_memory.memory.tree import Tensors

FORMS = ("chunkwise", "recurrent")


def memorize(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gates: Gates,
    weights: Tensors,
    spec: MemorySpec,
    state: MemoryState | None = None,
    form: str = "chunkwise",
    *,
    coefficients: Tensor | None = None,
    starts: Tensor | None = None,
    lengths: Tensor | None = None,
    check: bool = True,
    sparse: bool = False,
    products: str = "float32",
) -> tuple[Tensor, MemoryState]:
    """Read the tokens (q, k, v), learning to map k to v; answer every q with what is known then.

    q, k [b, h, t, dk], v [b, h, t, dv]; weights: the memory at the start, [h, out, in] or
    [b, h, out, in] per matrix; coefficients: the feature map's constants, e.g. a_i of Polynomial.
    starts [b, t]: a document begins here, with a fresh memory. lengths [b]: tokens of each row,
    what follows is padding. check=False: the caller vouches for shapes and values, which then no
    tensor is asked for. sparse=True: chunks in which no gate writes or forgets are read only, where
    no gradients are wanted and gates can be looked at without waiting for a device.
    products: "bfloat16" rounds the factors of matrix products, and nothing else (`products.py`).
    Returns y [b, h, t, dv] and the state behind the last token.
    """
    require_products(products)
    if check:
        check_form(form, FORMS)
        check_inputs((q, k, v), gates, weights, spec, (starts, lengths))
        check_constants(spec, coefficients, k)
    how = Reading(form, coefficients, starts, lengths, sparse, products == "bfloat16")
    read = _read if how.traced(q, spec, state) else _read_untraced
    return read((q, k, v), gates, weights, spec, state, how)


@dataclass(frozen=True)
class Reading:
    """How a call of `memorize` reads; names as there."""

    form: str
    coefficients: Tensor | None
    starts: Tensor | None
    lengths: Tensor | None
    sparse: bool
    rounded: bool

    def single(self, q: Tensor) -> bool:
        """One token a row, as decoding reads."""
        rows = self.starts is None and self.lengths is None
        return self.form == "chunkwise" and q.shape[2] == 1 and rows

    def traced(self, q: Tensor, spec: MemorySpec, state: MemoryState | None) -> bool:
        """Whether a compiler may look inside: decoding a memory that is up to date at every token,
        with all rows at one place, becomes a part of its block's graph.
        """
        alike = state is not None and state.phase is not None
        plain = spec.up_to_date and not spec.features.tables
        return alike and plain and self.single(q) and not torch.is_grad_enabled()


def _read(
    given: tuple[Tensor, Tensor, Tensor],
    gates: Gates,
    weights: Tensors,
    spec: MemorySpec,
    state: MemoryState | None,
    how: Reading,
) -> tuple[Tensor, MemoryState]:
    q, k, v = given
    dtype = torch.promote_types(weights[0].dtype, torch.float32)
    with as_given(q), Rounding(how.rounded):
        qkv = q.to(dtype), k.to(dtype), v.to(dtype)
        constants = _constants(spec, how.coefficients, qkv[1])
        initial = _initial(spec, weights, q.shape[0], dtype)
        if state is None:
            state = fresh_state(spec, initial, qkv[1], qkv[2], constants)
        else:
            check_state(state, spec, initial, qkv[1], qkv[2])
            state = replace(state, constants=constants)
        age = age_of_tokens(state.position, q.shape[2], how.starts)
        gates = _complete(spec, gates, qkv[1], age, constants)
        if how.single(q) and spec.linear:
            y, after = read_linear_token(qkv, gates, state)
            return y.to(v.dtype), after
        if how.single(q) and spec.online:
            y, after = read_token(qkv, gates, state, initial)
            return y.to(v.dtype), after
        tokens = Tokens.join(state, qkv, gates, how.starts, how.lengths)
        if spec.online and how.form == "recurrent":
            y, after = memorize_online_recurrent(tokens, state, initial, spec)
        elif spec.online:
            y, after = memorize_online(tokens, state, initial, spec, how.sparse)
        elif how.single(q) and not spec.features.kernel:
            y, after = decode(tokens, state, spec)
        else:
            y, start, momentum, past = _run(how.form, tokens, state, initial, spec)
            after = replace(state, start=start, start_momentum=momentum, past=past, open=None)
        return y.to(v.dtype), _advance(after, tokens)


_read_untraced = untraced(_read)


def _constants(spec: MemorySpec, coefficients: Tensor | None, k: Tensor) -> Tensor | None:
    given = spec.features.constants(k.shape[-1]) if coefficients is None else coefficients
    return None if given is None else given.to(k)


def _initial(spec: MemorySpec, weights: Tensors, rows: int, dtype: torch.dtype) -> Tensors:
    """Accumulators of a fresh memory, one per row."""
    expanded = (w if w.dim() == 4 else w.expand(rows, *w.shape) for w in weights)
    return tuple(spec.retention.accumulator(w.to(dtype)) for w in expanded)


def fresh_state(
    spec: MemorySpec, initial: Tensors, k: Tensor, v: Tensor, constants: Tensor | None
) -> MemoryState:
    """A memory that has read nothing, for rows and heads like those of k and v."""
    if not torch.is_grad_enabled():
        initial = tuple(w.detach() for w in initial)  # else a parameter, to a compiler's eyes
    (b, h, _, dk), dv = k.shape, v.shape[-1]
    recent, opened, features = spec.recent_pairs, spec.open_tokens, spec.features.dim(dk)
    wide = (features,) if spec.retention.channel else ()
    gates = Gates(
        alpha=k.new_ones(b, h, opened, *wide),
        eta=k.new_zeros(b, h, opened),
        theta=k.new_zeros(b, h, opened),
        gamma=k.new_zeros(b, h, opened, spec.window),
    )
    past = None
    if spec.features.kernel:
        old = spec.window - 1
        empty = tuple(
            k.new_zeros(b, h, old, initial[i].shape[-2]) for i in spec.architecture.inputs
        )
        momentum = empty if spec.optimizer.momentum else ()
        never = torch.zeros(b, old, dtype=torch.bool, device=k.device)
        past = KernelPast(k.new_zeros(b, h, old, dk), empty, momentum, never)
    momentum = tuple(torch.zeros_like(w) for w in initial) if spec.optimizer.momentum else ()
    state = MemoryState(
        spec=spec,
        start=initial,
        start_momentum=momentum,
        keys=k.new_zeros(b, h, recent, dk),
        values=v.new_zeros(b, h, recent, dv),
        gates=gates,
        position=torch.zeros(b, dtype=torch.long, device=k.device),
        constants=constants,
        past=past,
        phase=0,
    )
    return to_state(state, newborn(spec, initial)) if spec.online else state


def _complete(
    spec: MemorySpec, gates: Gates, k: Tensor, age: Tensor, constants: Tensor | None
) -> Gates:
    """Every gate in its full shape, what is None filled in, gates of pairs that never were shut."""
    b, h, t = k.shape[:3]
    alpha, eta, theta, gamma = gates.alpha, gates.eta, gates.theta, gates.gamma
    if alpha is None:
        wide = (spec.features.dim(k.shape[-1]),) if spec.retention.channel else ()
        alpha = k.new_ones(()).expand(b, h, t, *wide)
    elif alpha.dim() == 1:
        alpha = alpha[None, :, None].expand(b, h, t)
    eta = k.new_ones(()).expand(b, h, t) if eta is None else eta
    theta = k.new_zeros(()).expand(b, h, t) if theta is None else theta
    gamma = k.new_ones(()).expand(b, h, t, spec.window) if gamma is None else gamma
    eta = eta.to(k)
    if spec.optimizer.implicit:
        eta = eta / (1 + eta * spec.features(k, constants).square().sum(-1))
    hidden = None
    if spec.online:
        hidden = eta if gates.hidden is None else gates.hidden.to(k)
    gamma = mask_young(gamma.to(k), age[:, None])
    return Gates(alpha.to(k), eta, theta.to(k), gamma, hidden)


def _run(
    form: str, tokens: Tokens, state: MemoryState, initial: Tensors, spec: MemorySpec
) -> tuple[Tensor, Tensors, Tensors, KernelPast | None]:
    if spec.features.kernel:
        return memorize_kernel(tokens, state, initial, spec, one_by_one=form == "recurrent")
    if form == "recurrent":
        return *memorize_recurrent(tokens, state, initial, spec), None
    return *memorize_chunkwise(tokens, state, initial, spec), None


def _advance(state: MemoryState, tokens: Tokens) -> MemoryState:
    """The state behind the new tokens: the last pairs and the open chunk's gates move up."""
    spec = state.spec

    def newest(x: Tensor, count: int) -> Tensor:
        if tokens.lengths is None:
            last = x[:, :, x.shape[2] - count :]
            # a view would keep a long text alive, as a graph does anyway
            copied = 2 * count < x.shape[2] and not torch.is_grad_enabled()
            return last.clone(memory_format=torch.contiguous_format) if copied else last
        ends = tokens.recent + tokens.lengths[:, None]
        return gather(x, ends - count + torch.arange(count, device=x.device))

    def open_ones(x: Tensor) -> Tensor:
        return newest(x, spec.open_tokens)

    return replace(
        state,
        keys=newest(tokens.keys, spec.recent_pairs),
        values=newest(tokens.values, spec.recent_pairs),
        gates=state.gates if spec.online else tokens.gates.map(open_ones),
        position=tokens.end_position(),
        phase=tokens.end_phase(),
    )
