"""What people see: the page, and the API as a document."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

router = APIRouter(include_in_schema=False)
PAGE = Path(__file__).parent / "page"
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
DOCUMENT = """<!doctype html><html lang="en"><meta charset="utf-8"><title>atlas serve</title>
<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="/page.css">
<h1>atlas serve</h1><p>OpenAI's clients find it at <code>/v1</code>; the description that programs
read is <a href="/openapi.json">openapi.json</a>; the page for people is <a href="/">here</a>.</p>
{operations}</html>
"""


@router.get("/")
async def page() -> Response:
    return _file("index.html", "text/html")


@router.get("/page.js")
async def script() -> Response:
    return _file("page.js", "text/javascript")


@router.get("/page.css")
async def style() -> Response:
    return _file("page.css", "text/css")


def _file(name: str, kind: str) -> Response:
    return Response(
        (PAGE / name).read_bytes(), media_type=f"{kind}; charset=utf-8", headers=HEADERS
    )


@router.get("/docs")
async def document(request: Request) -> Response:
    """The description for people, without a script and without anybody else's server."""
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
