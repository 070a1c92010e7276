"""The inner loop: what is learned at test time. Pure functions of tensors and state.

Symbols and shapes. One letter, one meaning, everywhere in `memory/`.

    paper     code      meaning                                      shape
    k, v, q   k, v, q   key, value, query                            b h t d
    y         y         what the memory answers                      b h t dv
    phi       features  feature map of keys and queries              dk -> D
    M, W_l    W         the memory's matrices, l = 1 .. L            b h out in
    S_t       S         momentum of the memory                       as W
    M_t'      W'        the memory at the end of the previous chunk  as W
    l         bias      attentional bias, the inner loss             scalar
    u_i       d (x) x   inner gradient of pair i, always rank one    out, in
    alpha     alpha     retention: what is kept of the old memory    b h t
    eta       eta       inner step size                              b h t
    theta     theta     inner momentum                               b h t
    gamma     gamma     gates of the window, token t-j in step t     b h t c
    c         window    pairs that a step looks at
    b         chunk     tokens that share one gradient point W'

Inside the engine batch and heads are one axis g = b * h, a chunk has m tokens and n = m + c - 1
pairs: its own and the c - 1 before it.
"""

from atlas_memory.memory.architectures import MLP, GatedMLP, Matrix
from atlas_memory.memory.attentional_bias import L2, DotProduct, Huber, Lp
from atlas_memory.memory.feature_maps import (
    Elementwise,
    Exponential,
    Identity,
    Polynomial,
    Sketch,
)
from atlas_memory.memory.graphs import compile_chunks
from atlas_memory.memory.memorize import memorize
from atlas_memory.memory.mesa import MesaState, mesa
from atlas_memory.memory.omega import Gates
from atlas_memory.memory.optimizers import GradientDescent, Implicit, Momentum, Muon
from atlas_memory.memory.retention import (
    ChannelRetention,
    FixedRetention,
    LqRetention,
    NoRetention,
    ScalarRetention,
    SoftmaxRetention,
)
from atlas_memory.memory.spec import MemorySpec
from atlas_memory.memory.state import MemoryState

__all__ = [
    "L2",
    "MLP",
    "ChannelRetention",
    "DotProduct",
    "Elementwise",
    "Exponential",
    "FixedRetention",
    "GatedMLP",
    "Gates",
    "GradientDescent",
    "Huber",
    "Identity",
    "Implicit",
    "Lp",
    "LqRetention",
    "Matrix",
    "MemorySpec",
    "MemoryState",
    "MesaState",
    "Momentum",
    "Muon",
    "NoRetention",
    "Polynomial",
    "ScalarRetention",
    "Sketch",
    "SoftmaxRetention",
    "compile_chunks",
    "memorize",
    "mesa",
]
