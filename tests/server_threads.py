"""Servers in threads of this process, each with its own event loop and a real socket."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from swarm.config import ServerConfig
from swarm.job import TrainJob

START_TIMEOUT_S = 60


@dataclass
class RunningServer:
    """A server in a thread of this process, with its own event loop and a real socket."""

    url: str
    home: Path
    stop: Callable[[], None]


StartServer = Callable[..., RunningServer]


@contextmanager
def servers(directory: Path) -> Iterator[StartServer]:
    """Starts servers below the directory; all are stopped with the block."""
    from swarm.server.http import serve

    stops: list[Callable[[], None]] = []

    def start(job: TrainJob | None = None, home: Path | None = None, **settings: object) -> RunningServer:
        home = home or directory / f"server-{len(stops)}"
        config = ServerConfig.model_validate({"port": 0, "home": home, **settings})
        announced: Future[str] = Future()
        loop = asyncio.new_event_loop()

        async def run() -> None:
            try:
                await serve(config, job, lambda url, _: announced.set_result(url))
            except BaseException as error:
                if announced.done():
                    raise
                announced.set_exception(error)

        task: list[asyncio.Task[None]] = []

        def main() -> None:
            asyncio.set_event_loop(loop)
            task.append(loop.create_task(run()))
            try:
                loop.run_until_complete(task[0])
            except asyncio.CancelledError:
                pass
            finally:
                loop.run_until_complete(loop.shutdown_asyncgens())
                loop.run_until_complete(loop.shutdown_default_executor())
                loop.close()

        thread = threading.Thread(target=main, name="swarm-server", daemon=True)
        thread.start()

        def stop() -> None:
            if thread.is_alive():
                loop.call_soon_threadsafe(task[0].cancel)
                thread.join(timeout=30)
            assert not thread.is_alive(), "the server did not stop within 30 s"

        url = announced.result(timeout=START_TIMEOUT_S)
        stops.append(stop)
        return RunningServer(url=url, home=home, stop=stop)

    yield start
    for stop in reversed(stops):
        stop()
