"""An accelerator without one: shapes on a device without values, and counts of what it would run.

On the meta device a tensor has a shape and a dtype and nothing else, so whatever asks for a value
fails, and so does most of what mixes it with the CPU: what runs here never waits for a device. A
torch with CUDA inside, GPU or not, traces the same for that device under FakeTensorMode.
"""

import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from models import config
from torch._subclasses.fake_tensor import FakeTensorMode

from atlas_memory.family import variants
from atlas_memory.layers import projections
from atlas_memory.memory import online_chunk
from atlas_memory.model import AtlasForCausalLM

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import operations

DEVICES = {"meta": nullcontext}
if torch.cuda._is_compiled():  # a build without it has no guard for the device's streams
    DEVICES["cuda"] = FakeTensorMode


# phi* keeps every key, and how many there are is counted on the host.
GROWING = {"deeptransformer", "swdt", "dot"}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("variant", [name for name in variants() if name not in GROWING])
def test_training_and_decoding_ask_for_no_value(variant, device):
    with DEVICES[device](), torch.device(device):
        model = AtlasForCausalLM(config(variant, "tiny")).train()
        ids = torch.zeros(2, 37, dtype=torch.long)
        loss = model(ids, labels=ids).loss
        loss.backward()
        assert loss.device.type == device
        assert all(p.grad is None or p.grad.device.type == device for p in model.parameters())
        model.eval()
        with torch.no_grad():
            cache = model(ids, use_cache=True).past_key_values
            for _ in range(10):
                out = model(ids[:, :1], past_key_values=cache, use_cache=True)
                cache = out.past_key_values
        assert out.logits.shape == (2, 1, model.config.vocab_size)
        assert out.logits.device.type == device


def test_counts_of_operations(monkeypatch):
    """What `benchmarks/operations.py` prints for its shape, and no wait for the host."""
    monkeypatch.setattr(online_chunk, "UNKNOWNS", online_chunk.ON_ACCELERATOR)
    monkeypatch.setattr(projections, "BY_TAPS", ())
    found = {name: operations.measure(name) for name in ("atlas", "titans", "gated_deltanet")}
    atlas = found["atlas"]
    assert atlas["token per layer"] <= 100
    assert atlas["reading 4096"] <= 5_000
    assert atlas["training step"] <= 1_800
    for counts in found.values():
        assert all(counts[name] <= atlas[name] for name in counts)
        assert all(n == 0 for name, n in counts.items() if name.endswith("syncs"))
