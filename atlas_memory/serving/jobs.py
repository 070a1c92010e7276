"""What an engine is asked to do, and what it tells about it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from atlas_memory.reading.read import Memory
from atlas_memory.serving.sampling import GREEDY, Sampling
from atlas_memory.serving.scores import Score


@dataclass(frozen=True, eq=False)
class Completion:
    """Go on after `prompt` [n], which goes on after `memory`; a token of `ends` is the last one.

    top: score every token and so many of the most probable ones; None: do not. scores_prompt: those
    of the prompt too. begin: a name of the memory that is never another's, which lets states behind
    it be found again.
    """

    prompt: Tensor
    max_new_tokens: int
    memory: Memory | None = None
    sampling: Sampling = GREEDY
    ends: frozenset[int] = frozenset()
    top: int | None = None
    scores_prompt: bool = False
    begin: str = ""

    @property
    def known(self) -> Tensor:
        """Tokens behind the states, [1, n]: what is to be fed."""
        return _known(self.memory, self.prompt)


@dataclass(frozen=True, eq=False)
class Reading:
    """Read `tokens` [n], behind what `memory` has read."""

    tokens: Tensor
    memory: Memory | None = None
    begin: str = ""

    @property
    def known(self) -> Tensor:
        """Tokens behind the states, [1, n]: all but the last are to be fed."""
        return _known(self.memory, self.tokens)


def _known(memory: Memory | None, tokens: Tensor) -> Tensor:
    """A memory's last token is not in its states yet."""
    if memory is not None:
        return torch.cat([memory.last.cpu(), tokens[None]], dim=1)
    if not len(tokens):
        raise ValueError("there is no token to go on from; give a text or a memory")
    return tokens[None]


@dataclass(frozen=True)
class Token:
    """A token was chosen; the one that ends a text is not told."""

    id: int
    score: Score | None = None


@dataclass(frozen=True)
class Prompt:
    """The prompt was read, and its tokens were so probable."""

    scores: tuple[Score, ...]


@dataclass(frozen=True)
class Progress:
    """So many tokens of a reading have been fed, and others wait."""

    read: int


@dataclass(frozen=True)
class Finished:
    """reason: stop (the text ended), length, time or read. memory, bits: what a reading made."""

    reason: str
    memory: Memory | None = None
    bits: Tensor | None = None


@dataclass(frozen=True)
class Failed:
    """The model could not do it; other jobs are not affected."""

    error: str


Job = Completion | Reading
Event = Token | Prompt | Progress | Finished | Failed
Notify = Callable[[Event], None]


@dataclass(eq=False)
class Ticket:
    """A job on its way. Whoever loses interest cancels it, and hears nothing more.

    reused: tokens that did not have to be read. begun: when it was given.
    """

    job: Job
    notify: Notify
    deadline: float = float("inf")
    cancelled: bool = field(default=False, init=False)
    reused: int = field(default=0, init=False)
    begun: float = field(default_factory=time.monotonic, init=False)

    def cancel(self) -> None:
        self.cancelled = True

    @property
    def late(self) -> bool:
        return time.monotonic() > self.deadline
