"""What whoever runs or learns the server asks for: its health, its figures, its description."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from atlas_memory.serving.server import metrics
from atlas_memory.serving.server.errors import ApiError
from atlas_memory.serving.server.protocol import TokenizeRequest
from atlas_memory.serving.server.service import Service

router = APIRouter()


@router.get("/health")
async def health(request: Request) -> dict[str, str]:
    """200 as long as requests are answered."""
    if not Service.of(request).engine.alive:
        raise ApiError(503, "the engine has ended")
    return {"status": "ok"}


@router.get("/metrics")
async def figures(request: Request) -> Response:
    """Requests, tokens, queue, seconds to the first token and bytes, for Prometheus."""
    text = metrics.text(Service.of(request), request.app.state.requests)
    return Response(text, media_type=metrics.KIND)


@router.post("/v1/tokenize")
async def tokenize(asked: TokenizeRequest, request: Request) -> dict[str, Any]:
    """The ids of a text, and the text of each of them."""
    service = Service.of(request)
    service.require_model(asked.model)
    ids = (await service.encode(asked.text)).tolist()
    texts = [service.token_texts.text(token) for token in ids]
    return {"object": "tokens", "count": len(ids), "tokens": ids, "texts": texts}
