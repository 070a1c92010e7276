"""What a model costs, without building it: parameters, state and arithmetic.

Parameters are counted on the meta device. The state is that of one real token in one real mixer
of each kind, so it is the number that a cache reports. FLOPs are two per multiply-add of the
matrix products of one token's forward pass; elementwise work is left out.
"""

from dataclasses import dataclass

import torch
from torch import nn

from atlas_memory import blocks
from atlas_memory.config import AtlasConfig
from atlas_memory.layers.gates import GateProjections
from atlas_memory.layers.mamba2 import MAMBA2
from atlas_memory.layers.shapes_only import ShapesOnly, num_parameters
from atlas_memory.memory.linear import block_size
from atlas_memory.memory.online_chunk import run_length
from atlas_memory.memory.spec import MemorySpec


@dataclass(frozen=True)
class Costs:
    """state_bytes: of a sequence of one token, grown by state_bytes_per_token with each more.

    flops_per_token: at the given context length.
    """

    parameters: int
    state_bytes: int
    state_bytes_per_token: int
    flops_per_token: int


def costs(config: AtlasConfig, context: int) -> Costs:
    mixers = config.mixer_of_layer()
    states = {mixer: state_bytes(mixer, config.width) for mixer in set(mixers)}
    return Costs(
        parameters=parameters(config),
        state_bytes=sum(states[mixer][0] for mixer in mixers),
        state_bytes_per_token=sum(states[mixer][1] for mixer in mixers),
        flops_per_token=flops_per_token(config, context),
    )


def parameters(config: AtlasConfig) -> int:
    """All trainable numbers, tied embeddings counted once."""
    embeddings = config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
    with ShapesOnly():
        layers = [_block(mixer, config) for mixer in config.mixer_of_layer()]
    return embeddings + config.hidden_size + sum(map(num_parameters, layers))


def _block(mixer: blocks.Mixer, config: AtlasConfig) -> nn.Module:
    inner = mixer.build(config.width)
    return blocks.Block(config.hidden_size, config.intermediate_size, inner, config.rms_norm_eps)


@torch.inference_mode()
def state_bytes(mixer: blocks.Mixer, width: blocks.Width) -> tuple[int, int]:
    """Bytes after the first token of a sequence, and how many each further token adds."""
    module = mixer.build(width)
    token = torch.randn(1, 1, width.dim)
    first = module(token)[1].num_bytes
    if not grows(mixer, width.memory):
        return first, 0
    chunk = 1 if width.memory is None else width.memory.chunk  # a kernel grows when a chunk closes
    later, latest = (
        module(token.expand(1, chunks * chunk, width.dim))[1].num_bytes for chunks in (3, 4)
    )
    return first, (latest - later) // chunk


def grows(mixer: blocks.Mixer, memory: MemorySpec | None) -> bool:
    """Whether a mixer keeps every token: full attention does, and phi* does."""
    match mixer:
        case blocks.Attention(window=window):
            return window is None
        case blocks.Memory() | blocks.MAG() | blocks.MAL():
            return memory is not None and memory.features.kernel
        case _:
            return False


def flops_per_token(config: AtlasConfig, context: int) -> int:
    """Matrix products of the projections, of what mixes tokens, and of the head."""
    head = config.vocab_size * config.hidden_size
    total = head
    with ShapesOnly():
        for mixer in config.mixer_of_layer():
            total += _linear(_block(mixer, config)) + mixing(mixer, config.width, context)
    return 2 * total


def _linear(module: nn.Module) -> int:
    """Multiply-adds of all linear maps on one token."""
    kinds = (nn.Linear, GateProjections)
    return sum(layer.weight.numel() for layer in module.modules() if isinstance(layer, kinds))


def mixing(mixer: blocks.Mixer, width: blocks.Width, context: int) -> int:
    """Multiply-adds with which one token meets the `context` before it."""
    match mixer:
        case blocks.Attention(window=window):
            return 2 * width.dim * min(context, window or context)
        case blocks.MAG(window=window) | blocks.MAL(window=window):
            return 2 * width.dim * min(context, window) + _memory(width, context)
        case blocks.MAC(segment=segment):
            seen = min(context, segment)
            return 4 * width.dim * seen + _memory(width, context) + _recall(width)
        case blocks.Memory():
            return _memory(width, context)
        case blocks.Mamba(state_size=n):
            return 2 * width.dim * n
        case blocks.Mamba2(state_size=n):
            inner = 2 * width.dim
            return 2 * inner * n + (inner + width.heads * n) * block_size(MAMBA2)
        case blocks.Mesa():
            return 5 * width.dim * (width.dim // width.heads)
    raise AssertionError(mixer)


def _shapes(width: blocks.Width) -> tuple[MemorySpec, list[tuple[int, int]]]:
    assert width.memory is not None
    d = width.dim // width.heads
    features = width.memory.features.dim(d)
    return width.memory, list(width.memory.architecture.shapes(features, d))


def _recall(width: blocks.Width) -> int:
    return width.heads * sum(out * into for out, into in _shapes(width)[1])


def _memory(width: blocks.Width, context: int) -> int:
    """The inner loop of all heads: predict and learn every pair, answer the query.

    Every matrix is applied to the pair and to the query and folded with the pair's gradient; all
    but the innermost also carry the gradient back. Inside a chunk the query meets its pairs.
    """
    spec, shapes = _shapes(width)
    if spec.online:
        return round(width.heads * _exact(spec, shapes))
    block = block_size(spec) if spec.linear else spec.chunk
    pairs = block + spec.window - 1
    again = pairs / block  # pairs of the look-back are evaluated once more in every chunk
    total = 0.0
    for i, (out, into) in enumerate(shapes):
        inner = i in spec.architecture.inputs
        carried = 0 if inner else 1
        learn = (1 + carried + (2 if spec.optimizer.momentum else 1)) * again
        total += out * into * (1 + learn) + (out + into) * pairs
        if spec.features.kernel and inner:
            total += (out + into) * context * (1 + again)
        if spec.optimizer.orthogonal:
            gathered = out * into * pairs
            total += (gathered + spec.optimizer.products(out, into)) / spec.optimizer.period
        elif spec.retention.mapped:
            total += out * into * pairs
        elif spec.retention.channel:
            total += block * block * into  # a decay per feature for every two tokens of a block
    return round(width.heads * total)


def _exact(spec: MemorySpec, shapes: list[tuple[int, int]]) -> float:
    """One head of a memory whose output matrix is exact.

    A run is a list of the output matrix' rows and c entries a token; its errors, the way back and
    the query meet all of them. A hidden matrix is applied to the pair at the chunk's start, to the
    query now and as it was born. Gates become coefficients by products of their decays.
    """
    (dv, hidden), c = shapes[0], 1 if spec.bias.hebbian else spec.window
    run, momentum = run_length(spec, torch.device("cpu")), spec.optimizer.heavy
    pairs, times = spec.chunk + spec.window - 1, 2 if momentum else 1
    listed, again = times * dv + run * c, pairs / spec.chunk
    total = float(listed * (c * hidden + 2 * (dv + hidden)) + run * run * c * times)
    total += dv * hidden * listed * times / run + spec.chunk * pairs * times
    for out, into in shapes[1:]:
        born = 1 if spec.retention.forgets else 0
        total += out * into * (1 + born + 2 * again + (2 if momentum else 0))
        if spec.optimizer.orthogonal:
            total += spec.optimizer.products(out, into) / spec.optimizer.period
            total += 0 if spec.optimizer.period == spec.chunk else out * into * pairs
        else:
            total += (out + into) * pairs
    return total
