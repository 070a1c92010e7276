"""/v1/demo: the demo over HTTP, in a process of its own, as server-sent events."""

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from atlas_memory.demo.problems import FEWEST, MOST, checked, drawn, own
from atlas_memory.serving.server.completions import DONE, Events, event
from atlas_memory.serving.server.errors import ApiError
from atlas_memory.serving.server.protocol import Strict, Text
from atlas_memory.serving.server.service import Service
from atlas_memory.tasks import babi

LINE = 2**24  # bytes of the longest line that the process may write


class DemoRequest(Strict):
    """facts: who went where; None: as drawn with `seed`. ask: None: for the last who moved.

    stream: there is no other way.
    """

    words: Annotated[int, Field(ge=FEWEST, le=MOST)] = 100_000
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 2
    facts: Annotated[Text, Field(max_length=10_000)] | None = None
    ask: Annotated[Text, Field(max_length=200)] | None = None
    stream: Literal[True] = True


def router() -> APIRouter:
    """Routes of one server, which has one demo at a time."""
    made, alone = APIRouter(), asyncio.Lock()

    @made.get("/v1/demo")
    async def known() -> dict[str, Any]:
        """What a demo may be asked: its names, verbs and places, and how many words."""
        words = {"names": babi.ACTORS, "verbs": babi.MOVE, "places": babi.LOCATIONS}
        return {"object": "demo.vocabulary", **words, "fewest": FEWEST, "most": MOST}

    @made.post("/v1/demo")
    async def run(asked: DemoRequest, request: Request) -> Response:
        """Hide facts in a long text, let the package's small model read it, and ask; as events."""
        _require(asked)
        if alone.locked():
            raise ApiError(503, "a demo runs already; try again when it is done")
        return Events(_events(asked, Service.of(request).limits.seconds, alone))

    return made


def _require(asked: DemoRequest) -> None:
    try:
        checked(asked.words, 1)
        _ = drawn(1, asked.seed, asked.ask) if asked.facts is None else own(asked.facts, asked.ask)
    except ValueError as error:
        raise ApiError(400, str(error), "ask" if asked.facts is None else "facts") from error


async def _events(
    asked: DemoRequest, seconds: float, alone: asyncio.Lock
) -> AsyncGenerator[str, None]:
    """What the process says, line by line; whoever leaves early ends it."""
    end = time.monotonic() + seconds
    try:
        async with alone, _process(asked) as process:
            assert process.stdout is not None
            last: dict[str, Any] = {}
            while line := await asyncio.wait_for(process.stdout.readline(), end - time.monotonic()):
                last = json.loads(line)
                yield event(last)
            if last.get("object") != "demo":
                raise ApiError(500, "the demo failed; the server's log says why")
        yield DONE
    except TimeoutError:
        yield event(ApiError(503, f"not read within {seconds:g} seconds; try fewer words").body())
    except ApiError as error:
        yield event(error.body())


@asynccontextmanager
async def _process(asked: DemoRequest) -> AsyncGenerator[Process, None]:
    command = (sys.executable, "-m", "atlas_memory.demo")
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, limit=LINE)
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps(asked.model_dump(exclude={"stream"})).encode())
        process.stdin.close()
        yield process
        await process.wait()
    finally:
        if process.returncode is None:  # somebody left early
            process.kill()
            await process.wait()
