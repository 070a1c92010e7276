import os
import platform
import subprocess
import sys

import pytest
import torch

from atlas_memory.processor import processor_name

PROGRAM = """
from threading import Thread
import torch
from atlas_memory.processor import flush_tiny_numbers

def tiny():
    found.append(float((torch.full((1000,), 1e-30) * torch.full((1000,), 1e-10)).max()))

found = []
if {asked}:
    flush_tiny_numbers()
tiny()
later = Thread(target=tiny)
later.start()
later.join()
print(*found)
"""


@pytest.mark.parametrize("asked", [False, True])
def test_tiny_numbers_are_zero_in_this_thread_and_later_ones_where_asked(asked: bool) -> None:
    before = torch.finfo().tiny
    program = PROGRAM.format(asked=asked)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    found = [float(word) for word in done.stdout.split()]
    assert len(found) == 2
    assert all(x == 0 if asked else 0 < x < before for x in found)


FAULTS = """
from resource import RUSAGE_SELF, getrusage
import torch
from atlas_memory.processor import keep_freed_memory

keep_freed_memory()
kept = torch.ones(1 << 20)
for _ in range(100):
    before = getrusage(RUSAGE_SELF).ru_minflt
    kept, kept_too = torch.ones(1 << 20), torch.ones(1 << 20)
    del kept_too
print(getrusage(RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has this choice")
def test_freed_memory_is_used_again() -> None:
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, check=True)
    assert int(done.stdout) < 100  # two tensors have 2,048 pages


@pytest.mark.parametrize(
    ("asked", "told", "threads"),
    [("", "", max(1, (os.cpu_count() or 1) - 1)), ("", "1", 1), ("2", "1", 2)],
)
def test_a_core_is_left_where_nobody_says_otherwise(asked: str, told: str, threads: int) -> None:
    program = (
        f"import torch; from atlas_memory.processor import leave_a_core as leave; leave({asked})"
    )
    program += "; print(torch.get_num_threads())"
    known = {key: x for key, x in os.environ.items() if key != "OMP_NUM_THREADS"}
    known |= {"OMP_NUM_THREADS": told} if told else {}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, env=known
    )
    assert int(done.stdout) == threads


def test_a_processor_has_a_name() -> None:
    assert processor_name().strip() == processor_name() != ""
