"""The processor of this process: how it counts, and what it is."""

import os
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
    third of a server's decoding, a quarter of reading 4,096 tokens. Other C libraries than glibc
    have no such choice, and what GLIBC_TUNABLES tells stays as it is.
    """
    from ctypes import CDLL

    if platform.libc_ver()[0] != "glibc" or "GLIBC_TUNABLES" in os.environ:
        return
    choose = CDLL(None).mallopt
    for choice, megabytes in ((TRIM_THRESHOLD, 256), (TOP_PAD, 16), (MMAP_THRESHOLD, 32)):
        choose(choice, megabytes << 20)


def leave_a_core(threads: int | None = None) -> None:
    """As many threads for torch, or all cores but one where neither this nor OMP_NUM_THREADS tells.

    Threads that share a product wait for each other without sleeping. Where another one, such as
    that of a server's connections, has taken one's core, all others wait for it at every product.
    """
    import torch

    if threads is not None or "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads or max(1, (os.cpu_count() or 1) - 1))


def processor_name() -> str:
    """As Linux tells it; elsewhere as Python does."""
    told = Path("/proc/cpuinfo")
    for line in told.read_text().splitlines() if told.is_file() else ():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return " ".join(value.split())
    return platform.processor() or platform.machine()
