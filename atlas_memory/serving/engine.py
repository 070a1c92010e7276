"""Engine: one thread that owns the model and serves many requests at once.

A round reads a few blocks of waiting prompts, so that nobody who is writing waits long, and then
takes one decode step with every row that is writing. A row joins the batch when its prompt has
been read and leaves it when its text ends; the others go on as if they were alone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from atlas_memory.cache import AtlasCache
from atlas_memory.serving.batch import Batch, Prefill, Row
from atlas_memory.serving.fingerprint import fingerprint
from atlas_memory.serving.jobs import Completion, Event, Failed, Finished, Job, Notify, Ticket
from atlas_memory.serving.sampling import choose

if TYPE_CHECKING:
    from atlas_memory.model import AtlasForCausalLM

Post = Callable[[Callable[[], None]], Any]
LEAST_COST = 128  # tokens that a forward pass costs however short it is
log = logging.getLogger("atlas.serve")


@dataclass(frozen=True)
class Capacity:
    """rows: sequences that decode together. block: prompt tokens read between two steps.

    waiting: jobs that may wait to be read; more are refused.
    """

    rows: int = 32
    block: int = 512
    waiting: int = 256


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
        self._outbox: list[tuple[Ticket, Event]] = []
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, job: Job, notify: Notify, seconds: float = float("inf")) -> Ticket:
        """Begin a job; `notify` hears of every token and of the end. Full: BlockingIOError."""
        ticket = Ticket(job, notify, time.monotonic() + seconds)
        prefill = Prefill(ticket, self.model.device)
        with self._work:
            if self._stopping:
                raise BlockingIOError("the server is shutting down")
            if len(self._arrived) + len(self._waiting) >= self.capacity.waiting:
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
        return {"running": len(self._batch), "waiting": len(self._arrived) + len(self._waiting)}

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
        """Read a block of each in turn while the budget lasts; whoever is through begins to write.

        Texts to be remembered take no row, so they are read even when the batch is full.
        """
        budget = self.capacity.block
        held: list[Prefill] = []
        rows: list[Row] = []
        caches: list[AtlasCache] = []
        for _ in range(len(self._waiting)):
            if budget <= 0:
                break
            prefill = self._waiting.popleft()
            writes = isinstance(prefill.ticket.job, Completion)
            if writes and len(self._batch) + len(rows) >= self.capacity.rows:
                held.append(prefill)
                continue
            budget -= max(prefill.next_size(self.capacity.block), LEAST_COST)
            if not self._fed(prefill):
                continue
            if not prefill.done:
                self._waiting.append(prefill)
            elif writes and (row := self._begin(prefill)):
                rows.append(row)
                caches.append(prefill.cache)
        self._waiting.extendleft(reversed(held))
        self._batch.add(rows, caches)

    def _fed(self, prefill: Prefill) -> bool:
        """Feed a block; what fails concerns nobody else."""
        try:
            if not prefill.done:
                prefill.feed(self.model, self.capacity.block)
            if prefill.done and not isinstance(prefill.ticket.job, Completion):
                self._tell(prefill.ticket, prefill.finished(self.fingerprint))
        except Exception as error:
            log.exception("a prompt could not be read")
            self._tell(prefill.ticket, Failed(f"the prompt could not be read: {error}"))
            return False
        return True

    def _begin(self, prefill: Prefill) -> Row | None:
        """The first token of a completion; None where it is also the last."""
        row = Row.of(prefill.ticket)
        assert prefill.logits is not None
        (token,) = choose(prefill.logits, [row.job.sampling], [row.generator])
        return row if self._write(row, token) else None

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

    def _write(self, row: Row, token: int) -> bool:
        """Tell of a token; whether the row goes on."""
        events = row.write(token)
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
