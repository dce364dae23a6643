"""Runs one server process: bind, open the ledger, serve until told to stop, close in order.

Place in the flow: called by the CLI. Everything about HTTP's transport and signals is here; the app and the engine do
not know how they are served.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable

import uvicorn

import swarm
from swarm.backends import Backends
from swarm.config import ServerConfig, TrainJob
from swarm.errors import SwarmError
from swarm.gateway.app import Deps, create_app
from swarm.ledger import Ledger
from swarm.server import SwarmServer

logger = logging.getLogger(__name__)

GRACE_S = 5
BACKLOG = 2048


class PortInUse(SwarmError):
    """The address cannot be bound."""

    code = "port_in_use"


def bind(host: str, port: int) -> socket.socket:
    """A bound listening socket, so that a taken port is known before anything is built. Raises PortInUse."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise PortInUse(f"cannot listen on {host}:{port}: {error.strerror}; choose another --port") from error
    return listener


async def serve(config: ServerConfig, job: TrainJob | None, announce: Callable[[str], None]) -> None:
    """Serve until SIGINT, SIGTERM or the shutdown route. `announce` gets the URL once requests are answered.

    Raises PortInUse, LedgerError (another server on the same home), JobInvalid.
    """
    with (
        contextlib.closing(bind(config.host, config.port)) as listener,
        contextlib.closing(Ledger.open(config.home / "ledger.db")) as ledger,
    ):
        await _serve(config, job, announce, listener, ledger)


async def _serve(
    config: ServerConfig,
    job: TrainJob | None,
    announce: Callable[[str], None],
    listener: socket.socket,
    ledger: Ledger,
) -> None:
    server = SwarmServer(config, ledger, Backends(config, config.home / "worker.log"))
    app = create_app(
        Deps(
            control=server.control,
            served=lambda: server.service,
            lifecycle=server.lifecycle,
            ledger=ledger,
            token=config.token,
            max_body_bytes=config.max_body_bytes,
            version=swarm.__version__,
        )
    )
    http = uvicorn.Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            backlog=BACKLOG,
            timeout_graceful_shutdown=GRACE_S,
            timeout_keep_alive=75,
        )
    )
    serving = asyncio.create_task(http.serve(sockets=[listener]), name="http")
    watching = asyncio.create_task(_watch_shutdown(server, http), name="shutdown watch")
    try:
        while not http.started and not serving.done():
            await asyncio.sleep(0.01)
        if not serving.done():
            announce(_url(config.host, listener))
            if job is not None:
                await server.sync_job(job.model_dump(mode="json", exclude_defaults=True))
                await server.start_engine()
        await serving
    finally:
        watching.cancel()
        await server.close()


async def _watch_shutdown(server: SwarmServer, http: uvicorn.Server) -> None:
    await server.shutdown_requested.wait()
    http.should_exit = True


def _url(host: str, listener: socket.socket) -> str:
    port = listener.getsockname()[1]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}"
