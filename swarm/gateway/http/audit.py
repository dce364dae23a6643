"""The audit log: a record of every call that needs the commander role, whether it was allowed or refused."""

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
"""The caller of a request without a token, or with a wrong one."""


@dataclass(frozen=True, slots=True)
class AuditLog:
    ledger: Ledger

    async def record(self, request: Request, caller: Role | None, status: int) -> None:
        """Record a call durably.

        If the ledger cannot be written, the entry goes to the log of the process. The call is already carried out, so
        its answer stays as it is.
        """
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
            logger.error("the ledger has no audit entry of this call (%s): %s", error.message, entry)
