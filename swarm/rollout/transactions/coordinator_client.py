"""The calls that ask another server for its decision on a transaction: the only calls that a server makes by itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from urllib.parse import urlsplit

import httpx

from swarm.config import base_url, is_loopback
from swarm.errors import BadRequest
from swarm.schemas import API_PREFIX, TransactionState, TransactionView

logger = logging.getLogger(__name__)

PATH = f"{API_PREFIX}/transactions/"
LIMIT_S = 5.0
MAX_ANSWER_BYTES = 1000
ASKED_TOGETHER = 20


class CoordinatorClient:
    """A client of other servers. Use it from one event loop.

    `host` is the address that this server listens on, `peers` are base URLs in one spelling.

    A client names the server to ask, so only servers that the operator allowed may be asked. If only this machine can
    call this server, all servers on this machine may be asked as well.
    """

    def __init__(self, host: str = "127.0.0.1", peers: Collection[str] = ()) -> None:
        self._is_local = is_loopback(host)
        self._peers = frozenset(peers)
        self._http: httpx.AsyncClient | None = None

    def url(self, coordinator: str, transaction_id: str) -> str:
        """Return the URL to ask. Raise BadRequest for a server that may not be asked."""
        try:
            base = base_url(coordinator)
        except ValueError as error:
            raise BadRequest(f"coordinator: {error}", param="coordinator") from None
        if not self._may_ask(base):
            raise BadRequest(
                f"coordinator: this server may not ask {base}: start it with --peer {base}", param="coordinator"
            )
        return f"{base}{PATH}{transaction_id}"

    async def ask(self, url: str) -> TransactionState | None:
        """Return the state of the transaction, or None without a clear answer."""
        base, found, _ = url.rpartition(PATH)
        if not found or not self._may_ask(base):
            logger.warning("%s may not be asked any more: start this server with --peer", base)
            return None
        if self._http is None:
            self._http = httpx.AsyncClient(
                timeout=LIMIT_S,
                follow_redirects=False,
                trust_env=False,
                headers={"accept-encoding": "identity"},
                limits=httpx.Limits(max_connections=ASKED_TOGETHER, max_keepalive_connections=0),
            )
        try:
            async with asyncio.timeout(LIMIT_S):
                return await self._fetch(self._http, url)
        except (TimeoutError, httpx.HTTPError, ValueError) as error:
            logger.info("no answer from %s: %s", base, type(error).__name__)
            return None

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()

    async def _fetch(self, http: httpx.AsyncClient, url: str) -> TransactionState | None:
        async with http.stream("GET", url) as response:
            if response.status_code != 200:
                return None
            body = b""
            async for piece in response.aiter_raw():
                body += piece
                if len(body) > MAX_ANSWER_BYTES:
                    return None
        return TransactionView.model_validate_json(body).state

    def _may_ask(self, base: str) -> bool:
        if base in self._peers:
            return True
        parts = urlsplit(base)
        return self._is_local and not parts.path and is_loopback(parts.hostname or "")
