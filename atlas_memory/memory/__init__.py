"""The inner loop: what is learned at test time. Pure functions of tensors and state."""

from atlas_memory.memory.architectures import MLP, GatedMLP, Matrix
from atlas_memory.memory.attentional_bias import L2, DotProduct, Huber, Lp
from atlas_memory.memory.feature_maps import (
    Elementwise,
    Exponential,
    Identity,
    Polynomial,
    Sketch,
)
from atlas_memory.memory.memorize import compile_chunks, memorize
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
