"""What looks wrong about a client: train episodes are shown to the preflight check, new findings go on record.

Place in the flow: kept by episodes.py. What counts as wrong is decided in swarm.batch.preflight.
"""

from __future__ import annotations

import logging
from dataclasses import asdict

from swarm.batch.preflight import Preflight
from swarm.errors import SwarmError
from swarm.ledger import Ledger
from swarm.rollout.running import RunningEpisode
from swarm.schemas import WarningView
from swarm.types import EpisodeType, FinishedEpisode, TrainBatch

logger = logging.getLogger(__name__)

MAX_SHOWN = 100


class ClientWarnings:
    """Used from one event loop."""

    def __init__(self, preflight: Preflight, ledger: Ledger) -> None:
        self._preflight = preflight
        self._ledger = ledger
        self._recorded: set[tuple[str, str]] = set()

    def begun(self, episode: RunningEpisode) -> None:
        if episode.episode_type is EpisodeType.TRAIN:
            self._preflight.begun(episode.client_id, episode.row.task_id)

    def ended(self, episode: FinishedEpisode, num_repeat: int) -> None:
        self._preflight.ended(episode.client_id, episode, num_repeat)

    def lost(self, episode: RunningEpisode, reason: str) -> None:
        if episode.episode_type is EpisodeType.TRAIN:
            self._preflight.lost(episode.client_id, reason)

    def sealed(self, batch: TrainBatch) -> None:
        self._preflight.sealed(batch)

    async def record_new(self) -> None:
        """Every warning becomes an event once."""
        current = self._preflight.warnings()
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
        """The newest `MAX_SHOWN`, newest first; all are on record as events."""
        newest = sorted(self._preflight.warnings(), key=lambda warning: warning.last_at, reverse=True)
        return [WarningView.model_validate(asdict(warning)) for warning in newest[:MAX_SHOWN]]
