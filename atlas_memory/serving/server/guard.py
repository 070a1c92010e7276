"""Guard: who may ask at all, and how large and how slow a request may be.

It stands in front of everything else, so without the token nothing can be told from nothing.
"""

from __future__ import annotations

import asyncio
import hmac
from collections import Counter
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from atlas_memory.serving.server.errors import ApiError
from atlas_memory.serving.server.limits import Limits

# The pages, which are the same everywhere, and whether the server lives.
OPEN = frozenset({"/", "/page.css", "/page.js", "/docs", "/health"})
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class Access:
    """token: what a request must bear; None: nothing. hosts: names a request may call us by.

    A page of another site could make a browser on this machine send requests; it cannot choose
    the headers Host and Origin. hosts=None: any.
    """

    token: str | None = None
    hosts: frozenset[str] | None = LOOPBACK

    def check(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if self.token is not None and scope["path"] not in OPEN:
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, b"Bearer " + self.token.encode()):
                raise ApiError(401, "give the server's token as `Authorization: Bearer TOKEN`")
        if self.hosts is not None and _name(host) not in self.hosts:
            raise ApiError(403, "the server does not answer to this name; see `atlas serve --help`")
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1").partition("://")[2] != host:
            raise ApiError(403, "pages of other sites may not use this server")


def _name(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


class Guard:
    """ASGI: checks access, then reads the body within its limits, then lets the app answer.

    requests: counts what was answered, by method, route and status.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        limits: Limits,
        requests: Counter[tuple[str, str, int]],
    ) -> None:
        self.app, self.access, self.limits, self.requests = app, access, limits, requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return None
        send = self._counted(scope, send)
        try:
            self.access.check(scope)
            body = await self._body(scope, receive)
        except ApiError as error:
            return await error.response()(scope, receive, send)
        if body is not None:
            await self.app(scope, _replayed(body, receive), send)

    def _counted(self, scope: Scope, send: Send) -> Send:
        """By the route's own path: what a client asks for could be anything."""

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                path = getattr(scope.get("route"), "path", "none")
                method = scope["method"] if path != "none" else "any"
                self.requests[method, path, message["status"]] += 1
            await send(message)

        return counted

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """All of the body; None where the client went away."""
        uploads = _uploads(scope)
        most = self.limits.upload if uploads else self.limits.body
        told = dict(scope["headers"]).get(b"content-length", b"0")
        if not told.isdigit() or int(told[:20]) > most:
            raise _too_large(most)
        seconds = self.limits.seconds if uploads else self.limits.body_seconds
        try:
            async with asyncio.timeout(seconds):
                return await self._read(receive, most)
        except TimeoutError as error:
            raise ApiError(408, f"the body did not arrive within {seconds:g} seconds") from error

    async def _read(self, receive: Receive, most: int) -> bytes | None:
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > most:
                raise _too_large(most)
            if not message.get("more_body", False):
                return b"".join(parts)


def _uploads(scope: Scope) -> bool:
    """Whether a request brings a memory file, which may be larger than any other."""
    kind = dict(scope["headers"]).get(b"content-type", b"")
    return scope["path"] == "/v1/memories" and kind.lower().startswith(b"multipart/form-data")


def _too_large(most: int) -> ApiError:
    return ApiError(413, f"the body is larger than {most} bytes")


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body in one piece, then whatever the client does next."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay
