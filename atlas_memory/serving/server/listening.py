"""Listening: the application behind uvicorn, until a signal ends it."""

from __future__ import annotations

import socket
from contextlib import suppress

import uvicorn

from atlas_memory.reading.loading import Loaded
from atlas_memory.serving.server.app import Settings, create_app

CONNECTIONS = 1_000  # more get a 503


def listen(host: str, port: int) -> socket.socket:
    """A socket of our own, so that a port in use is one sentence; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        bound.listen(CONNECTIONS)  # whoever comes before the server is ready waits
    except (OSError, OverflowError) as error:
        bound.close()
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"cannot listen at {host} port {port}: {reason}") from error
    return bound


def address(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def server(loaded: Loaded, settings: Settings) -> uvicorn.Server:
    """A server that has not begun; on its way out it finishes the requests that run."""
    config = uvicorn.Config(
        create_app(loaded, settings),
        http="h11",
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=int(settings.limits.seconds) + 1,
    )
    return uvicorn.Server(config)


def serve(loaded: Loaded, settings: Settings, bound: socket.socket) -> None:
    """Until SIGINT or SIGTERM; a second one does not wait for the requests that run."""
    with suppress(KeyboardInterrupt):
        server(loaded, settings).run(sockets=[bound])
