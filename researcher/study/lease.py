"""The right to work on a study and on servers: one process at a time, alive by its heartbeat, replaceable once dead.

Place in the flow: loop/session.py holds a `StudyLease` around the graph. LangGraph itself lets two processes resume the
same thread. This module knows nothing of what is done in the meantime.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from experiments_db import ExperimentStore, Lease, LeaseHeld, LeaseLost, StoreError
from researcher.errors import StudyBusy
from swarm.processes.child import is_dead, own_name

logger = logging.getLogger(__name__)

TTL_S = 60.0
"""Bridges a suspended laptop's hiccup; a dead owner on the same host is noticed at once."""

HEARTBEAT_S = 5.0


class StudyLease:
    """Leases with one heartbeat: of a study, and of the servers it uses that are not its own.

    `store` refuses every write once another process has taken over the study.
    """

    def __init__(
        self,
        store: ExperimentStore,
        study_id: str,
        *,
        servers: Sequence[str] = (),
        on_beat: Callable[[], None],
        on_lost: Callable[[], None],
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        """Raises StudyBusy while another living process works on the study or one of the servers."""
        self._store = store
        self._on_beat = on_beat
        self._on_lost = on_lost
        self._heartbeat_s = heartbeat_s
        self._leases = _acquire_all(store, [f"study:{study_id}", *(f"server:{url.rstrip('/')}" for url in servers)])
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self.store = store.under(self._leases[0])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        _release_all(self._store, self._leases)

    def _beat(self) -> None:
        while not self._ended.wait(self._heartbeat_s):
            try:
                for lease in self._leases:
                    self._store.heartbeat(lease)
                self._on_beat()
            except LeaseLost:
                logger.exception("another process has taken over")
                self._on_lost()
                return
            except StoreError as error:
                # The next beat may get through; until the lease runs out nobody else can take over.
                logger.warning("no heartbeat: %s", error)


def _acquire_all(store: ExperimentStore, resources: Sequence[str]) -> list[Lease]:
    """All of them or none."""
    leases: list[Lease] = []
    try:
        for resource in resources:
            leases.append(_acquire(store, resource))
    except BaseException:
        _release_all(store, leases)
        raise
    return leases


def _release_all(store: ExperimentStore, leases: Sequence[Lease]) -> None:
    for lease in leases:
        store.release_lease(lease)


def _acquire(store: ExperimentStore, resource: str) -> Lease:
    owner = own_name()
    try:
        return store.acquire_lease(resource, owner, TTL_S)
    except LeaseHeld as held:
        present = store.find_lease(resource)
        if present is None or not is_dead(present.owner):
            raise StudyBusy(held.message) from held
    store.release_lease(present)
    try:
        return store.acquire_lease(resource, owner, TTL_S)
    except LeaseHeld as held:
        raise StudyBusy(held.message) from held
