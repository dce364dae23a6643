"""Leases: one owner at a time works on a study or a server, and one that was replaced can be told apart.

Heartbeats and expiry use the store's clock, so owners on several hosts need clocks that agree to well within the time
to live.
"""

from __future__ import annotations

from typing import Any

from experiments_db.errors import InvalidRecord, LeaseHeld
from experiments_db.records import Lease
from experiments_db.stores.base import (
    StoreBase,
    change,
    check_finite,
    check_lease,
    check_text,
    find,
    insert_rows,
    require,
)
from experiments_db.tables import LEASES

NOBODY = ""
"""The owner of a lease that was released."""


class LeaseStore(StoreBase):
    def acquire_lease(self, resource: str, owner: str, ttl_s: float) -> Lease:
        """Take `resource` (a study id, a server's URL), or renew it if `owner` has it.

        After `ttl_s` seconds without a heartbeat another owner may take it; each new owner gets a higher token than any
        before. Raises LeaseHeld while another owner is alive.
        """
        check_text(resource=resource, owner=owner)
        check_finite(ttl_s=ttl_s)
        if ttl_s <= 0:
            raise InvalidRecord(f"ttl_s must be positive, not {ttl_s}")
        now = self._clock()
        sign: dict[str, Any] = {"ttl_s": ttl_s, "heartbeat_at": now}
        free = {"resource": resource, "owner": NOBODY, "token": 0, "acquired_at": now, **sign}
        with self._write() as connection:
            insert_rows(connection, LEASES, [free], key=("resource",))
            held = require(connection, LEASES, resource, lock=True)
            age_s = now - held.heartbeat_at
            if held.owner not in (NOBODY, owner) and age_s <= held.ttl_s:
                raise LeaseHeld(
                    f"{held.owner} is at work on {resource} (last sign of life {age_s:.0f} s ago): "
                    f"stop it first, or wait {held.ttl_s - age_s:.0f} s in case it is dead",
                    owner=held.owner,
                    age_s=age_s,
                )
            if held.owner != owner:
                sign |= {"owner": owner, "token": held.token + 1, "acquired_at": now}
            return change(connection, LEASES, resource, **sign)

    def heartbeat(self, lease: Lease) -> Lease:
        """Prolong the lease by its `ttl_s` from now. Raises StoreLeaseLost."""
        with self._write() as connection:
            check_lease(connection, lease)
            return change(connection, LEASES, lease.resource, heartbeat_at=self._clock())

    def release_lease(self, lease: Lease) -> None:
        """Release the lease at once; one that is already lost raises no error."""
        with self._write() as connection:
            held = find(connection, LEASES, lock=True, resource=lease.resource)
            if held is not None and (held.token, held.owner) == (lease.token, lease.owner):
                change(connection, LEASES, lease.resource, owner=NOBODY)

    def find_lease(self, resource: str) -> Lease | None:
        """Return the lease of `resource`, alive or expired; None if nobody owns it.

        It has expired if `heartbeat_at` + `ttl_s` is in the past.
        """
        found = self._find(LEASES, resource=resource)
        return None if found is None or found.owner == NOBODY else found
