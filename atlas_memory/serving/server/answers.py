"""The text of an answer as its tokens come, up to the first stop."""

from __future__ import annotations

from atlas_memory.data.tokenizer import Tokenizer
from atlas_memory.reading.generation import Stream


class Answer:
    """Text that could still turn out to be the beginning of a stop is held back."""

    def __init__(self, tokenizer: Tokenizer, stops: tuple[str, ...] = ()) -> None:
        self.tokens, self.stopped = 0, False
        self._stops, self._held = stops, ""
        self._pieces: list[str] = []
        self._stream = Stream(tokenizer, self._pieces.append)

    def add(self, token: int) -> str:
        """What can be shown now."""
        self.tokens += 1
        self._stream.add([token])
        return self._show()

    def end(self) -> str:
        """What is left to be shown when no token follows."""
        if self.stopped:
            return ""
        self._stream.end()
        shown = self._show()
        shown, self._held = shown + self._held, ""
        return shown

    def _show(self) -> str:
        text = self._held + "".join(self._pieces)
        self._pieces.clear()
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        kept = len(text) - max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[kept:]
        return text[:kept]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
