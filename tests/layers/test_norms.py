"""RMSNorm against torch's own."""

import torch

from atlas_memory.layers.norms import RMSNorm


def test_equals_torch():
    norm = RMSNorm(8, eps=1e-6).double()
    norm.weight.data.normal_()
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    expected = torch.nn.functional.rms_norm(x, (8,), norm.weight, eps=1e-6)
    torch.testing.assert_close(norm(x), expected)


def test_bfloat16_is_normalized_in_float32():
    x = torch.full((1, 4096), 300.0, dtype=torch.bfloat16)
    y = RMSNorm(4096).bfloat16()(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, torch.ones_like(x))
