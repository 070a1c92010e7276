"""/v1/completions and /v1/chat/completions, whole or as server-sent events."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from atlas_memory.serving.jobs import Completion
from atlas_memory.serving.scores import Score
from atlas_memory.serving.server.errors import ApiError, json_response
from atlas_memory.serving.server.logprobs import of_chat, of_completion
from atlas_memory.serving.server.protocol import Asked, ChatRequest, CompletionRequest
from atlas_memory.serving.server.service import Piece, Service
from atlas_memory.serving.server.token_texts import Offsets

router = APIRouter()
DONE = "data: [DONE]\n\n"
COMPLETION_TOKENS, CHAT_TOKENS = 16, 256  # of a request that does not say how many


@dataclass(frozen=True)
class Answered:
    """A request with its jobs, and how its answer is put into JSON."""

    service: Service
    asked: Asked
    jobs: Sequence[Completion]
    stops: tuple[str, ...]
    chat: bool
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    def head(self, chunk: bool) -> dict[str, Any]:
        name = "chat.completion" if self.chat else "text_completion"
        return {
            "id": f"chatcmpl-{self.id}" if self.chat else f"cmpl-{self.id}",
            "object": f"{name}.chunk" if chunk and self.chat else name,
            "created": self.created,
            "model": self.service.name,
        }

    def choice(self, piece: Piece, offsets: Offsets, chunk: bool) -> dict[str, Any]:
        said: dict[str, Any] = {"text": piece.text}
        if self.chat:
            key = "delta" if chunk else "message"
            said = {key: {"role": "assistant", "content": piece.text}}
        scored = self._logprobs(piece.scores, offsets)
        return {"index": piece.index, **said, "finish_reason": piece.reason, "logprobs": scored}

    def _logprobs(self, scores: Sequence[Score], offsets: Offsets) -> dict[str, Any] | None:
        if self.asked.top is None:
            return None
        texts = self.service.token_texts
        return of_chat(scores, texts) if self.chat else of_completion(scores, texts, offsets)

    def offsets(self) -> list[Offsets]:
        return [Offsets(self.service.token_texts) for _ in self.jobs]

    def usage(self, written: int, reused: Sequence[int]) -> dict[str, Any]:
        read = sum(len(job.prompt) for job in self.jobs[:: self.asked.tries])
        return {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
            "prompt_tokens_details": {"cached_tokens": sum(reused[:: self.asked.tries])},
        }

    def pieces(self, whole: bool = False) -> AsyncGenerator[Piece, None]:
        return self.service.answers(self.jobs, self.stops, self.asked.echoes, whole)

    async def whole(self) -> Response:
        ends = [Piece(index, "") for index in range(len(self.jobs))]
        async with aclosing(self.pieces(whole=True)) as pieces:
            async for piece in pieces:
                ends[piece.index] = _joined(ends[piece.index], piece)
        given = self._best(ends)
        choices = [
            self.choice(replace(piece, index=index), offsets, chunk=False)
            for index, (piece, offsets) in enumerate(zip(given, self.offsets(), strict=False))
        ]
        written, reused = sum(p.tokens for p in ends), [p.reused for p in ends]
        usage = self.usage(written, reused)
        return json_response({**self.head(chunk=False), "choices": choices, "usage": usage})

    def _best(self, ends: Sequence[Piece]) -> list[Piece]:
        """Of the tries at each prompt the `n` whose tokens are the most probable on average."""
        tries, given = self.asked.tries, self.asked.n or 1
        if tries == given:
            return list(ends)
        groups = [ends[i : i + tries] for i in range(0, len(ends), tries)]
        ranked = (sorted(group, key=_mean_logprob, reverse=True) for group in groups)
        return [piece for group in ranked for piece in group[:given]]

    async def events(self) -> AsyncGenerator[str, None]:
        """Chunks as they come. What fails on the way is told as the last event."""
        head, written = self.head(chunk=True), 0
        offsets, reused = self.offsets(), [0] * len(self.jobs)
        try:
            async with aclosing(self.pieces()) as pieces:
                async for piece in pieces:
                    written += piece.tokens
                    reused[piece.index] = piece.reused
                    if piece.text or piece.scores or piece.reason is not None:
                        choice = self.choice(piece, offsets[piece.index], chunk=True)
                        yield event({**head, "choices": [choice]})
        except ApiError as error:
            yield event(error.body())
            return
        if self.asked.with_usage:
            yield event({**head, "choices": [], "usage": self.usage(written, reused)})
        yield DONE


def _joined(one: Piece, two: Piece) -> Piece:
    text, tokens = one.text + two.text, one.tokens + two.tokens
    return Piece(one.index, text, two.reason, tokens, one.scores + two.scores, two.reused)


def _mean_logprob(piece: Piece) -> float:
    """Of what was written; the scores of an echoed prompt are the same for all."""
    written = [score.logprob or 0.0 for score in piece.scores[-piece.tokens or len(piece.scores) :]]
    return sum(written) / max(1, len(written))


def event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body)}\n\n"


class Events(StreamingResponse):
    """Closes what it sends when the client goes away, so that nobody writes on for nobody."""

    def __init__(self, body: AsyncGenerator[str, None]) -> None:
        super().__init__(
            body, media_type="text/event-stream", headers={"cache-control": "no-store"}
        )
        self._body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._body.aclose()


async def _respond(request: Request, answered: Answered) -> Response:
    if answered.asked.stream:
        return Events(answered.events())
    work = asyncio.ensure_future(answered.whole())
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        return work.result() if work.done() else Response(status_code=499)
    finally:
        work.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


@router.post("/v1/completions")
async def completions(asked: CompletionRequest, request: Request) -> Response:
    service = Service.of(request)
    service.require_model(asked.model)
    prompts = [
        await service.encode(p) if isinstance(p, str) else torch.tensor(p, dtype=torch.long)
        for p in asked.prompts or [""]
    ]
    jobs = await service.jobs(asked, prompts, COMPLETION_TOKENS)
    return await _respond(request, Answered(service, asked, jobs, asked.stops, chat=False))


@router.post("/v1/chat/completions")
async def chat(asked: ChatRequest, request: Request) -> Response:
    service = Service.of(request)
    service.require_model(asked.model)
    if asked.max_completion_tokens is not None:
        asked = asked.model_copy(update={"max_tokens": asked.max_completion_tokens})
    prompt, stops = await service.chat_prompt(asked.messages)
    jobs = await service.jobs(asked, [prompt], CHAT_TOKENS)
    return await _respond(request, Answered(service, asked, jobs, asked.stops + stops, chat=True))
