"""The clients of one job: when each was last seen, how its episodes ended, and what looks wrong about it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection
from dataclasses import asdict, dataclass

from swarm.batch.diagnostics import Diagnostics
from swarm.errors import SwarmError
from swarm.ledger import Ledger
from swarm.rollout.running import RunningEpisode
from swarm.schemas import ClientView, WarningView
from swarm.types import EpisodeType, FinishedEpisode, TrainBatch

logger = logging.getLogger(__name__)

MEMORY_S = 600.0
"""How long a client without episodes stays in the status."""

LIVE_S = 60.0
"""How long after its last call a client that once trained counts as alive. A batch with its episodes waits for it as
long as the server remembers it."""

MAX_SHOWN = 1000
"""The most clients in a status: those seen last."""


@dataclass(slots=True)
class Client:
    """One client and the counts of its episodes.

    `trains` tells whether it ever began a train episode. `seen` is in seconds of the monotonic clock.
    """

    client_id: str
    seen: float
    running: int = 0
    running_train: int = 0
    completed: int = 0
    lost: int = 0
    trains: bool = False


class Clients:
    """All clients of one job, by name. Use it from one event loop."""

    def __init__(self) -> None:
        self._by_id: dict[str, Client] = {}
        self._since = time.monotonic()

    def see(self, client_id: str) -> Client:
        now = time.monotonic()
        client = self._by_id.get(client_id)
        if client is None:
            client = self._by_id[client_id] = Client(client_id, now)
        client.seen = now
        return client

    def began(self, client_id: str, episode_type: EpisodeType) -> None:
        client = self.see(client_id)
        client.running += 1
        if episode_type is EpisodeType.TRAIN:
            client.running_train += 1
            client.trains = True

    def left(self, client_id: str, episode_type: EpisodeType) -> Client:
        """Return the client of an episode that runs no more; the caller counts it as completed or lost."""
        client = self._by_id[client_id]
        client.running -= 1
        if episode_type is EpisodeType.TRAIN:
            client.running_train -= 1
        return client

    def awaited(self, now: float, pooled: Collection[str]) -> dict[str, float]:
        """Return the clients whose agreement the batch needs, each with the end of the wait for it.

        These are the clients with running train episodes, those with episodes in the batch (`pooled`), and those seen
        lately that have begun a train episode. Times are seconds of the monotonic clock. The wait for a silent client
        always ends.
        """
        until = {name: self._last_seen(name) + MEMORY_S for name in pooled}
        for client in self._by_id.values():
            if client.running_train:
                until[client.client_id] = math.inf
            elif client.trains:
                until.setdefault(client.client_id, client.seen + LIVE_S)
        return {name: end for name, end in until.items() if end >= now}

    def _last_seen(self, client_id: str) -> float:
        """Return when a client was last seen.

        A client of which only restored episodes are known counts as seen when the server began.
        """
        client = self._by_id.get(client_id)
        return self._since if client is None else client.seen

    def forget_silent(self, now: float) -> None:
        for client in list(self._by_id.values()):
            if not client.running and now - client.seen > MEMORY_S:
                del self._by_id[client.client_id]

    def views(self) -> list[ClientView]:
        """Return a view of each client, sorted by name; `last_seen_at` is in seconds since the epoch."""
        offset = time.time() - time.monotonic()
        latest = sorted(self._by_id.values(), key=lambda client: -client.seen)[:MAX_SHOWN]
        return [
            ClientView(
                client_id=client.client_id,
                last_seen_at=client.seen + offset,
                running=client.running,
                completed=client.completed,
                lost=client.lost,
            )
            for client in sorted(latest, key=lambda client: client.client_id)
        ]


MAX_SHOWN_WARNINGS = 100


class ClientWarnings:
    """Warnings about the train episodes of each client. Use it from one event loop."""

    def __init__(self, diagnostics: Diagnostics, ledger: Ledger) -> None:
        self._diagnostics = diagnostics
        self._ledger = ledger
        self._recorded: set[tuple[str, str]] = set()

    def begun(self, episode: RunningEpisode) -> None:
        if episode.episode_type is EpisodeType.TRAIN:
            self._diagnostics.begun(episode.client_id, episode.row.task_id)

    def ended(self, episode: FinishedEpisode, num_repeat: int) -> None:
        self._diagnostics.ended(episode.client_id, episode, num_repeat)

    def lost(self, episode: RunningEpisode, reason: str) -> None:
        if episode.episode_type is EpisodeType.TRAIN:
            self._diagnostics.lost(episode.client_id, reason)

    def batch_closed(self, batch: TrainBatch) -> None:
        self._diagnostics.batch_closed(batch)

    def messages(self, client_id: str) -> dict[str, str]:
        """Return the warnings about one client, by code."""
        found = self._diagnostics.warnings()
        return {warning.code: warning.message for warning in found if warning.client_id == client_id}

    async def record_new(self) -> None:
        """Record every new warning as an event, once."""
        current = self._diagnostics.warnings()
        self._recorded &= {(warning.code, warning.client_id) for warning in current}
        for warning in current:
            if (warning.code, warning.client_id) in self._recorded:
                continue
            logger.warning("client %s: %s", warning.client_id, warning.message)
            detail = {"code": warning.code, "client_id": warning.client_id, "message": warning.message}
            try:
                await self._ledger.record_event("client.warned", detail)
            except SwarmError as error:
                logger.warning("a warning was not recorded: %s", error.message)
                return
            self._recorded.add((warning.code, warning.client_id))

    def views(self) -> list[WarningView]:
        """Return the newest `MAX_SHOWN_WARNINGS` warnings, newest first; events keep all of them."""
        newest = sorted(self._diagnostics.warnings(), key=lambda warning: warning.last_at, reverse=True)
        return [WarningView.model_validate(asdict(warning)) for warning in newest[:MAX_SHOWN_WARNINGS]]
