"""Engine: one thread that owns the model and serves many requests at once.

A round reads a block of waiting prompts, side by side where they are short, so that nobody who is
writing waits long, and then takes one decode step with every row that is writing. A row joins the
batch when its prompt has been read and leaves it when its text ends; the others go on as if they
were alone. A prompt that begins like one that was read before is read from there on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from atlas_memory.reading.fingerprint import fingerprint
from atlas_memory.reading.recent import Recent
from atlas_memory.serving.batch import Batch, Row, next_tokens
from atlas_memory.serving.histogram import Histogram
from atlas_memory.serving.jobs import Event, Failed, Finished, Job, Notify, Progress, Ticket
from atlas_memory.serving.prefill import Known, Prefill, completes, feed, side_by_side
from atlas_memory.serving.scores import Score

if TYPE_CHECKING:
    from atlas_memory.model import AtlasForCausalLM

Post = Callable[[Callable[[], None]], Any]
log = logging.getLogger("atlas.serve")


@dataclass(frozen=True)
class Capacity:
    """rows: sequences that decode together. block: prompt tokens read between two steps.

    waiting: jobs that may wait to be read; more are refused. prefix_bytes: of states that are kept
    because a prompt may begin like one before it.
    """

    rows: int = 32
    block: int = 512
    waiting: int = 256
    prefix_bytes: int = 0


@dataclass
class Tally:
    """What the engine has done so far: tokens, and the seconds from a request to its first token.

    read: fed to the model; reused: known already; written: told.
    """

    read: int = 0
    reused: int = 0
    written: int = 0
    first_token: Histogram = field(default_factory=Histogram)


class Engine:
    """post: runs a function where events are wanted, such as on the thread of an event loop."""

    def __init__(
        self,
        model: AtlasForCausalLM,
        capacity: Capacity | None = None,
        post: Post = lambda deliver: deliver(),
    ) -> None:
        self.model, self.capacity = model, capacity or Capacity()
        self.fingerprint = fingerprint(model)
        self._post = post
        self._work = threading.Condition()
        self._arrived: deque[Prefill] = deque()
        self._waiting: deque[Prefill] = deque()
        self._batch = Batch(self.model.device)
        self._known: Known = Recent(self.capacity.prefix_bytes)
        self.tally = Tally()
        self._outbox: list[tuple[Ticket, Event]] = []
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, job: Job, notify: Notify, seconds: float = float("inf")) -> Ticket:
        """Begin a job; `notify` hears of every token and of the end. Full: BlockingIOError."""
        ticket = Ticket(job, notify, time.monotonic() + seconds)
        prefill = Prefill(ticket, self.capacity.block)
        with self._work:
            if self._stopping:
                raise BlockingIOError("the server is shutting down")
            if self._asked_for >= self.capacity.waiting:
                raise BlockingIOError(f"{self.capacity.waiting} requests wait already")
            self._arrived.append(prefill)
            self._work.notify()
        return ticket

    def stop(self) -> None:
        """Finish what was begun, then end the thread."""
        with self._work:
            self._stopping = True
            self._work.notify()
        self._thread.join()

    @property
    def load(self) -> dict[str, int]:
        """How many sequences are written and how many wait."""
        with self._work:
            return {"running": len(self._batch), "waiting": self._asked_for}

    @property
    def _asked_for(self) -> int:
        """Who waits; whoever has gone takes no place, even before a round lets go of him."""
        waiting = (*self._arrived, *self._waiting)
        return sum(not prefill.ticket.cancelled for prefill in waiting)

    @property
    def prefix_bytes(self) -> int:
        """Bytes of the states that are kept for prompts to come."""
        return self._known.num_bytes

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @torch.inference_mode()
    def _run(self) -> None:
        while self._wait_for_work():
            self._drop()
            self._prefill()
            self._decode()
            self._deliver()

    def _wait_for_work(self) -> bool:
        with self._work:
            while not (self._arrived or self._waiting or self._batch.rows):
                if self._stopping:
                    return False
                self._work.wait()
            self._waiting.extend(self._arrived)
            self._arrived.clear()
            return True

    def _drop(self) -> None:
        """Let go of what nobody waits for and of what is out of time."""
        rows = [row for row in self._batch.rows if self._wanted(row.ticket)]
        self._batch.keep(rows)
        self._waiting = deque(p for p in self._waiting if self._wanted(p.ticket))

    def _wanted(self, ticket: Ticket) -> bool:
        if ticket.cancelled:
            return False
        if late := ticket.late:
            self._tell(ticket, Finished("time"))
        return not late

    def _prefill(self) -> None:
        """Read a block of those whose turn it is; whoever is through begins to write.

        Texts to be remembered take no row, so they are read even when the batch is full.
        """
        free = self.capacity.rows - len(self._batch)
        writers = set(islice(filter(completes, self._waiting), max(0, free)))
        ready = [p for p in self._waiting if p in writers or not completes(p)]
        if not ready:
            return
        for prefill in ready:
            prefill.look_up(self._known)
        chosen = side_by_side(ready, self.capacity.block)
        gone = set(chosen)
        self._waiting = deque(p for p in self._waiting if p not in gone)
        read = self._fed(chosen)
        # A new queue, never a changed one: other threads count the one they see.
        self._waiting = deque([*self._waiting, *(p for p in read if not p.done)])
        self._begin([p for p in read if p.done and completes(p)])

    def _fed(self, prefills: Sequence[Prefill]) -> list[Prefill]:
        """Feed a block of each; those that could be read. What fails concerns nobody else."""
        try:
            feeding = [p for p in prefills if not p.done]
            if feeding:
                feed(self.model, feeding)
        except Exception as error:
            if len(prefills) > 1:
                return [read for p in prefills for read in self._fed([p])]
            log.exception("a prompt could not be read")
            self._tell(prefills[0].ticket, Failed(f"the prompt could not be read: {error}"))
            return []
        for prefill in prefills:
            prefill.keep(self._known)
            if prefill.done:
                self._count(prefill)
            if not completes(prefill):
                self._tell(prefill.ticket, self._read(prefill))
        return list(prefills)

    def _read(self, prefill: Prefill) -> Event:
        """How far a reading has come, or what it made."""
        if not prefill.done:
            return Progress(prefill.fed)
        return prefill.finished(self.fingerprint, self.model.device)

    def _count(self, prefill: Prefill) -> None:
        reused = prefill.ticket.reused
        self.tally.read += prefill.end - reused
        self.tally.reused += reused

    def _begin(self, prefills: Sequence[Prefill]) -> None:
        """The first token of completions; those that want more join the batch."""
        rows = [Row.of(p.ticket) for p in prefills]
        for prefill, row in zip(prefills, rows, strict=True):
            if row.job.scores_prompt:
                self._tell(row.ticket, prefill.prompt())
            if not row.job.max_new_tokens:
                self._tell(row.ticket, Finished("length"))
        writing = [(p, r) for p, r in zip(prefills, rows, strict=True) if r.job.max_new_tokens]
        if not writing:
            return
        logits = torch.cat([p.logits for p, _ in writing if p.logits is not None])
        chosen = next_tokens(logits, [row for _, row in writing])
        begun = [
            pair for pair, token in zip(writing, chosen, strict=True) if self._write(pair[1], token)
        ]
        self._batch.add([row for _, row in begun], [prefill.cache for prefill, _ in begun])

    def _decode(self) -> None:
        if not self._batch.rows:
            return
        try:
            tokens = self._batch.step(self.model)
        except Exception as error:
            log.exception("a decode step failed")
            for row in self._batch.rows:
                self._tell(row.ticket, Failed(f"the next token could not be made: {error}"))
            self._batch = Batch(self.model.device)
            return
        pairs = zip(self._batch.rows, tokens, strict=True)
        self._batch.keep([row for row, token in pairs if self._write(row, token)])

    def _write(self, row: Row, token: tuple[int, Score | None]) -> bool:
        """Tell of a token; whether the row goes on."""
        events = row.write(*token)
        self.tally.written += 1
        if row.written <= 1:
            self.tally.first_token.add(time.monotonic() - row.ticket.begun)
        for event in events:
            self._tell(row.ticket, event)
        return not isinstance(events[-1], Finished)

    def _tell(self, ticket: Ticket, event: Event) -> None:
        self._outbox.append((ticket, event))

    def _deliver(self) -> None:
        """All events of a round at once: a thread that is woken often is a slow one."""
        told, self._outbox = self._outbox, []
        if told:
            self._post(lambda: _notify(told))


def _notify(told: list[tuple[Ticket, Event]]) -> None:
    for ticket, event in told:
        if not ticket.cancelled:
            ticket.notify(event)
