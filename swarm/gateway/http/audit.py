"""The audit log: every call that takes a commander's rights goes on record, allowed or refused.

Place in the flow: written by routes.py once such a call has its answer, before the caller gets it. It never sees a
token, a body or a query.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from fastapi import Request

from swarm.errors import LedgerError
from swarm.gateway.http.auth import Role
from swarm.gateway.http.middleware import request_id_of
from swarm.ledger import AuditRow, Ledger

logger = logging.getLogger(__name__)

UNKNOWN = "unknown"
"""The caller that showed no token, or a wrong one."""


@dataclass(frozen=True, slots=True)
class AuditLog:
    ledger: Ledger

    async def record(self, request: Request, caller: Role | None, status: int) -> None:
        """Durable on return. A ledger that cannot be written does not undo the call: its answer stands, and the entry
        goes to the log of the process."""
        client = request.client
        entry = AuditRow(
            audit_id=0,
            at=time.time(),
            caller=caller or UNKNOWN,
            address="" if client is None else client.host,
            method=request.method,
            path=request.scope["path"],
            status=status,
            request_id=request_id_of(request.scope),
        )
        try:
            await self.ledger.record_audit(entry)
        except LedgerError as error:
            logger.error("not audited (%s): %s", error.message, entry)
