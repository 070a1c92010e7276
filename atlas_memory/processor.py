"""The processor of this process: how it counts, and what it is."""

import platform
from pathlib import Path


def flush_tiny_numbers() -> None:
    """Let numbers below 1e-38 be 0: with them a processor takes up to a hundred times as long.

    A deep memory that forgets writes them: what is left of its first weights behind 16,000 tokens,
    and its gradients. It holds for this thread and those it starts later, so say it early. Only
    programs of our own say it; a library leaves the processor as it found it.
    """
    import torch

    torch.set_flush_denormal(True)  # False where the processor cannot, and then nothing is lost


def processor_name() -> str:
    """As Linux tells it; elsewhere as Python does."""
    told = Path("/proc/cpuinfo")
    for line in told.read_text().splitlines() if told.is_file() else ():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return " ".join(value.split())
    return platform.processor() or platform.machine()
