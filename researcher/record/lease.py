"""The lease of a study: one process at a time may work on it, alive by its heartbeat, replaceable once dead."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Self

from experiments_db import ExperimentStore, Lease, LeaseHeld, StoreError, StoreLeaseLost, lease_name
from researcher.errors import StudyBusy
from swarm.processes import is_dead, own_name

logger = logging.getLogger(__name__)

TTL_S = 60.0
"""Seconds of a lease: long enough for a brief suspend. A dead process on the same host is noticed at once."""

HEARTBEAT_S = 5.0


class StudyLease:
    """The lease of a study, with its heartbeat; servers have leases of their own (servers/server.py).

    `store` refuses every write once another process has taken over the study.
    """

    def __init__(
        self,
        store: ExperimentStore,
        study_id: str,
        *,
        on_beat: Callable[[], None],
        on_lost: Callable[[], None],
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        """Acquire the lease. Raises StudyBusy while another living process works on the study."""
        self._store = store
        self._on_beat = on_beat
        self._on_lost = on_lost
        self._heartbeat_s = heartbeat_s
        self._lease = _acquire(store, lease_name(study_id))
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self.store = store.under(self._lease)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._store.release_lease(self._lease)

    def _beat(self) -> None:
        while not self._ended.wait(self._heartbeat_s):
            try:
                self._store.heartbeat(self._lease)
                self._on_beat()
            except StoreLeaseLost:
                logger.exception("another process has taken over")
                self._on_lost()
                return
            except StoreError as error:
                # The next heartbeat may succeed, and nobody else can take over until the lease runs out.
                logger.warning("no heartbeat: %s", error)


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
