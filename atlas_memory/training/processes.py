"""Which of several processes this one is."""

from __future__ import annotations

import os


def processes() -> tuple[int, int]:
    """This process and how many there are, as torchrun says it."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
