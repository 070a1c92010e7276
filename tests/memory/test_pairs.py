"""Sums over pairs, which Newton-Schulz and the maps of mirror descents need as matrices."""

import pytest
import torch

from atlas_memory.memory.omega import accumulate


@pytest.mark.parametrize("rows", [1, 7, 40])
@pytest.mark.parametrize(("out", "into"), [(3, 16), (16, 3), (5, 5)])
def test_for_few_rows_and_for_many(rows, out, into):
    """Pairs scaled for every row, or multiplied out once."""
    draw = torch.Generator().manual_seed(0)
    shapes = (2, rows, 9), (2, 9, out), (2, 9, into)
    weights, d, x = (torch.randn(s, generator=draw, dtype=torch.float64) for s in shapes)
    expected = torch.einsum("gtn,gno,gni->gtoi", weights, d, x)
    torch.testing.assert_close(accumulate(weights, (d, x)), expected)
