"""The lease of a server, which gives one study at a time the use of the server."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict

from swarm.errors import LeaseLost, ServerLeased
from swarm.ledger import LeaseRow, Ledger
from swarm.schemas import LeaseRequest, LeaseView


class ServerLease:
    """The present lease of a server, if there is one. It is used from one event loop.

    A study renews its lease before it expires. The lease survives a restart of the server. Programs and people who send
    commands by hand need none.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._row: LeaseRow | None = None
        self._ends_at = 0.0
        self._changing = asyncio.Lock()

    async def restore(self) -> None:
        """Load the lease of the previous server process. Its holder gets the full time again to find the server."""
        self._row = await self._ledger.lease()
        if self._row is not None:
            self._ends_at = time.monotonic() + self._row.ttl_s

    def view(self) -> LeaseView | None:
        """Return the lease, or None if there is none or it has expired."""
        row, left_s = self._row, self._ends_at - time.monotonic()
        return None if row is None or left_s <= 0 else _view(row, left_s)

    async def take(self, wanted: LeaseRequest) -> LeaseView:
        """Take or renew the lease. Raise ServerLeased, which names the holder, while another study has the lease."""
        async with self._changing:
            row = self._row
            if row is None or (row.study_id, row.holder) != (wanted.study_id, wanted.holder):
                present = self.view()
                if present is not None and wanted.replaces != present.fence:
                    raise ServerLeased(_refusal(present))
                row = self._row = await self._ledger.record_lease(
                    wanted.study_id,
                    holder=wanted.holder,
                    host=wanted.host,
                    pid=wanted.pid,
                    database=wanted.database,
                    ttl_s=wanted.ttl_s,
                )
            self._ends_at = time.monotonic() + wanted.ttl_s
            return _view(row, wanted.ttl_s)

    async def release(self) -> None:
        """End the lease. A second call does nothing."""
        async with self._changing:
            row, self._row = self._row, None
            if row is not None:
                await self._ledger.end_lease(row.fence)

    def check(self, fence: int) -> None:
        """Raise LeaseLost unless `fence` is the number of the newest lease, even if that lease has expired."""
        row = self._row
        if row is None or row.fence != fence:
            present = self.view()
            now = "nobody uses the server" if present is None else _refusal(present)
            raise LeaseLost(f"the lease {fence} of this call is over: {now}")


def _view(row: LeaseRow, left_s: float) -> LeaseView:
    fields = asdict(row)
    del fields["ttl_s"]
    return LeaseView(**fields, ends_in_s=left_s)


def _refusal(lease: LeaseView) -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(lease.since))
    where = f", database {lease.database}" if lease.database else ""
    who = f"study {lease.study_id} of {lease.host} (process {lease.pid}{where})"
    return f"the server is used by {who} since {since} UTC"
