"""The lease of a server: one study at a time, alive by its renewals, and longer-lived than the server's process.

Place in the flow: commands.py hands its methods to the control API. It knows nothing of jobs: programs, and people who
command the server by hand, need no lease.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict

from swarm.errors import LeaseLost, ServerLeased
from swarm.ledger import LeaseRow, Ledger
from swarm.schemas import LeaseRequest, LeaseView


class ServerLease:
    """At most one lease. Used from one event loop."""

    def __init__(self, ledger: Ledger, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger = ledger
        self._clock = clock
        self._row: LeaseRow | None = None
        self._ends_at = 0.0
        self._changing = asyncio.Lock()

    async def restore(self) -> None:
        """What the process before knew: its holder gets its whole time again to find the server."""
        self._row = await self._ledger.lease()
        if self._row is not None:
            self._ends_at = self._clock() + self._row.ttl_s

    def view(self) -> LeaseView | None:
        """None once it has run out."""
        row, left_s = self._row, self._ends_at - self._clock()
        return None if row is None or left_s <= 0 else _view(row, left_s)

    async def take(self, wanted: LeaseRequest) -> LeaseView:
        """Take it or renew it. Raises ServerLeased, naming the holder, while somebody else has it."""
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
            self._ends_at = self._clock() + wanted.ttl_s
            return _view(row, wanted.ttl_s)

    async def release(self) -> None:
        """Nobody uses the server any more. Idempotent."""
        async with self._changing:
            row, self._row = self._row, None
            if row is not None:
                await self._ledger.end_lease(row.fence)

    def check(self, fence: int) -> None:
        """Raises LeaseLost unless `fence` is that of the newest lease, run out or not."""
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
