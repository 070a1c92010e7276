"""The application: models, memories, and the page."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from starlette.types import ASGIApp

from atlas_memory.reading.loading import Loaded
from atlas_memory.reading.memory_file import MemoryFile
from atlas_memory.serving.engine import Capacity, Engine
from atlas_memory.serving.server import completions, errors, memory_routes, operations, pages
from atlas_memory.serving.server.guard import Access, Guard
from atlas_memory.serving.server.kept import Kept
from atlas_memory.serving.server.limits import Limits
from atlas_memory.serving.server.memories import Memories
from atlas_memory.serving.server.service import Service
from atlas_memory.serving.server.store import Store

STATUSES = (400, 401, 403, 404, 408, 413, 415, 503)
router = APIRouter()


@dataclass(frozen=True)
class Settings:
    """name: of the model. memories: kept from the start. store: where those to come are kept.

    more: routes of floors above this one, such as the demo's.
    """

    name: str
    access: Access = field(default_factory=Access)
    limits: Limits = field(default_factory=Limits)
    capacity: Capacity = field(default_factory=Capacity)
    memories: tuple[MemoryFile, ...] = ()
    store: Store | None = None
    more: tuple[APIRouter, ...] = ()


def create_app(loaded: Loaded, settings: Settings) -> ASGIApp:
    """The engine begins with the application and ends when it has finished what was begun."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        engine = Engine(loaded.model, settings.capacity, loop.call_soon_threadsafe)
        memories = Memories(settings.limits, settings.store)
        for file in settings.memories:
            memories.hold(Kept.given(file, loaded.model.config.vocab_size, settings.limits.shown))
        app.state.service = Service(settings.name, loaded, engine, memories, settings.limits)
        try:
            yield
        finally:
            await asyncio.to_thread(engine.stop)
            if settings.store is not None:
                settings.store.close()

    app = FastAPI(
        title="atlas serve",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        responses={status: {"description": "an error"} for status in STATUSES},
    )
    requests: Counter[tuple[str, str, int]] = Counter()
    app.state.requests = requests
    errors.install(app)
    for part in (completions, memory_routes, operations, pages):
        app.include_router(part.router)
    for routes in (router, *settings.more):
        app.include_router(routes)
    return Guard(app, settings.access, settings.limits, requests)


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    return {"object": "list", "data": [_model(Service.of(request))]}


@router.get("/v1/models/{name}")
async def model(name: str, request: Request) -> dict[str, Any]:
    Service.of(request).require_model(name)
    return _model(Service.of(request))


def _model(service: Service) -> dict[str, Any]:
    return {"id": service.name, "object": "model", "created": 0, "owned_by": "atlas-memory"}


@router.get("/v1/status")
async def status(request: Request) -> dict[str, Any]:
    service = Service.of(request)
    return {"object": "status", **service.engine.load, "memories": len(service.memories)}
