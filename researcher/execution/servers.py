"""The swarm servers of a study: its own on this machine, or those a person named.

Place in the flow: launch takes a free slot for each run, evaluate gives it back. Own servers are children
(swarm.processes): they end with the researcher. This module knows nothing of arms, runs or scores.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from researcher.errors import ServerProblem
from swarm import SwarmClient, SwarmError
from swarm.processes.announcement import NoAnnouncement, await_announcement
from swarm.processes.child import Child, server_environment

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 60.0
"""A cold start imports the web stack from disk; far above the seconds that takes on a busy laptop."""

PROBE_TIMEOUT_S = 3.0
POLL_TIMEOUT_S = 10.0
MAX_RESTARTS = 3
"""Per slot and study: a server that dies more often than this will not get better."""

PROJECT = "research"
"""Project name of every job the researcher runs; a server busy with another one is somebody else's."""

_IDLE = frozenset({"OFFLINE", "FAILED"})


def connect(url: str, token: str | None, *, timeout_s: float = POLL_TIMEOUT_S) -> SwarmClient:
    """A client for one server. Raises ServerProblem for what is no address."""
    try:
        return SwarmClient(url, token=token, client_id="researcher", timeout=timeout_s)
    except SwarmError as error:
        raise ServerProblem(str(error)) from error


def foreign_token() -> str | None:
    """The token of servers that somebody else started, from SWARM_TOKEN."""
    return os.environ.get("SWARM_TOKEN")


def check_servers(urls: Sequence[str]) -> None:
    """Every server answers and is free for us. Raises ServerProblem naming the first one that is not."""
    for url in urls:
        with connect(url, foreign_token(), timeout_s=PROBE_TIMEOUT_S) as client:
            try:
                status = client.status()
            except SwarmError as error:
                raise ServerProblem(str(error) if url in str(error) else f"server {url}: {error}") from error
        if status.state not in _IDLE and status.project_name != PROJECT:
            raise ServerProblem(
                f"server {url} is busy with {status.project_name}/{status.experiment_name}: stop that first "
                f"(swarm stop --engine-only --url {url}), or name another server"
            )


@dataclass(slots=True)
class Slot:
    """One place to train. `child` is None for a server that somebody else started; `url` is None until it is up."""

    index: int
    url: str | None = None
    child: Child | None = None
    is_local: bool = True
    is_free: bool = True
    restarts: int = 0
    is_lost: bool = False


class ServerPool:
    """Slots of a study. Used by the graph's thread; only `start` uses threads of its own."""

    def __init__(self, *, urls: Sequence[str] = (), local: int = 0, home: Path, own_token: str | None = None) -> None:
        """Either the servers at `urls`, or `local` own ones with their files under `home`. Own ones obey nobody without
        `own_token`, if there is one."""
        self._home = home
        self._own_token = own_token
        self._slots = [Slot(index, url=url, is_local=False) for index, url in enumerate(urls)] or [
            Slot(index) for index in range(local)
        ]

    @property
    def slots(self) -> tuple[Slot, ...]:
        return tuple(self._slots)

    def token_of(self, url: str) -> str | None:
        """What opens the server at `url`: our own token for our own servers, SWARM_TOKEN for those of others."""
        is_own = any(slot.url == url and slot.is_local for slot in self._slots)
        return self._own_token if is_own else foreign_token()

    def connect(self, url: str) -> SwarmClient:
        """Raises ServerProblem for what is no address."""
        return connect(url, self.token_of(url))

    def start(self) -> None:
        """Start the own servers, all at once. Raises ServerProblem if one does not come up."""
        pending = [slot for slot in self._slots if slot.is_local]
        if not pending:
            check_servers([slot.url for slot in self._slots if slot.url])
            return
        with ThreadPoolExecutor(len(pending)) as pool:
            try:
                list(pool.map(self._start_local, pending))
            except ServerProblem:
                self.stop()
                raise

    def stop(self) -> None:
        """End the own servers; servers of others are left as they are."""
        children = [slot.child for slot in self._slots if slot.child is not None]
        if children:
            with ThreadPoolExecutor(len(children)) as pool:
                list(pool.map(Child.stop, children))
        for slot in self._slots:
            slot.child = None

    def take(self) -> Slot | None:
        """A free slot with a living server, now taken; None if there is none. Raises ServerProblem if all are lost."""
        for slot in self._slots:
            if slot.is_free and not slot.is_lost and self._revive(slot):
                slot.is_free = False
                return slot
        if all(slot.is_lost for slot in self._slots):
            raise ServerProblem(f"no swarm server is left: each one ended {MAX_RESTARTS} times, see {self._home}")
        return None

    def give_back(self, slot: Slot) -> None:
        slot.is_free = True

    def take_at(self, url: str | None) -> Slot | None:
        """The free slot of the server at `url`, now taken; None if it is not one of ours."""
        slot = next((slot for slot in self._slots if slot.url == url and slot.is_free), None)
        if slot is not None:
            slot.is_free = False
        return slot

    def _revive(self, slot: Slot) -> bool:
        """True if the server of this slot runs; an own one that ended is started again, a few times."""
        if slot.child is None or (code := slot.child.poll()) is None:
            return True
        slot.child.stop()
        slot.restarts += 1
        if slot.restarts > MAX_RESTARTS:
            slot.is_lost = True
            return False
        logger.warning("server %d ended with code %s and is started again", slot.index, code)
        try:
            self._start_local(slot)
        except ServerProblem:
            logger.exception("server %d did not start again", slot.index)
            slot.is_lost = True
        return not slot.is_lost

    def _start_local(self, slot: Slot) -> None:
        folder = self._home / str(slot.index)
        folder.mkdir(parents=True, exist_ok=True)
        out, errors = folder / "stdout.log", folder / "stderr.log"
        out.unlink(missing_ok=True)
        argv = [sys.executable, "-m", "swarm.cli", "start", "--port", "0", "--home", str(folder), "--json"]
        # A token meant for other servers would lock us out of our own.
        environment = server_environment()
        if self._own_token is not None:
            environment["SWARM_TOKEN"] = self._own_token
        slot.child = child = Child(argv, env=environment, cwd=folder, out=out, errors=errors)
        try:
            slot.url = str(await_announcement(child, out, errors, START_TIMEOUT_S)["url"])
        except NoAnnouncement as error:
            child.stop()
            raise ServerProblem(f"a local swarm server did not start: {error} (log: {errors})") from error
