"""Errors as OpenAI's clients read them; nothing of a request is repeated in them unescaped."""

from __future__ import annotations

import json
import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

log = logging.getLogger("atlas.serve")
KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
MAX_MESSAGE = 500
NO_JSON = (
    "the body is not said to be JSON; add the header `Content-Type: application/json`, with curl "
    "-H 'Content-Type: application/json'"
)


class ApiError(Exception):
    """A sentence for whoever sent the request."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param = status, message, param

    def body(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        error = {
            "message": self.message[:MAX_MESSAGE],
            "type": KINDS.get(self.status, kind),
            "param": self.param,
            "code": None,
        }
        return {"error": error}

    def response(self) -> Response:
        headers = {"retry-after": "1"} if self.status == 503 else {}
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return json_response(self.body(), self.status, headers)


def json_response(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """ASCII: half a character in a text must not become half a response."""
    return Response(json.dumps(body), status, headers, media_type="application/json")


def _is_json(request: Request) -> bool:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")


def install(app: FastAPI) -> None:
    """Every way in which a request can fail ends in the same form."""

    async def told(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return error.response()

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        if tuple(first["loc"]) == ("body",) and not _is_json(request):
            return ApiError(415, NO_JSON).response()
        where = ".".join(str(part) for part in first["loc"][1:])
        message = first["msg"].removeprefix("Value error, ")
        return ApiError(400, f"{where}: {message}" if where else message, where or None).response()

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return ApiError(error.status_code, str(error.detail)).response()

    async def failed(request: Request, error: Exception) -> Response:
        return ApiError(500, "the server failed at this request; its log says why").response()

    app.add_exception_handler(ApiError, told)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, refused)
    app.add_exception_handler(Exception, failed)
