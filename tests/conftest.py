"""What holds for every test: reproducible, one thread, and no read of uninitialised memory."""

import torch
from hypothesis import settings

# Deterministic algorithms also fill torch.empty with NaN, so a value that is read before it is
# written shows up in the result instead of looking like a small number.
torch.use_deterministic_algorithms(True)
torch.set_num_threads(1)

settings.register_profile("house", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("house")
