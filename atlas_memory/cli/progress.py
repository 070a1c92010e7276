"""A line on stderr that says how far a long reading has come."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atlas_memory.reading.read import Memory
    from atlas_memory.reading.text import Text

ON_SCREEN, IN_A_FILE = 0.2, 10.0  # seconds between two lines


class Line:
    """A line that replaces itself on a screen, and is written now and then into a file."""

    def __init__(self) -> None:
        self.shown = time.monotonic() if not sys.stderr.isatty() else 0.0

    def due(self, now: float) -> bool:
        return now - self.shown >= (ON_SCREEN if sys.stderr.isatty() else IN_A_FILE)

    def write(self, text: str, now: float, last: bool) -> None:
        self.shown = now
        begin, end = ("\r\033[K", "\n" if last else "") if sys.stderr.isatty() else ("", "\n")
        print(f"{begin}{text}", end=end, file=sys.stderr, flush=True)


def bar(share: float) -> str:
    return f"[{'#' * int(20 * share):20}] {100 * share:3.0f}%  "


class Bar:
    """How many of so many things are done, how many a second since there were 0, the time left."""

    def __init__(self, things: str) -> None:
        self.things, self.line, self.began = things, Line(), 0.0

    def show(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done == 0:
            self.began = now
        if done == 0 or (done < total and not self.line.due(now)):
            return
        from atlas_memory.training.callbacks import clock

        speed = done / max(now - self.began, 1e-9)
        text = f"{bar(done / total)}{done:,} {self.things}  {speed:,.0f} {self.things}/s"
        self.line.write(f"{text}  {clock((total - done) / speed)} left", now, done >= total)


class Progress:
    """Tokens, tokens per second, mean surprise; share and time left where the size is known."""

    def __init__(self, text: Text, base: int, resumed: int = 0) -> None:
        self.text, self.base, self.resumed = text, base, resumed
        self.line, self.began = Line(), time.monotonic()

    def show(self, memory: Memory, last: bool = False) -> None:
        now = time.monotonic()
        if self.line.due(now) or last:
            self.line.write(self._line(memory, now), now, last)

    def _line(self, memory: Memory, now: float) -> str:
        read = memory.position - self.base
        speed = (read - self.resumed) / max(now - self.began, 1e-9)
        share = self._share(read)
        shown = "" if share is None else bar(share)
        done = f"{shown}{read:,} tokens  {speed:,.0f} tokens/s  surprise {memory.surprise:.3f} bits"
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
