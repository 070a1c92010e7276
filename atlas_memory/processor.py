"""The processor of this process: how it counts, and what it is."""

import platform
from pathlib import Path

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3  # of glibc's malloc.h


def flush_tiny_numbers() -> None:
    """Let numbers below 1e-38 be 0: with them a processor takes up to a hundred times as long.

    A deep memory that forgets writes them: what is left of its first weights behind 16,000 tokens,
    and its gradients. It holds for this thread and those it starts later, so say it early. Only
    programs of our own say it; a library leaves the processor as it found it.
    """
    import torch

    torch.set_flush_denormal(True)  # False where the processor cannot, and then nothing is lost


def keep_freed_memory() -> None:
    """Let what is freed be used again, up to a quarter of a gigabyte, instead of being given back.

    A decoded token makes a state as large as the one before, some megabytes for a batch. Given back
    to the system and asked for again, each of its pages is a fault that fills it with zeros: a
    third of a server's decoding. Other C libraries than glibc have no such choice.
    """
    from ctypes import CDLL

    if platform.libc_ver()[0] != "glibc":
        return
    choose = CDLL(None).mallopt
    for choice, megabytes in ((TRIM_THRESHOLD, 256), (TOP_PAD, 16), (MMAP_THRESHOLD, 32)):
        choose(choice, megabytes << 20)


def processor_name() -> str:
    """As Linux tells it; elsewhere as Python does."""
    told = Path("/proc/cpuinfo")
    for line in told.read_text().splitlines() if told.is_file() else ():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return " ".join(value.split())
    return platform.processor() or platform.machine()
