"""/v1/completions and /v1/chat/completions, whole or as server-sent events."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import torch
from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from atlas_memory.serving.jobs import Completion
from atlas_memory.serving.server.errors import ApiError, json_response
from atlas_memory.serving.server.protocol import Asked, ChatRequest, CompletionRequest
from atlas_memory.serving.server.service import Piece, Service

router = APIRouter()
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

    def choice(self, piece: Piece, chunk: bool) -> dict[str, Any]:
        said: dict[str, Any] = {"text": piece.text}
        if self.chat:
            key = "delta" if chunk else "message"
            said = {key: {"role": "assistant", "content": piece.text}}
        return {"index": piece.index, **said, "finish_reason": piece.reason, "logprobs": None}

    def usage(self, written: int) -> dict[str, int]:
        copies = self.asked.n or 1
        read = sum(len(job.prompt) for job in self.jobs[::copies])
        return {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
        }

    async def whole(self) -> Response:
        texts, reasons = [""] * len(self.jobs), [""] * len(self.jobs)
        written = 0
        async with aclosing(self.service.answers(self.jobs, self.stops)) as pieces:
            async for piece in pieces:
                texts[piece.index] += piece.text
                written += piece.tokens
                reasons[piece.index] = piece.reason or ""
        ended = [Piece(i, text, reasons[i]) for i, text in enumerate(texts)]
        choices = [self.choice(piece, chunk=False) for piece in ended]
        body = {**self.head(chunk=False), "choices": choices, "usage": self.usage(written)}
        return json_response(body)

    async def events(self) -> AsyncGenerator[str, None]:
        """Chunks as they come. What fails on the way is told as the last event."""
        head, written = self.head(chunk=True), 0
        try:
            async with aclosing(self.service.answers(self.jobs, self.stops)) as pieces:
                async for piece in pieces:
                    written += piece.tokens
                    if piece.text or piece.reason is not None:
                        yield _event({**head, "choices": [self.choice(piece, chunk=True)]})
        except ApiError as error:
            yield _event(error.body())
            return
        if self.asked.with_usage:
            yield _event({**head, "choices": [], "usage": self.usage(written)})
        yield "data: [DONE]\n\n"


def _event(body: dict[str, Any]) -> str:
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
    service: Service = request.app.state.service
    service.require_model(asked.model)
    prompts = [
        await service.encode(p) if isinstance(p, str) else torch.tensor(p, dtype=torch.long)
        for p in asked.prompts or [""]
    ]
    jobs = await service.jobs(asked, prompts, COMPLETION_TOKENS)
    return await _respond(request, Answered(service, asked, jobs, asked.stops, chat=False))


@router.post("/v1/chat/completions")
async def chat(asked: ChatRequest, request: Request) -> Response:
    service: Service = request.app.state.service
    service.require_model(asked.model)
    asked = asked.model_copy(update={"max_tokens": asked.max_completion_tokens or asked.max_tokens})
    prompt, stops = await service.chat_prompt(asked.messages)
    jobs = await service.jobs(asked, [prompt], CHAT_TOKENS)
    return await _respond(request, Answered(service, asked, jobs, asked.stops + stops, chat=True))
