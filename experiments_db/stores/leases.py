"""Leases: one owner at a time works on a study or a server, and one that was replaced can be told apart.

Place in the flow: a part of ExperimentStore. Heartbeats and expiry use the store's clock, so owners on several hosts
need clocks that agree to well within the time to live.
"""

from __future__ import annotations

from experiments_db.errors import InvalidRecord, LeaseHeld
from experiments_db.models import ResourceLeaseRow
from experiments_db.records import Lease
from experiments_db.stores.base import StoreBase, check_finite, check_lease, check_text, insert_rows, require, to_record


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
        free = {
            "resource": resource,
            "owner": None,
            "token": 0,
            "ttl_s": ttl_s,
            "acquired_at": now,
            "heartbeat_at": now,
        }
        with self._write() as session:
            insert_rows(session, ResourceLeaseRow, [free], key=("resource",))
            row = require(session, ResourceLeaseRow, resource, "lease", lock=True)
            age_s = now - row.heartbeat_at
            if row.owner not in (None, owner) and age_s <= row.ttl_s:
                raise LeaseHeld(
                    f"{row.owner} is at work on {resource} (last sign of life {age_s:.0f} s ago): "
                    f"stop it first, or wait {row.ttl_s - age_s:.0f} s in case it is dead",
                    owner=str(row.owner),
                    age_s=age_s,
                )
            if row.owner != owner:
                row.token += 1
                row.acquired_at = now
            row.owner, row.ttl_s, row.heartbeat_at = owner, ttl_s, now
            return to_record(Lease, row)

    def heartbeat(self, lease: Lease) -> Lease:
        """Prolong the lease by its `ttl_s` from now. Raises StoreLeaseLost."""
        with self._write() as session:
            row = check_lease(session, lease)
            row.heartbeat_at = self._clock()
            return to_record(Lease, row)

    def release_lease(self, lease: Lease) -> None:
        """Release the lease at once; one that is already lost raises no error."""
        with self._write() as session:
            row = session.get(ResourceLeaseRow, lease.resource, with_for_update=True)
            if row is not None and row.token == lease.token and row.owner == lease.owner:
                row.owner = None

    def find_lease(self, resource: str) -> Lease | None:
        """Return the lease of `resource`, alive or expired; None if nobody owns it.

        It has expired if `heartbeat_at` + `ttl_s` is in the past.
        """
        with self._read() as session:
            row = session.get(ResourceLeaseRow, resource)
            return None if row is None or row.owner is None else to_record(Lease, row)
