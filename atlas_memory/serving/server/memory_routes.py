"""/v1/memories: read, list, fork, download, upload, delete."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.datastructures import UploadFile
from starlette.responses import Response

from atlas_memory.reading.memory_file import to_bytes
from atlas_memory.serving.server.completions import DONE, Events, event
from atlas_memory.serving.server.errors import ApiError, json_response
from atlas_memory.serving.server.kept import Entry
from atlas_memory.serving.server.protocol import ForkRequest, MemoryRequest, Upload
from atlas_memory.serving.server.service import Service, Watch

router = APIRouter()
BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": MemoryRequest.model_json_schema()},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "name": {"type": "string", "maxLength": 200},
                    },
                }
            },
        },
    }
}


@router.get("/v1/memories")
async def list_memories(request: Request) -> dict[str, Any]:
    """All memories, without what they know."""
    return {"object": "list", "data": [entry.described() for entry in Service.of(request).memories]}


@router.post("/v1/memories", openapi_extra=BODY)
async def make_memory(request: Request) -> Response:
    """A memory from a text, or from a memory file that is sent as multipart/form-data."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        return json_response(await _upload(request))
    service, asked = Service.of(request), _parsed(await request.body())
    parent = None if asked.memory is None else await service.memories.load(asked.memory)
    return await _respond(partial(service.read, asked.text, asked.name, parent), asked.stream)


async def _respond(read: Callable[[Watch], Awaitable[Entry]], stream: bool | None) -> Response:
    if stream:
        return Events(_events(read))
    return json_response((await read(lambda *_: None)).described())


async def _events(read: Callable[[Watch], Awaitable[Entry]]) -> AsyncGenerator[str, None]:
    """How far a reading has come, then the memory; leaving early ends it."""
    heard: asyncio.Queue[tuple[int, int] | None] = asyncio.Queue()
    work = asyncio.ensure_future(read(lambda done, total: heard.put_nowait((done, total))))
    work.add_done_callback(lambda _: heard.put_nowait(None))
    try:
        while (progress := await heard.get()) is not None:
            told = {"read": progress[0], "total": progress[1]}
            yield event({"object": "memory.progress", **told})
        yield event(work.result().described())
        yield DONE
    except ApiError as error:
        yield event(error.body())
    finally:
        work.cancel()


def _parsed(body: bytes) -> MemoryRequest:
    try:
        return MemoryRequest.model_validate(json.loads(body))
    except ValidationError as error:
        found = [{**e, "loc": ("body", *e["loc"])} for e in error.errors()]
        raise RequestValidationError(found) from error
    except (ValueError, RecursionError) as error:
        raise ApiError(400, "the body is no JSON object") from error


async def _upload(request: Request) -> dict[str, Any]:
    async with request.form(max_files=1, max_fields=1) as form:
        file = form.get("file")
        if not isinstance(file, UploadFile):
            raise ApiError(400, "give the memory file as `file`", "file")
        if other := next((key for key in form if key not in ("file", "name")), None):
            raise ApiError(400, f"{other[:50]!r}: give `file`, and `name` if you like", "file")
        try:
            named = Upload.model_validate({"name": form.get("name")})
        except ValidationError as error:
            raise RequestValidationError(
                [{**error.errors()[0], "loc": ("body", "name")}]
            ) from error
        data = await file.read()
    return (await Service.of(request).take(data, named.name)).described()


@router.get("/v1/memories/{name}")
async def describe_memory(name: str, request: Request) -> dict[str, Any]:
    return Service.of(request).memories.find(name).described()


@router.get("/v1/memories/{name}/surprise")
async def surprise(name: str, request: Request) -> dict[str, Any]:
    """Every character or token of the text that the memory has read last, with its bits."""
    service = Service.of(request)
    kept = await service.memories.load(name)
    pieces = await asyncio.to_thread(kept.pieces, service.loaded.tokenizer)
    return {"object": "surprise", "id": kept.id, "tokens": len(kept.tokens), "pieces": pieces}


@router.post("/v1/memories/{name}/fork")
async def fork_memory(name: str, asked: ForkRequest, request: Request) -> Response:
    """A new memory that goes on from this one, which stays what it is."""
    service = Service.of(request)
    parent = await service.memories.load(name)
    if not asked.text:
        return await _respond(lambda _: service.fork(parent, asked.name), asked.stream)
    named = parent.name if asked.name is None else asked.name
    return await _respond(partial(service.read, asked.text, named, parent), asked.stream)


@router.get("/v1/memories/{name}/file")
async def download_memory(name: str, request: Request) -> Response:
    """The memory as a file, which can be uploaded again."""
    kept = await Service.of(request).memories.load(name)
    content = await asyncio.to_thread(to_bytes, kept.file())
    headers = {"content-disposition": f'attachment; filename="{kept.id}.memory"'}
    return Response(content, media_type="application/octet-stream", headers=headers)


@router.delete("/v1/memories/{name}")
async def delete_memory(name: str, request: Request) -> dict[str, Any]:
    await Service.of(request).memories.delete(name)
    return {"id": name, "object": "memory.deleted", "deleted": True}
