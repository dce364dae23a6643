"""One server of a study: its lease, its circuit breaker, and the process of an own one."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

from researcher.errors import ServerInUse, ServerProblem
from swarm import SwarmClient
from swarm.errors import ServerLeased
from swarm.processes import (
    Child,
    NoAnnouncement,
    await_announcement,
    is_dead,
    own_name,
    python_module,
    server_environment,
)
from swarm.schemas import LeaseRequest, LeaseView

TTL_S = 60.0
"""Seconds of a lease: long enough for a brief suspend. A dead process on the same host is replaced at once."""


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """The identity under which this process asks for leases: one study of one database.

    Any process with this identity holds the leases of that study.
    """

    study_id: str
    database: str = ""

    def take(self, client: SwarmClient) -> LeaseView:
        """Take the server's lease, or renew it.

        Raises ServerInUse, naming the other study and its host, and SwarmError.
        """
        try:
            return client.take_lease(self._request())
        except ServerLeased as refusal:
            present = client.status().lease
            if present is not None and not self._may_replace(present):
                raise ServerInUse(f"{client.url}: {refusal.message}") from refusal
            return client.take_lease(self._request(None if present is None else present.fence))

    def _request(self, replaces: int | None = None) -> LeaseRequest:
        return LeaseRequest(
            study_id=self.study_id,
            holder=own_name(),
            host=socket.gethostname(),
            pid=os.getpid(),
            database=self.database[-1000:],
            ttl_s=TTL_S,
            replaces=replaces,
        )

    def _may_replace(self, present: LeaseView) -> bool:
        """Return whether the present holder is dead, or is an earlier process of this very study."""
        is_same_place = "://" in self.database or present.host == socket.gethostname()
        is_same_study = (present.study_id, present.database) == (self.study_id, self.database)
        return is_dead(present.holder) or (bool(self.database) and is_same_study and is_same_place)


def refuse_if_used(client: SwarmClient, present: LeaseView | None) -> None:
    """Raise ServerInUse if another study uses the server and its process is not known to be dead."""
    if present is not None and not is_dead(present.holder):
        raise ServerInUse(
            f"server {client.url} is used by study {present.study_id} of {present.host} (process {present.pid}): wait "
            "for its end, or name another server"
        )


def name_database(location: str) -> str:
    """Return the URL of a database, or its full path if it has no URL."""
    return location if "://" in location else str(Path(location).resolve())


FIRST_INTERVAL_S = 1.0
LONGEST_INTERVAL_S = 60.0
"""The longest time between two probes, so that a server is noticed within it even after days of absence."""


class BreakerState(StrEnum):
    """The state of a circuit breaker.

    CLOSED: the server answers. OPEN: it does not, and nobody asks it until a probe is due. HALF_OPEN: a probe is under
    way.
    """

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class CircuitBreaker:
    """A thread-safe circuit breaker; `clock` returns seconds."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._state = BreakerState.CLOSED
        self._interval_s = FIRST_INTERVAL_S
        self._opened_at = self._failed_at = 0.0
        self.reason = ""
        """The reason of the last failure."""

    @property
    def state(self) -> BreakerState:
        return self._state

    @property
    def is_closed(self) -> bool:
        return self._state is BreakerState.CLOSED

    def out_s(self) -> float:
        """Return for how many seconds the breaker has not been closed."""
        with self._lock:
            return 0.0 if self.is_closed else self._clock() - self._opened_at

    def fail(self, reason: str) -> bool:
        """Record that the server did not answer, and return whether this opened the breaker.

        A failed probe doubles the time to the next one. A failure reported while the breaker is open changes only the
        reason.
        """
        with self._lock:
            was, self.reason = self._state, reason
            if was is BreakerState.OPEN:
                return False
            self._state = BreakerState.OPEN
            self._failed_at = self._clock()
            if was is BreakerState.CLOSED:
                self._opened_at, self._interval_s = self._failed_at, FIRST_INTERVAL_S
            else:
                self._interval_s = min(2 * self._interval_s, LONGEST_INTERVAL_S)
            return was is BreakerState.CLOSED

    def succeed(self) -> bool:
        """Record that the server answered, and return whether this closed the breaker."""
        with self._lock:
            was, self._state = self._state, BreakerState.CLOSED
            return was is not BreakerState.CLOSED

    def begin_probe(self) -> bool:
        """Return whether a probe is due; if so, the breaker is half-open until the result of the probe is reported."""
        with self._lock:
            if self._state is not BreakerState.OPEN or self._clock() < self._failed_at + self._interval_s:
                return False
            self._state = BreakerState.HALF_OPEN
            return True

    def due_in_s(self) -> float:
        """Return the seconds until the next probe; 0 if it is due, or if none is needed."""
        with self._lock:
            if self._state is not BreakerState.OPEN:
                return 0.0
            return max(0.0, self._failed_at + self._interval_s - self._clock())


START_TIMEOUT_S = 60.0
"""Far above the seconds that a cold start takes on a busy laptop, where it imports the web stack from disk."""

_PORT_TAKEN = "cannot listen on"


def start_own_server(
    folder: Path,
    before: str | None,
    token: str | None,
    options: Sequence[str] = (),
    max_threads: int | None = None,
) -> tuple[Child, str]:
    """Start a server and return its process and its address, which is `before` if that port is still free.

    With a `token`, the server refuses requests without it. `options` are more options of `swarm start`. The study
    records its runs, so the server does not record them in the database. A large model uses at most `max_threads`.
    Raises ServerProblem if the server does not start.
    """
    port = urlsplit(before).port if before else None
    try:
        return _start(folder, port or 0, token, options, max_threads)
    except ServerProblem as error:
        if not port or _PORT_TAKEN not in str(error):
            raise
        return _start(folder, 0, token, options, max_threads)


def _start(
    folder: Path, port: int, token: str | None, options: Sequence[str], max_threads: int | None
) -> tuple[Child, str]:
    folder.mkdir(parents=True, exist_ok=True)
    out, errors = folder / "stdout.log", folder / "stderr.log"
    out.unlink(missing_ok=True)
    address = ("--port", str(port), "--home", str(folder))
    argv = python_module("swarm.cli", "start", *address, "--json", "--no-record", *options)
    # The environment may hold a token meant for other servers, which would lock us out of our own.
    environment = server_environment()
    if token is not None:
        environment["SWARM_TOKEN"] = token
    if max_threads is not None:
        environment.setdefault("SWARM_MAX_TORCH_THREADS", str(max_threads))
    child = Child(argv, env=environment, cwd=folder, out=out, errors=errors)
    try:
        return child, str(await_announcement(child, out, errors, START_TIMEOUT_S)["url"])
    except NoAnnouncement as error:
        child.stop()
        raise ServerProblem(f"a local swarm server did not start: {error} (log: {errors})") from error
