"""The server process: bind the port, open the ledger, serve until a stop, and close everything in order."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
import signal
import socket
import threading
from collections.abc import Callable, Generator

import uvicorn

import swarm
from swarm.backends.base import Backends
from swarm.config import WORKER_LOG, ServerConfig, local_url
from swarm.errors import EngineFailure, SwarmError
from swarm.gateway.app import RouteDependencies, create_app
from swarm.gateway.control.event_routes import EventStreams
from swarm.gateway.http.auth import TokenGuard
from swarm.gateway.http.connection import GuardedConnection
from swarm.gateway.served import Served
from swarm.job import TrainJob
from swarm.ledger import Ledger
from swarm.schemas import EngineState
from swarm.server.commands import SwarmServer
from swarm.server.home import open_home

logger = logging.getLogger(__name__)

GRACE_S = 5
BACKLOG = 2048
MAX_CONNECTIONS = 50_000
"""Limit of open connections; the server answers further ones with 503. The limit of open files may lower it."""

RESERVED_FILES = 200

ResumedJob = tuple[TrainJob, int]
"""An interrupted job that a server goes on with, and the number of its finished steps."""
Announce = Callable[[str, ResumedJob | None], None]
"""A function that gets the URL of a server that answers requests, and the job that the server resumes, if any."""


class HttpServer(uvicorn.Server):
    """A uvicorn server that calls `on_shutdown` before it waits for requests in progress.

    Without that call, an endless event stream would use up the whole grace period.
    """

    def __init__(self, config: uvicorn.Config, on_shutdown: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_shutdown = on_shutdown

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave the signals to `serve`. uvicorn would raise them again and so end the process before it has closed."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_shutdown()
        await super().shutdown(sockets)

    async def hang_up(self) -> None:
        """Close the connections that are still open after a shutdown or a cancellation."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)


class PortInUse(SwarmError):
    """The address cannot be bound."""

    code = "port_in_use"


def bind(host: str, port: int) -> socket.socket:
    """Return a bound socket, so that a taken port is known before anything is built. Raise PortInUse."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio disables Nagle's algorithm only for sockets that name their protocol. It would delay each answer by 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        remedy = (
            f"look who is there with `swarm status --url http://{host}:{port}`, or take a free port with --port 0"
            if error.errno == errno.EADDRINUSE
            else "choose another --host or --port"
        )
        raise PortInUse(f"cannot listen on {host}:{port}: {error.strerror}; {remedy}") from error
    return listener


async def serve(
    config: ServerConfig,
    job: TrainJob | None,
    announce: Announce,
    *,
    resume: bool = True,
    new_ledger: bool = False,
    backends: Backends | None = None,
) -> signal.Signals | None:
    """Serve until SIGINT, SIGTERM or the shutdown route, close everything, and return the signal, if there was one.

    `announce` is called once the server answers requests. With `resume`, the server resumes the job that was
    interrupted in this home, unless another `job` is given. `new_ledger` sets a damaged ledger aside and starts a new
    one. `backends` are those of the server, if they were built before.

    Raise PortInUse, LedgerError (also if another server uses the home), JobInvalid, and EngineFailure if the `job`
    cannot be served.
    """
    with (
        contextlib.closing(bind(config.host, config.port)) as listener,
        contextlib.closing(open_home(config.home, is_new_wanted=new_ledger)) as ledger,
    ):
        url = local_url(config.host, listener.getsockname()[1])
        server = SwarmServer(config, ledger, backends or Backends(config, config.home / WORKER_LOG), url=url)
        http = _http_server(config, server, ledger)
        watching = asyncio.create_task(_watch_shutdown(server, http), name="shutdown watch")
        first_boot = None if job is None else _FirstBoot(server, http)
        received: list[signal.Signals] = []
        _on_signals(lambda number: (received.append(number), http.handle_exit(number, None)))
        try:
            await server.lease.restore()
            await server.lost.restore()
            # Before the first request, which may belong to an episode of the previous server process.
            resumed = await _take_up(server, job, resume)
            serving = asyncio.create_task(http.serve(sockets=[listener]), name="http")
            while not http.started and not serving.done():
                await asyncio.sleep(0.01)
            if not serving.done() and not http.should_exit:
                announce(url, resumed)
            await serving
            if first_boot is not None and first_boot.failure is not None:
                raise EngineFailure(first_boot.failure)
        finally:
            watching.cancel()
            await http.hang_up()
            await server.close()
        return received[0] if received else None


def _http_server(config: ServerConfig, server: SwarmServer, ledger: Ledger) -> HttpServer:
    events = EventStreams(ledger)
    app = create_app(
        RouteDependencies(
            control=server.control,
            served=Served(server.find_service, server.lifecycle),
            lifecycle=server.lifecycle,
            ledger=ledger,
            guard=TokenGuard(config.token, config.rollout_token, config.observer_token),
            events=events,
            max_body_bytes=config.max_body_bytes,
            version=swarm.__version__,
        )
    )
    return HttpServer(
        uvicorn.Config(
            app,
            http=GuardedConnection,
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="off",
            backlog=BACKLOG,
            limit_concurrency=_max_connections(),
            timeout_graceful_shutdown=GRACE_S,
            timeout_keep_alive=75,
        ),
        events.close,
    )


def _on_signals(receive: Callable[[signal.Signals], object]) -> None:
    """Let the running event loop receive SIGINT and SIGTERM. A server outside the main thread gets no signals."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, receive, number)


async def _take_up(server: SwarmServer, job: TrainJob | None, resume: bool) -> ResumedJob | None:
    """Resume and return the interrupted job. If a different `job` is given, start that one instead."""
    if resume and await server.resume(job):
        return None if server.job is None else (server.job, server.lifecycle.weights.step)
    if job is not None:
        await server.sync_job(job.model_dump(mode="json", exclude_defaults=True))
        await server.start_engine(resume)
    return None


class _FirstBoot:
    """The end of a server that cannot serve the job it was started with.

    Otherwise nobody would notice the failure. After a later failure the server stays up and waits for a person.
    """

    def __init__(self, server: SwarmServer, http: HttpServer) -> None:
        self.failure: str | None = None
        self._server, self._http = server, http
        server.ends_by_failure = True
        self._unsubscribe = server.lifecycle.subscribe(self._look)

    def _look(self) -> None:
        lifecycle = self._server.lifecycle
        if lifecycle.state is EngineState.FAILED:
            self.failure = lifecycle.reason or "see the log"
            self._http.should_exit = True
        elif lifecycle.serving:
            self._server.ends_by_failure = False
        else:
            return
        self._unsubscribe()


async def _watch_shutdown(server: SwarmServer, http: uvicorn.Server) -> None:
    await server.shutdown_requested.wait()
    http.should_exit = True


def _max_connections() -> int:
    """Return the number of files the process may open, less those for the ledger, the model and the worker.

    The result is at most MAX_CONNECTIONS. The soft limit of open files is raised to the hard limit first.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard and hard != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(1, min(MAX_CONNECTIONS, soft - RESERVED_FILES))
