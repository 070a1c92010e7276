"""What the tests of layers share: inputs, and reading them part by part."""

import torch


def rows(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def stream(layer, x, cuts):
    """Output and last state of a layer that is given x [b, t, dim] in parts of `cuts` tokens."""
    state, parts = None, []
    for part in x.split(cuts, dim=1):
        y, state = layer(part, state)
        parts.append(y)
    return torch.cat(parts, dim=1), state
