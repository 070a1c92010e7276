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


def test_a_processor_has_a_name() -> None:
    assert processor_name().strip() == processor_name() != ""
