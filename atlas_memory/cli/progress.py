"""A line on stderr that says how far a long reading has come."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atlas_memory.serving.reading import Memory
    from atlas_memory.serving.text import Text

ON_SCREEN, IN_A_FILE = 0.2, 10.0  # seconds between two lines


class Progress:
    """Tokens, tokens per second, mean surprise; share and time left where the size is known."""

    def __init__(self, text: Text, base: int, resumed: int = 0) -> None:
        self.text, self.base, self.resumed = text, base, resumed
        self.began = time.monotonic()
        self.shown = self.began if not sys.stderr.isatty() else 0.0

    def show(self, memory: Memory, last: bool = False) -> None:
        every = ON_SCREEN if sys.stderr.isatty() else IN_A_FILE
        now = time.monotonic()
        if now - self.shown < every and not last:
            return
        self.shown = now
        begin, end = ("\r\033[K", "\n" if last else "") if sys.stderr.isatty() else ("", "\n")
        print(f"{begin}{self._line(memory, now)}", end=end, file=sys.stderr, flush=True)

    def _line(self, memory: Memory, now: float) -> str:
        read = memory.position - self.base
        speed = (read - self.resumed) / max(now - self.began, 1e-9)
        share = self._share(read)
        bar = "" if share is None else f"[{'#' * int(20 * share):20}] {100 * share:3.0f}%  "
        done = f"{bar}{read:,} tokens  {speed:,.0f} tokens/s  surprise {memory.surprise:.3f} bits"
        return done if share is None else f"{done}  {self._left(read, share, speed)} left"

    @staticmethod
    def _left(read: int, share: float, speed: float) -> str:
        """As long as the tokens that are missing take at the speed so far."""
        from atlas_memory.training.callbacks import clock

        return clock(read * (1 - share) / max(share, 1e-9) / max(speed, 1e-9))

    def _share(self, read: int) -> float | None:
        """By bytes, from the pieces behind and the place in this one."""
        total = self.text.total
        if not total:
            return None
        here = self.text.bookmark(read)
        per_token = here.size / here.before if here.before else 1.0
        return min(1.0, (here.size + (read - here.before) * per_token) / total)
