"""MemorySpec: a memory is a row of a table.   [Atlas Table 1]"""

from dataclasses import MISSING, asdict, dataclass, field, fields
from difflib import get_close_matches
from typing import Any

from atlas_memory.memory.architectures import ARCHITECTURES, MLP, MemoryArchitecture
from atlas_memory.memory.attentional_bias import BIASES, L2, Bias
from atlas_memory.memory.feature_maps import FEATURE_MAPS, Features, Identity
from atlas_memory.memory.optimizers import OPTIMIZERS, GradientDescent, Optimizer
from atlas_memory.memory.retention import RETENTIONS, Retention, ScalarRetention

CHOICES: dict[str, dict[str, Any]] = {
    "features": FEATURE_MAPS,
    "architecture": ARCHITECTURES,
    "bias": BIASES,
    "optimizer": OPTIMIZERS,
    "retention": RETENTIONS,
}
OUTPUTS = ("chunk", "online")


@dataclass(frozen=True, repr=False)
class MemorySpec:
    """The choices that make a memory; what does not go together is refused when it is built.

    window: pairs that a step looks at (c). chunk: tokens whose gradients share one point (b).
    output: "chunk" takes the gradients of all matrices at the chunk's start, "online" writes the
    output matrix exactly, at every token (`online.py`), and only hidden matrices from the start.
    stop_gradient: the outer gradient takes the inner ones as constants.
    """

    features: Features = field(default_factory=Identity)
    architecture: MemoryArchitecture = field(default_factory=MLP)
    bias: Bias = field(default_factory=L2)
    optimizer: Optimizer = field(default_factory=GradientDescent)
    retention: Retention = field(default_factory=ScalarRetention)
    window: int = 1
    chunk: int = 64
    stop_gradient: bool = False
    output: str = "chunk"

    def __post_init__(self) -> None:
        for name in ("window", "chunk"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name}={value!r}: it must be a whole number of at least 1")
        for name, known in CHOICES.items():
            if type(getattr(self, name)) not in known.values():
                raise ValueError(
                    f"{name}={getattr(self, name)!r} is not one of {_constructors(known)}"
                )
        if self.output not in OUTPUTS:
            raise ValueError(f"output={self.output!r}: choose one of {', '.join(OUTPUTS)}")
        for clash, reason in (*_clashes(self), *_online_clashes(self)):
            if clash:
                raise ValueError(reason)

    def __repr__(self) -> str:
        """Without what is as it always is; the text still makes the same spec."""
        return _brief(self, {"stop_gradient", "output"})

    @property
    def online(self) -> bool:
        """A deep memory whose output matrix is exact at every token."""
        return self.output == "online" and self.architecture.deep

    @property
    def decays_first(self) -> bool:
        """Whether a gradient is taken at alpha_t W_{t-1} instead of W_{t-1}."""
        return self.retention.before_gradient or self.output == "online"

    @property
    def linear(self) -> bool:
        """A linear memory that is exact token by token, and computed by a triangular solve."""
        sums = not (self.optimizer.orthogonal or self.retention.mapped or self.features.kernel)
        exact = self.chunk == 1 or self.bias.hebbian or self.output == "online"
        return not self.architecture.deep and self.bias.linear and sums and exact

    @property
    def materialized(self) -> bool:
        """Whether the matrices themselves are needed inside a chunk, not only what they answer."""
        return self.optimizer.orthogonal or self.retention.mapped

    @property
    def rhythm(self) -> int:
        """Tokens after which the rule repeats itself: the chunk, where there is one."""
        return 1 if self.linear else self.chunk

    @property
    def up_to_date(self) -> bool:
        """Whether a state is that behind its last token, with no chunk left open."""
        return self.linear or self.online

    @property
    def open_tokens(self) -> int:
        """How many tokens of an unfinished chunk a state carries at most."""
        return 0 if self.up_to_date else self.chunk - 1

    @property
    def recent_pairs(self) -> int:
        """How many of the last pairs a state carries."""
        return self.window - 1 + self.open_tokens

    def to_dict(self, brief: bool = False) -> dict[str, Any]:
        """Plain data for JSON or TOML; `from_dict` reads it back.

        brief: without fields that came later where they say nothing, as it was written before
        there were any: what names a memory must not change with a new choice.
        """
        plain: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name in CHOICES:
                names = {choice: name for name, choice in CHOICES[f.name].items()}
                plain[f.name] = {"name": names[type(value)], **asdict(value)}
            else:
                plain[f.name] = value
        if brief and self.output == "chunk":
            del plain["output"]
        if brief and not plain["architecture"].get("normalize", True):
            del plain["architecture"]["normalize"]
        if brief and plain["architecture"] == {"name": "matrix", "residual": False}:
            del plain["architecture"]["residual"]
        return plain

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> "MemorySpec":
        known = [f.name for f in fields(cls)]
        for name in plain:
            _require_known(name, known, "MemorySpec")
        return cls(**{n: _choice(n, v) if n in CHOICES else v for n, v in plain.items()})


def _brief(choice: Any, silent: set[str] | None = None) -> str:
    """A dataclass as the call that makes it, without the fields (of `silent`) at their defaults."""
    parts = []
    for f in fields(choice):
        value = getattr(choice, f.name)
        if f.name in CHOICES:
            parts.append(f"{f.name}={_brief(value)}")
        elif value != f.default or (silent is not None and f.name not in silent):
            parts.append(f"{f.name}={value!r}")
    return f"{type(choice).__name__}({', '.join(parts)})"


def _constructors(known: dict[str, Any]) -> str:
    return ", ".join(f"{choice.__name__}()" for choice in known.values())


def _require_known(name: str, known: list[str], where: str) -> None:
    if name in known:
        return
    close = get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise ValueError(f"unknown field {name!r} of {where}; it has {', '.join(known)}{hint}")


def _choice(kind: str, plain: Any) -> Any:
    """One choice from its name, or from {"name": .., its fields}."""
    given = {"name": plain} if isinstance(plain, str) else plain
    if not isinstance(given, dict) or "name" not in given:
        raise ValueError(f"{kind}={plain!r}: give a name or a table with a name")
    name, known = given["name"], CHOICES[kind]
    if name not in known:
        close = get_close_matches(str(name), list(known), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"{kind}={name!r} is unknown; choose one of {', '.join(known)}{hint}")
    values = {n: v for n, v in given.items() if n != "name"}
    own = fields(known[name])
    for n in values:
        _require_known(n, [f.name for f in own], known[name].__name__)
    lists = {f.name for f in own if f.default is not MISSING and isinstance(f.default, tuple)}
    return known[name](**{n: tuple(v) if n in lists else v for n, v in values.items()})


def _clashes(spec: MemorySpec) -> tuple[tuple[bool, str], ...]:
    """Pairs of choices that do not go together, each with the sentence that says why."""
    kind = type(spec.retention).__name__
    architecture, optimizer = type(spec.architecture).__name__, type(spec.optimizer).__name__
    matrix, implicit = not spec.architecture.deep, spec.optimizer.implicit
    kernel, before = spec.features.kernel, spec.retention.before_gradient
    plain = not (spec.retention.mapped or spec.retention.channel)
    return (
        (
            before and spec.chunk != 1 and spec.output == "chunk",
            f"{kind}(before_gradient=True) does not go with chunk={spec.chunk}: inside a "
            "chunk all gradients share one point that no decay has reached; use chunk=1",
        ),
        (
            spec.retention.channel and not matrix,
            f"{kind}() does not go with {architecture}(): alpha has one value per "
            "feature, and only the one matrix of Matrix() has the features as its input",
        ),
        (
            implicit and (not matrix or not spec.bias.linear or spec.bias.hebbian),
            f"{optimizer}() does not go with {architecture}() and {type(spec.bias).__name__}(): "
            "the proximal step has a closed form for Matrix() with L2() alone",
        ),
        (
            implicit and spec.window != 1,
            f"{optimizer}() does not go with window={spec.window}: its closed form is for one pair"
            "; use window=1",
        ),
        (
            implicit and spec.chunk != 1,
            f"{optimizer}() does not go with chunk={spec.chunk}: a step from an old point is no "
            "proximal step; use chunk=1",
        ),
        (
            kernel and (spec.optimizer.orthogonal or implicit),
            f"Exponential() does not go with {optimizer}(): it needs the "
            "momentum as a matrix, and phi* has infinitely many columns",
        ),
        (
            kernel and (not plain or before),
            f"Exponential() does not go with {kind}"
            f"{'(before_gradient=True)' if before else '()'}: the kernel expansion keeps "
            "coefficients, which can only be scaled by one alpha per token",
        ),
        (
            spec.optimizer.period > spec.chunk,
            f"{optimizer}(period={spec.optimizer.period}) does not go with "
            f"chunk={spec.chunk}: the period is counted inside a chunk and would never be reached",
        ),
    )


def _online_clashes(spec: MemorySpec) -> tuple[tuple[bool, str], ...]:
    """What output="online" asks of the other choices."""
    if spec.output != "online":
        return ()
    hint = '; use output="chunk"'
    return (
        (
            not spec.bias.linear,
            f'output="online" does not go with {type(spec.bias).__name__}(): the exact step is '
            f"solved for errors that are linear in the memory, L2() or DotProduct(){hint}",
        ),
        (
            spec.retention.mapped or spec.retention.channel,
            f'output="online" does not go with {type(spec.retention).__name__}(): it forgets with '
            f"one alpha per token, NoRetention(), FixedRetention() or ScalarRetention(){hint}",
        ),
        (
            spec.optimizer.implicit,
            'output="online" does not go with Implicit(), which has an exact step of its own'
            f"{hint}",
        ),
        (
            spec.optimizer.orthogonal and not spec.architecture.deep,
            'output="online" does not go with Muon() and Matrix(): Muon orthogonalizes hidden '
            f"matrices, and Matrix() has none{hint}",
        ),
        (
            spec.features.kernel,
            'output="online" does not go with Exponential(): its hidden matrices are kernel '
            f"expansions{hint}",
        ),
    )
