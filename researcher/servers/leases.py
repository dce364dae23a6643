"""The lease that a study has on each of its servers.

The server itself stores the lease, so that studies of two databases cannot use one server without noticing.

Place in the flow: servers/server_pool.py takes and renews the lease with every look at a server. This module knows
nothing of runs.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from researcher.errors import ServerInUse
from swarm import SwarmClient
from swarm.errors import ServerLeased
from swarm.processes import is_dead, own_name
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
