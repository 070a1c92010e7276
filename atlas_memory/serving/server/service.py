"""Service: a model, its engine and its memories, and the jobs that requests become."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from starlette.requests import Request
from torch import Tensor

from atlas_memory.reading.loading import Loaded
from atlas_memory.reading.memory_file import inspect_bytes, restore
from atlas_memory.serving.engine import Engine
from atlas_memory.serving.jobs import (
    Completion,
    Event,
    Failed,
    Finished,
    Job,
    Progress,
    Prompt,
    Reading,
    Ticket,
    Token,
)
from atlas_memory.serving.memory_check import MemoryCheck
from atlas_memory.serving.scores import Score
from atlas_memory.serving.server.answers import Answer
from atlas_memory.serving.server.errors import ApiError
from atlas_memory.serving.server.kept import Entry, Kept
from atlas_memory.serving.server.limits import Limits
from atlas_memory.serving.server.memories import Memories
from atlas_memory.serving.server.protocol import Asked, Message
from atlas_memory.serving.server.token_texts import TokenTexts

TEMPLATE = (
    "{% for message in messages %}{{ message['role'] | capitalize }}: {{ message['content'] }}\n\n"
    "{% endfor %}Assistant:"
)
TEMPLATE_STOPS = ("\n\nUser:",)  # a model that was never taught to stop would speak for the user
Watch = Callable[[int, int], None]  # tokens read, of so many
REASONS = {"stop": "stop", "length": "length", "time": "length"}


@dataclass(frozen=True)
class Piece:
    """More text of answer `index`, of so many tokens, and why it ended once it has.

    scores: of tokens that were asked to be scored. reused: tokens of the prompt known before.
    """

    index: int
    text: str
    reason: str | None = None
    tokens: int = 0
    scores: tuple[Score, ...] = ()
    reused: int = 0


@dataclass(frozen=True)
class Service:
    """What every request works with."""

    name: str
    loaded: Loaded
    engine: Engine
    memories: Memories
    limits: Limits

    @staticmethod
    def of(request: Request) -> Service:
        service: Service = request.app.state.service
        return service

    @cached_property
    def token_texts(self) -> TokenTexts:
        return TokenTexts(self.loaded.tokenizer)

    @cached_property
    def check(self) -> MemoryCheck:
        """Made when the first file is sent: it reads a few tokens."""
        return MemoryCheck(self.loaded.model)

    def require_model(self, name: str | None) -> None:
        if name not in (None, self.name):
            raise ApiError(404, "there is no such model; GET /v1/models names the one", "model")

    async def encode(self, text: str) -> Tensor:
        """Ids [n]; a long text is encoded beside the event loop."""

        def ids() -> Tensor:
            return _tensor(next(self.loaded.tokenizer.encode([text.encode()])))

        if not text:
            return torch.zeros(0, dtype=torch.long)
        return ids() if len(text) < 10_000 else await asyncio.to_thread(ids)

    async def chat_prompt(self, messages: Sequence[Message]) -> tuple[Tensor, tuple[str, ...]]:
        """The tokenizer's own template, or a plain one that has to be told where to stop."""
        from jinja2 import TemplateError

        fast = self.loaded.tokenizer.fast
        template, stops = (None, ()) if fast.chat_template else (TEMPLATE, TEMPLATE_STOPS)
        plain = [message.plain() for message in messages]
        render = partial(fast.apply_chat_template, plain, chat_template=template, tokenize=False)
        try:
            text = render(add_generation_prompt=True)
        except TemplateError as error:
            raise ApiError(400, f"the chat template refuses it: {error}", "messages") from error
        return await self.encode(text), stops

    async def jobs(self, asked: Asked, prompts: Sequence[Tensor], tokens: int) -> list[Completion]:
        """One for every choice of every prompt; `tokens` if the request does not say how many."""
        if len(prompts) * asked.tries > self.limits.choices:
            raise ApiError(400, f"more than {self.limits.choices} answers asked for", "n")
        self._require_ids("logit_bias", [int(token) for token in asked.logit_bias or {}])
        memory = None
        if asked.memory is not None:
            memory = (await self.memories.load(asked.memory)).memory
        most = tokens if asked.max_tokens is None else asked.max_tokens
        if most > self.limits.new_tokens:
            limit = self.limits.new_tokens
            raise ApiError(400, f"max_tokens={most}: at most {limit} tokens", "max_tokens")
        ranked = 0 if asked.tries > (asked.n or 1) else None
        made = partial(
            Completion,
            max_new_tokens=most,
            memory=memory,
            ends=_ends(self.loaded),
            top=ranked if asked.top is None else asked.top,
            scores_prompt=asked.echoes and asked.top is not None,
            begin=asked.memory or "",
        )
        begun = [self._begun(prompt, memory is None) for prompt in prompts]
        return [made(p, sampling=asked.sampling(i)) for p in begun for i in range(asked.tries)]

    def _begun(self, prompt: Tensor, first: bool) -> Tensor:
        """A prompt that the model can read; a text that begins with nothing begins as texts do."""
        if len(prompt) > self.limits.prompt_tokens:
            limit = self.limits.prompt_tokens
            raise ApiError(400, f"the prompt has {len(prompt)} tokens, more than {limit}", "prompt")
        self._require_ids("prompt", prompt.aminmax() if len(prompt) else ())
        if first and not len(prompt):
            end = self.loaded.tokenizer.end
            if end is None:
                raise ApiError(400, "the prompt is empty; give a text or a memory", "prompt")
            return torch.tensor([end])
        return prompt

    def _require_ids(self, where: str, ids: Iterable[int | Tensor]) -> None:
        known = self.loaded.model.config.vocab_size
        if not all(0 <= int(token) < known for token in ids):
            raise ApiError(400, f"a token id is not in the vocabulary of {known}", where)

    async def answers(
        self,
        jobs: Sequence[Completion],
        stops: tuple[str, ...],
        echoes: bool = False,
        whole: bool = False,
    ) -> AsyncGenerator[Piece, None]:
        """The text of all jobs as it comes, each up to its end; leaving early cancels the rest.

        echoes: the prompt is the beginning of the text. whole: it is wanted when it has ended, so
        that a token wakes nobody, unless it could be a stop.
        """
        texts = [Answer(self.loaded.tokenizer, stops) for _ in jobs]
        left, tickets = set(range(len(jobs))), list[Ticket]()
        for index, job in enumerate(jobs if echoes else ()):
            yield Piece(index, self.loaded.tokenizer.fast.decode(job.prompt.tolist()))
        patient = whole and not stops
        async with aclosing(self._events(jobs, tickets, patient)) as events:
            while left:
                index, event = await anext(events)
                if index not in left:
                    continue
                piece = _piece(index, texts[index], event)
                if piece.reason is not None:
                    left.discard(index)
                reused = min(tickets[index].reused, len(jobs[index].prompt))
                yield replace(piece, reused=reused)

    async def _events(
        self, jobs: Sequence[Job], tickets: list[Ticket], patient: bool = False
    ) -> AsyncGenerator[tuple[int, Event], None]:
        """patient: tokens wait for an event of another kind."""
        heard: asyncio.Queue[list[tuple[int, Event]]] = asyncio.Queue()
        told: list[tuple[int, Event]] = []

        def notify(index: int, event: Event) -> None:
            told.append((index, event))
            if not (patient and isinstance(event, Token)):
                heard.put_nowait(told.copy())
                told.clear()

        try:
            for index, job in enumerate(jobs):
                heed = partial(notify, index)
                tickets.append(self.engine.submit(job, heed, self.limits.seconds))
            while True:
                for index, event in await heard.get():
                    if isinstance(event, Failed):
                        raise ApiError(500, event.error)
                    yield index, event
        except BlockingIOError as error:
            raise ApiError(503, f"{error}; try again later") from error
        finally:
            for ticket in tickets:
                ticket.cancel()

    async def read(
        self, text: str, name: str | None, parent: Kept | None, watch: Watch = lambda *_: None
    ) -> Entry:
        """Read a text as a new memory or behind an old one, which stays, and keep what it made."""
        with self.memories.place():
            tokens = await self.encode(text)
            if not len(tokens):
                raise ApiError(400, "the text is empty; give at least one character", "text")
            before = None if parent is None else parent.memory
            job = Reading(tokens, before, "" if parent is None else parent.id)
            made = await self._made(job, watch)
            assert made.memory is not None and made.bits is not None
            shown, unpredicted = self.limits.shown, len(tokens) - len(made.bits)
            kept = Kept(
                memory=made.memory,
                name=name or "",
                parent=None if parent is None else parent.id,
                tokens=tokens[:shown].clone(),
                bits=made.bits[: shown - unpredicted].clone(),
            )
            return await self.memories.add(kept)

    async def fork(self, parent: Kept, name: str | None) -> Entry:
        """The same memory under another id; memories are values, so nothing is copied in RAM."""
        with self.memories.place():
            return await self.memories.add(parent.fork(parent.name if name is None else name))

    async def take(self, data: bytes, name: str | None) -> Entry:
        """Keep a memory file that somebody sends, if it is whole and this model's."""
        with self.memories.place():
            try:
                kept = await asyncio.to_thread(self._taken, data, name)
            except ValueError as error:
                raise ApiError(400, str(error), "file") from error
            return await self.memories.add(kept)

    def _taken(self, data: bytes, name: str | None) -> Kept:
        what = "the file"
        contents = inspect_bytes(data, what)
        self.check.contents(contents, what)
        file = restore(contents, self.loaded.model, self.engine.fingerprint, what)
        self.check.trial(file.memory, what)
        return Kept.uploaded(file, name, self.loaded.model.config.vocab_size, self.limits.shown)

    async def _made(self, job: Reading, watch: Watch) -> Finished:
        watch(0, len(job.tokens))
        async with aclosing(self._events([job], [])) as events:
            while isinstance(event := (await anext(events))[1], Progress):
                watch(event.read, len(job.tokens))
        assert isinstance(event, Finished)
        if event.reason == "time":
            raise ApiError(503, f"not read within {self.limits.seconds:g} seconds")
        return event


def _piece(index: int, text: Answer, event: Event) -> Piece:
    if isinstance(event, Prompt):
        return Piece(index, "", scores=event.scores)
    if isinstance(event, Token):
        shown, scores = text.add(event.id), (event.score,) if event.score else ()
        return Piece(index, shown, "stop" if text.stopped else None, 1, scores)
    assert isinstance(event, Finished)
    if event.reason == "time" and not text.tokens:
        raise ApiError(503, "no token within the time that a request may take; try again later")
    return Piece(index, text.end(), REASONS[event.reason])


def _ends(loaded: Loaded) -> frozenset[int]:
    """The tokens at which generate stops."""
    config = loaded.model.generation_config
    ends = None if config is None else config.eos_token_id
    return frozenset([ends] if isinstance(ends, int) else ends or [])


def _tensor(ids: np.ndarray[Any, Any]) -> Tensor:
    return torch.from_numpy(ids.astype(np.int64))
