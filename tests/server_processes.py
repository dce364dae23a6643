"""Servers in processes of their own (bench/chaos/server_process.py), ended with the test that made them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.chaos.server_process import ServerProcess, free_port

__all__ = ["BlackHole", "ServerProcess", "server_processes"]


@contextmanager
def server_processes(directory: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Makes servers under `directory`, running unless `is_running` is false; all are ended with the block."""
    made: list[ServerProcess] = []

    def make(*, is_running: bool = True) -> ServerProcess:
        server = ServerProcess(directory / f"server-{len(made)}", free_port())
        made.append(server)
        if is_running:
            server.start()
        return server

    try:
        yield make
    finally:
        for server in made:
            server.close()


class BlackHole:
    """An address that accepts connections and never says a word, as a host behind a broken network does."""

    def __init__(self) -> None:
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(512)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        self._listener.close()
