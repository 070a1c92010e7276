"""The models of the paper as data: every row of its Table 1 and of its result tables.

What separates two models is the text of a `replace`. What is a matter of measurement rather than
of definition (windows, chunks, features per size) stands in the first section.
[Atlas Table 1] [Atlas Table 7]
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import cycle, islice
from typing import Any

from atlas_memory.blocks import (
    MAC,
    MAG,
    MAL,
    Attention,
    Mamba,
    Mamba2,
    Memory,
    Mesa,
    Mixer,
    Width,
    mixer_to_dict,
)
from atlas_memory.layers.shapes_only import ShapesOnly, num_parameters
from atlas_memory.memory import (
    L2,
    MLP,
    ChannelRetention,
    DotProduct,
    Elementwise,
    Exponential,
    FixedRetention,
    GatedMLP,
    GradientDescent,
    Huber,
    Identity,
    Implicit,
    Lp,
    LqRetention,
    Matrix,
    MemorySpec,
    Momentum,
    Muon,
    NoRetention,
    ScalarRetention,
    Sketch,
    SoftmaxRetention,
)

# ---- what is measured: the paper gives none of these numbers for its main runs ----------------

WINDOW = 2  # c: pairs that a step of the Omega rule looks at; exact steps have c unknowns a token
CHUNK = 128  # b: tokens whose hidden features share one point, where the output is exact
MUON = Muon(steps=5, period=CHUNK)  # every token costs 13x momentum, once a chunk 1.3x
DEEP = MLP(expansion=4, normalize=True)  # hidden features of length one: eta is the delta rule's
STALE_WINDOW, STALE_CHUNK = 16, 16  # c and b where all gradients of a chunk are taken at its start
# The l2 loss of a deep memory that is written from the chunk's start, its surprise no longer than
# 1: with the plain one only steps too small to learn recall are safe.
BOUNDED_L2 = Huber(1.0)
# The whole phi_2 of a head of 64 has 2,145 features, and the state as many columns: the powers of
# every coordinate have 128, and recall and text as good (docs/log.md).
POLYNOMIAL = Elementwise(degree=2)
SEGMENT = 512  # of MAC, whose attention keeps two vectors of every token in it
PERSISTENT = 4  # learned tokens in front of a hybrid's attention


@dataclass(frozen=True)
class Size:
    """Depth, width and heads of the outer network, and what follows from how large they are.

    parameters: the budget, at a vocabulary of `vocabulary`; the feed-forward networks get what
    the mixers leave of it. window: of every sliding-window attention. expansion: of a deep memory;
    wide heads make the state grow with their square, and no state is to be larger than what full
    attention of that size keeps of 4,096 tokens.
    """

    layers: int
    dim: int
    heads: int
    parameters: int
    vocabulary: int = 32_000
    window: int = 2_048
    expansion: int = 4


SIZES = {
    "tiny": Size(3, 64, 4, 400_000, vocabulary=256, window=16),
    "small": Size(6, 192, 8, 5_000_000, vocabulary=256, window=256),
    "170m": Size(12, 768, 16, 170_000_000),
    "340m": Size(24, 1024, 16, 340_000_000),
    "760m": Size(24, 1536, 16, 760_000_000),
    "1.3b": Size(18, 2048, 8, 1_300_000_000, expansion=2),
}

# ---- the rows ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Variant:
    """A model: its mixers, repeated over the depth, and the memory inside them."""

    title: str
    mixers: tuple[Mixer, ...] = (Memory(),)
    memory: MemorySpec | None = None


LINEAR_ATTENTION = MemorySpec(
    features=Identity(),
    architecture=Matrix(),
    bias=DotProduct(),
    optimizer=GradientDescent(),
    retention=NoRetention(),
    window=1,
    chunk=1,
)
RETNET = replace(LINEAR_ATTENTION, retention=FixedRetention())
GLA = replace(LINEAR_ATTENTION, retention=ChannelRetention())
POLYSKETCHFORMER = replace(LINEAR_ATTENTION, features=Sketch(degree=4, size=16))

DELTANET = replace(LINEAR_ATTENTION, bias=L2())
LONGHORN = replace(DELTANET, optimizer=Implicit())
GATED_DELTANET = replace(DELTANET, retention=ScalarRetention(before_gradient=True))
RWKV7 = replace(DELTANET, retention=ChannelRetention())

TTT_LINEAR = replace(DELTANET, chunk=STALE_CHUNK)
TTT_MLP = replace(DELTANET, architecture=DEEP, chunk=CHUNK, output="online")
TITANS_MINUS = replace(TTT_MLP, retention=ScalarRetention())
TITANS = replace(TITANS_MINUS, optimizer=Momentum())

# Rows whose bias or retention has no exact step: every gradient at the chunk's start.
YAAD = replace(
    TITANS_MINUS,
    architecture=MLP(expansion=4),
    bias=Huber(0.5),
    chunk=STALE_CHUNK,
    output="chunk",
)
MONETA = replace(YAAD, bias=Lp(3), retention=LqRetention(4))
MEMORA = replace(YAAD, bias=BOUNDED_L2, retention=SoftmaxRetention())

DLA = replace(YAAD, features=POLYNOMIAL, bias=DotProduct())
SWLA = replace(DLA, window=STALE_WINDOW)
DEEP_TRANSFORMER = replace(DLA, features=Exponential())
SWDT = replace(DEEP_TRANSFORMER, window=STALE_WINDOW)
DOT = replace(SWDT, bias=BOUNDED_L2)

OMEGANET = replace(TITANS_MINUS, features=POLYNOMIAL, window=WINDOW)
ATLAS = replace(OMEGANET, optimizer=MUON)
ATLAS_PLUS = replace(ATLAS, architecture=GatedMLP(expansion=4, normalize=True))

ATTENTION = Attention(conv=4)
SWA = Attention(conv=4, window=2_048)
PLAIN_SWA = Attention(window=2_048)

VARIANTS = {
    "attention": Variant("Attention", (ATTENTION,)),
    "swa": Variant("SWA", (SWA,)),
    "linear_attention": Variant("Linear Attention", memory=LINEAR_ATTENTION),
    "retnet": Variant("RetNet", memory=RETNET),
    "gla": Variant("GLA", memory=GLA),
    "polysketchformer": Variant("PolySketchFormer", memory=POLYSKETCHFORMER),
    "ttt_linear": Variant("TTT (linear)", memory=TTT_LINEAR),
    "ttt_mlp": Variant("TTT (MLP)", memory=TTT_MLP),
    "deltanet": Variant("DeltaNet", memory=DELTANET),
    "longhorn": Variant("Longhorn", memory=LONGHORN),
    "gated_deltanet": Variant("Gated DeltaNet", memory=GATED_DELTANET),
    "rwkv7": Variant("RWKV-7", memory=RWKV7),
    "titans": Variant("Titans", memory=TITANS),
    "titans_minus": Variant("Titans--", memory=TITANS_MINUS),
    "moneta": Variant("Moneta", memory=MONETA),
    "yaad": Variant("Yaad", memory=YAAD),
    "memora": Variant("Memora", memory=MEMORA),
    "mesa": Variant("Mesa", (Mesa(),)),
    "dla": Variant("DLA", memory=DLA),
    "swla": Variant("SWLA", memory=SWLA),
    "deeptransformer": Variant("DeepTransformer", memory=DEEP_TRANSFORMER),
    "swdt": Variant("SWDT", memory=SWDT),
    "omeganet": Variant("OmegaNet", memory=OMEGANET),
    "dot": Variant("Dot", memory=DOT),
    "atlas": Variant("Atlas", memory=ATLAS),
    "atlas_plus": Variant("Atlas++", memory=ATLAS_PLUS),
    "atlas_mac": Variant("Atlas (MAC)", (MAC(2_048, PERSISTENT),), ATLAS),
    "atlas_mag": Variant("Atlas (MAG)", (MAG(2_048, PERSISTENT, combine="sum"),), ATLAS),
    "atlas_mal": Variant("Atlas (MAL)", (MAL(2_048, PERSISTENT, residual=True),), ATLAS),
    "samba": Variant("Samba", (Mamba(), PLAIN_SWA)),
    "gated_deltanet_h2": Variant(
        "Gated DeltaNet-H2", (Mamba2(), Memory(), PLAIN_SWA), GATED_DELTANET
    ),
    "transformer_plus": Variant("Transformer++", (Attention(),)),
    "mamba": Variant("Mamba", (Mamba(),)),
    "mamba2": Variant("Mamba2", (Mamba2(),)),
}


def variants() -> tuple[str, ...]:
    """Every name that `AtlasConfig.from_variant` knows."""
    return tuple(VARIANTS)


# ---- a variant at a size -----------------------------------------------------------------------


@lru_cache
def preset(variant: str, size: str) -> dict[str, Any]:
    """The fields of AtlasConfig for a variant at a size; read it, do not write to it."""
    shape, model = SIZES[size], VARIANTS[variant]
    memory = _sized_memory(model.memory, shape)
    mixers = [_sized_mixer(mixer, shape) for mixer in model.mixers]
    return {
        "variant": variant,
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.dim,
        "intermediate_size": _feed_forward_width(mixers, memory, shape),
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "mixers": [mixer_to_dict(mixer) for mixer in mixers],
        "memory": None if memory is None else memory.to_dict(),
    }


def _sized_memory(memory: MemorySpec | None, shape: Size) -> MemorySpec | None:
    if memory is None or not isinstance(memory.architecture, MLP | GatedMLP):
        return memory
    return replace(memory, architecture=replace(memory.architecture, expansion=shape.expansion))


def _sized_mixer(mixer: Mixer, shape: Size) -> Mixer:
    match mixer:
        case Attention(window=int()) | MAG() | MAL():
            return replace(mixer, window=shape.window)
        case MAC():
            return replace(mixer, segment=min(shape.window, SEGMENT))
        case _:
            return mixer


def _feed_forward_width(mixers: list[Mixer], memory: MemorySpec | None, shape: Size) -> int:
    """What the budget leaves for SwiGLU, in steps of 16 and never less than the model's width.

    Two variants of one size have the same number of parameters, wherever they put them.
    """
    width = Width(shape.dim, shape.heads, memory)
    with ShapesOnly():
        built = [mixer.build(width) for mixer in mixers]
    depth = islice(cycle(map(num_parameters, built)), shape.layers)
    norms = (2 * shape.layers + 1) * shape.dim
    left = shape.parameters - shape.vocabulary * shape.dim - norms - sum(depth)
    return max(shape.dim, round(left / shape.layers / (3 * shape.dim) / 16) * 16)


# ---- the paper's Table 1, as printed; Yaad, Mesa, SWLA and the hybrids are not in it ------------

MARKS = (
    "dynamic decay",
    "deep memory",
    "non-linear capacity",
    "locally optimal",
    "flexible context",
)

# name | attentional bias | optimizer | the five marks | memory write M_t =
_TABLE_1 = """
attention | sum_t a_t ||M k_t - v_t||^2 | NP | - - + + - | M_{t-1} + {(k_t, v_t)}
swa | sum_{t>=c} a_t ||M k_t - v_t||^2 | NP | - - + + + | M_{t-1} - {(k_c, v_c)} + {(k_t, v_t)}
linear_attention | <M k_t, v_t> | GD | - - - - - | M_{t-1} + v_t k_t^T
retnet | <M k_t, v_t> | GD | - - - - - | alpha M_{t-1} + v_t k_t^T
gla | <M k_t, v_t> | GD | + - - - - | Diag(alpha_t) M_{t-1} + v_t k_t^T
polysketchformer | <M k_t^p, v_t> | GD | - - + - - | M_{t-1} + v_t (k_t^T)^p
ttt_linear | ||M(k_t) - v_t||^2 | GD | - + - - - | M_{t-1} - eta grad l
ttt_mlp | ||M(k_t) - v_t||^2 | GD | - + - - - | M_{t-1} - eta grad l
deltanet | ||M k - v||^2 | GD | - - - - - | (I - beta_t k k^T) M_{t-1} + beta_t v k^T
longhorn | ||M k - v||^2 | implicit GD | - - - - - | (I - delta_t k k^T) M_{t-1} + delta_t v k^T
gated_deltanet | ||M k - v||^2 | GD | + - - - - | alpha_t (I - beta_t k k^T) M_{t-1} + beta_t v k^T
rwkv7 | ||M k - v||^2 | GD | + - - - - | (diag(alpha_t) - beta_t k k^T) M_{t-1} + beta_t v k^T
titans | ||M(k_t) - v_t||^2 | GD + momentum | + + - - - | alpha_t M_{t-1} + S_t
titans_minus | ||M(k_t) - v_t||^2 | GD | + + - - - | alpha_t M_{t-1} - eta_t grad l
moneta | ||M(k_t) - v_t||_p^p | GD | + + + - - | alpha_t M_{t-1} - eta_t grad l
memora | ||M(k_t) - v_t||^2 | GD | + + - - - | sigma(alpha_t log M_{t-1} - eta_t grad l)
dla | <M(phi(k_t)), v_t> | GD | + + - - - | alpha_t M_{t-1} - eta_t grad l
deeptransformer | <M(phi*(k_t)), v_t> | GD | + + + - - | alpha_t M_{t-1} - eta_t grad l
swdt | sum_{i>=c} <M(phi*(k_i)), v_i> | GD | + + + - + | alpha_t M_{t-1} - eta_t grad l
omeganet | sum_{i>=c} g_i ||M(phi(k_i)) - v_i||^2 | GD | + + + - + | alpha_t M_{t-1} - eta_t grad l
dot | sum_{i>=c} g_i ||M(phi*(k_i)) - v_i||^2 | GD | + + + - + | alpha_t M_{t-1} - eta_t grad l
atlas | sum_{i>=c} g_i ||M(phi(k_i)) - v_i||^2 | Muon | + + + + + | alpha_t M_{t-1} - eta_t NS5(S_t)
"""


@dataclass(frozen=True)
class Row:
    """A row of the paper's Table 1; `marks` answers the five questions of MARKS."""

    bias: str
    optimizer: str
    marks: tuple[bool, ...]
    write: str


def _row(line: str) -> tuple[str, Row]:
    name, bias, optimizer, marks, write = line.split(" | ")
    return name, Row(bias, optimizer, tuple(mark == "+" for mark in marks.split()), write)


TABLE_1 = dict(_row(line) for line in _TABLE_1.strip().splitlines())
