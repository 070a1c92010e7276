"""What holds for every test: reproducible, offline, one thread, no uninitialised memory."""

import os

# The hub is read when huggingface_hub is imported; without it a wrong name is tried for a minute.
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from hypothesis import settings

# Deterministic algorithms also fill torch.empty with NaN, so a value that is read before it is
# written shows up in the result instead of looking like a small number.
torch.use_deterministic_algorithms(True)
torch.set_num_threads(1)

settings.register_profile("house", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("house")


@pytest.fixture(autouse=True)
def numbers_as_they_are():
    """A command that is run inside of a test lets tiny numbers be 0; the next test has them."""
    yield
    torch.set_flush_denormal(False)
