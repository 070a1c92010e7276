"""The combinations that the engine is tested over.

The full product of all choices has thousands of rows. `GRID` holds every architecture with every
bias and every optimizer, and turns feature maps, retentions and (chunk, window) beside them with
periods that share no factor, so that neighbours meet in ever new pairs. `EXTRA` holds what only
goes together with few others.
"""

from __future__ import annotations

import itertools

import pytest

import atlas_memory as am

ARCHITECTURES = (am.Matrix(), am.MLP(2), am.MLP(2, residual=False), am.GatedMLP(2))
BIASES = (am.L2(), am.DotProduct(), am.Lp(3.0), am.Huber(0.4))
OPTIMIZERS = (am.GradientDescent(), am.Momentum(), am.Muon(5), am.Muon(3, period=2))
FEATURES = (am.Identity(), am.Polynomial(2), am.Elementwise(2), am.Sketch(2, 3), am.Identity())
RETENTIONS = (
    am.ScalarRetention(),
    am.NoRetention(),
    am.ScalarRetention(),
    am.FixedRetention(),
    am.SoftmaxRetention(),
    am.ScalarRetention(),
    am.LqRetention(4.0),
)
# Windows below, at and above the chunk; also a chunk of one token and one longer than the sequence.
CHUNK_WINDOW = (
    (4, 2),
    (4, 4),
    (4, 7),
    (1, 1),
    (1, 3),
    (3, 1),
    (5, 5),
    (2, 6),
    (16, 5),
    (3, 4),
    (6, 3),
)

GRID = tuple(
    am.MemorySpec(
        features=FEATURES[n % len(FEATURES)],
        architecture=architecture,
        bias=bias,
        optimizer=optimizer,
        retention=RETENTIONS[n % len(RETENTIONS)],
        # A period longer than the chunk would never be reached.
        chunk=max(CHUNK_WINDOW[n % len(CHUNK_WINDOW)][0], vars(optimizer).get("period", 1)),
        window=CHUNK_WINDOW[n % len(CHUNK_WINDOW)][1],
    )
    for n, (architecture, bias, optimizer) in enumerate(
        itertools.product(ARCHITECTURES, BIASES, OPTIMIZERS)
    )
)


def matrix(**choices: object) -> am.MemorySpec:
    given = {"features": am.Identity(), "architecture": am.Matrix(), "bias": am.L2()}
    given |= {"optimizer": am.GradientDescent(), "retention": am.NoRetention()}
    return am.MemorySpec(**{**given, "window": 1, "chunk": 1, **choices})


def kernel(features: am.Exponential, **choices: object) -> am.MemorySpec:
    return matrix(features=features, **choices)


BEFORE = am.ScalarRetention(before_gradient=True)

EXTRA = (
    # the decay before the gradient, for tokens taken one at a time
    matrix(retention=BEFORE),
    matrix(retention=BEFORE, optimizer=am.Momentum(), window=3),
    matrix(retention=BEFORE, architecture=am.MLP(2), bias=am.Huber(0.4)),
    # one decay for every input channel
    matrix(retention=am.ChannelRetention()),
    matrix(retention=am.ChannelRetention(), bias=am.DotProduct(), chunk=4, window=3),
    matrix(retention=am.ChannelRetention(), optimizer=am.Momentum(), chunk=4, window=6),
    matrix(retention=am.ChannelRetention(), features=am.Polynomial(2), chunk=3, window=2),
    matrix(
        retention=am.ChannelRetention(), features=am.Polynomial(2), optimizer=am.Muon(5), chunk=3
    ),
    # the implicit step
    matrix(optimizer=am.Implicit()),
    matrix(optimizer=am.Implicit(), retention=am.ScalarRetention(), features=am.Polynomial(2)),
    matrix(optimizer=am.Implicit(), retention=am.FixedRetention()),
    # Memora and Moneta with every optimizer
    matrix(retention=am.SoftmaxRetention(), optimizer=am.Momentum(), chunk=4, window=2),
    matrix(retention=am.SoftmaxRetention(), optimizer=am.Muon(5), chunk=2, window=3),
    matrix(retention=am.SoftmaxRetention(2.0), architecture=am.GatedMLP(2), chunk=3),
    matrix(
        retention=am.LqRetention(2.5), optimizer=am.Momentum(), bias=am.Lp(4.0), chunk=4, window=5
    ),
    matrix(retention=am.LqRetention(4.0), optimizer=am.Muon(5), architecture=am.MLP(2), chunk=2),
    # a matrix with the key around it: in every way of reading
    matrix(architecture=am.Matrix(residual=True)),
    matrix(
        architecture=am.Matrix(residual=True),
        retention=am.ScalarRetention(),
        optimizer=am.Momentum(),
        window=3,
        chunk=4,
    ),
    matrix(architecture=am.Matrix(residual=True), bias=am.DotProduct(), chunk=4, window=2),
    matrix(
        architecture=am.Matrix(residual=True),
        retention=am.ChannelRetention(),
        features=am.Polynomial(2),
        window=2,
    ),
    matrix(architecture=am.Matrix(residual=True), optimizer=am.Muon(5), chunk=4, window=3),
    # a third degree
    matrix(features=am.Polynomial(3), optimizer=am.Muon(5), chunk=4, window=4),
    # a period that does not divide the chunk, and one that equals it
    matrix(optimizer=am.Muon(5, period=3), architecture=am.MLP(2), chunk=5, window=2),
    matrix(optimizer=am.Muon(5, period=4), architecture=am.MLP(2), chunk=4, window=6),
)

# The outer gradient takes the inner ones as constants: every way of computing them must agree.
STOPPED = (
    matrix(stop_gradient=True),
    matrix(stop_gradient=True, retention=BEFORE),
    matrix(stop_gradient=True, optimizer=am.Momentum(), retention=am.ScalarRetention(), window=2),
    matrix(stop_gradient=True, retention=am.ChannelRetention(), bias=am.DotProduct(), chunk=4),
    matrix(stop_gradient=True, optimizer=am.Implicit()),
    matrix(stop_gradient=True, architecture=am.MLP(2), optimizer=am.Momentum(), chunk=4, window=3),
    matrix(
        stop_gradient=True, architecture=am.GatedMLP(2), optimizer=am.Muon(5), chunk=3, window=2
    ),
    matrix(stop_gradient=True, retention=am.SoftmaxRetention(), chunk=4, window=2),
    kernel(am.Exponential(), stop_gradient=True, architecture=am.MLP(2), chunk=4, window=2),
)

KERNELS = (
    kernel(am.Exponential(), bias=am.DotProduct(), chunk=4),
    kernel(am.Exponential(normalize=False), bias=am.DotProduct(), chunk=4, window=3),
    kernel(
        am.Exponential(), optimizer=am.Momentum(), retention=am.ScalarRetention(), chunk=4, window=2
    ),
    kernel(am.Exponential(), retention=am.FixedRetention()),
    kernel(am.Exponential(), architecture=am.Matrix(residual=True), chunk=4, window=2),
    kernel(am.Exponential(normalize=False), retention=am.ScalarRetention(), chunk=1, window=3),
    kernel(am.Exponential(), architecture=am.MLP(2), bias=am.DotProduct(), chunk=4, window=6),
    kernel(am.Exponential(), architecture=am.MLP(2), bias=am.Huber(0.4), chunk=1),
    kernel(
        am.Exponential(normalize=False),
        architecture=am.MLP(2, residual=False),
        optimizer=am.Momentum(),
        retention=am.ScalarRetention(),
        chunk=3,
        window=3,
    ),
    kernel(
        am.Exponential(),
        architecture=am.GatedMLP(2),
        optimizer=am.Momentum(),
        retention=am.ScalarRetention(),
        chunk=5,
        window=4,
    ),
    kernel(am.Exponential(normalize=False), architecture=am.GatedMLP(2), bias=am.Lp(3.0), chunk=4),
)

# The output matrix exact at every token: both deep networks, every optimizer, two feature maps and
# windows of one pair, below and above the chunk; the other choices turn beside them.
ONLINE = tuple(
    am.MemorySpec(
        features=features,
        architecture=architecture(2, residual=n % 5 != 0, normalize=n % 3 != 0),
        bias=am.DotProduct() if n % 7 == 6 else am.L2(),
        optimizer=optimizer,
        retention=(am.ScalarRetention(), am.ScalarRetention(), am.NoRetention())[n % 3],
        window=window,
        chunk=4,
        output="online",
    )
    for n, (architecture, optimizer, features, window) in enumerate(
        itertools.product(
            (am.MLP, am.GatedMLP),
            (am.GradientDescent(), am.Momentum(), am.Muon(5), am.Muon(3, 2), am.Muon(5, 4)),
            (am.Identity(), am.Polynomial(2)),
            (1, 3, 6),
        )
    )
)
ONLINE += (
    matrix(output="online", retention=am.ScalarRetention(), chunk=4, window=3),
    matrix(output="online", retention=am.FixedRetention(), optimizer=am.Momentum(), chunk=4),
    matrix(output="online", architecture=am.MLP(2), retention=am.FixedRetention(), window=2),
    matrix(
        output="online",
        architecture=am.MLP(2, normalize=True),
        retention=am.ScalarRetention(),
        window=3,
        chunk=5,
        stop_gradient=True,
    ),
    matrix(
        output="online",
        architecture=am.GatedMLP(2),
        retention=am.ScalarRetention(),
        optimizer=am.Muon(5, 3),
        window=2,
        chunk=7,
    ),
)

# The oracle takes seconds for these: a third of them, and the last, are for every run.
SAMPLED = (*ONLINE[0:-5:3], *ONLINE[-5:])
ALL = GRID + EXTRA + STOPPED + KERNELS + SAMPLED
SLOW = tuple(pytest.param(x, marks=pytest.mark.slow) for x in ONLINE if x not in SAMPLED)
# A few of every kind, for the tests that run each of them many times.
FEW = (GRID[1], GRID[7], GRID[18], GRID[28], GRID[46], GRID[63], EXTRA[1], EXTRA[3], EXTRA[5])
FEW += (EXTRA[7], EXTRA[8], EXTRA[11], EXTRA[15], EXTRA[17], KERNELS[2], KERNELS[8])
FEW += (ONLINE[1], ONLINE[16], ONLINE[28], ONLINE[40], ONLINE[-5], ONLINE[-1])
