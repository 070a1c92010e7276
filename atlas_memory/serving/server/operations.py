"""What whoever runs or learns the server asks for: its health, its figures, its description."""

from __future__ import annotations

from html import escape
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from atlas_memory.serving.server import metrics
from atlas_memory.serving.server.errors import ApiError
from atlas_memory.serving.server.protocol import TokenizeRequest
from atlas_memory.serving.server.service import Service

router = APIRouter()
DOCUMENT = """<!doctype html><html lang="en"><meta charset="utf-8"><title>atlas serve</title>
<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="/page.css">
<h1>atlas serve</h1><p>OpenAI's clients find it at <code>/v1</code>; the description that programs
read is <a href="/openapi.json">openapi.json</a>; the page for people is <a href="/">here</a>.</p>
{operations}</html>
"""


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


@router.get("/health")
async def health(request: Request) -> dict[str, str]:
    """200 as long as requests are answered."""
    if not _service(request).engine.alive:
        raise ApiError(503, "the engine has ended")
    return {"status": "ok"}


@router.get("/metrics")
async def figures(request: Request) -> Response:
    """Requests, tokens, queue, seconds to the first token and bytes, for Prometheus."""
    text = metrics.text(_service(request), request.app.state.requests)
    return Response(text, media_type=metrics.KIND)


@router.post("/v1/tokenize")
async def tokenize(asked: TokenizeRequest, request: Request) -> dict[str, Any]:
    """The ids of a text, and the text of each of them."""
    service = _service(request)
    service.require_model(asked.model)
    ids = (await service.encode(asked.text)).tolist()
    texts = [service.token_texts.text(token) for token in ids]
    return {"object": "tokens", "count": len(ids), "tokens": ids, "texts": texts}


@router.get("/docs", include_in_schema=False)
async def document(request: Request) -> Response:
    """The description for people, without a script and without anybody else's server."""
    from atlas_memory.serving.server.app import HEADERS

    described = request.app.openapi()
    operations = "".join(
        _operation(method, path, operation, described)
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    )
    text = DOCUMENT.replace("{operations}", operations)
    return Response(text, media_type="text/html; charset=utf-8", headers=HEADERS)


def _operation(method: str, path: str, operation: dict[str, Any], described: Any) -> str:
    what = escape(operation.get("description", ""))
    content = operation.get("requestBody", {}).get("content", {})
    tables = "".join(_table(kind, of["schema"], described) for kind, of in content.items())
    return f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{what}</p>{tables}"


def _table(kind: str, schema: dict[str, Any], described: Any) -> str:
    if "$ref" in schema:
        schema = described["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    required = schema.get("required", [])
    rows = "".join(
        f"<li><code>{escape(name)}</code> {escape(_kind(field))}"
        f"{' (required)' if name in required else ''}</li>"
        for name, field in schema.get("properties", {}).items()
    )
    return f"<p>{escape(kind)}</p><ul>{rows}</ul>"


def _kind(field: dict[str, Any]) -> str:
    """What a value may be, in a few words."""
    if "$ref" in field:
        return str(field["$ref"].rpartition("/")[2])
    if "anyOf" in field:
        return " or ".join(_kind(one) for one in field["anyOf"])
    if "items" in field:
        return f"list of {_kind(field['items'])}"
    bounds = [f"{word} {field[word]}" for word in ("minimum", "maximum") if word in field]
    return " ".join([str(field.get("type", "any")), *bounds])
