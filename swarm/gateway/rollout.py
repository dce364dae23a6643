"""The episodes of one started job: begin, end, abort, expire, and the tree each one grows.

Place in the flow: routers call it, it records in the ledger before it acknowledges, and hands every ended train episode
to the batch pool. It knows nothing of HTTP, of sampling, or of what happens to a full pool.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
import uuid
from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from swarm.batch import BatchPool
from swarm.config import TrainJob
from swarm.engine.base import EngineInfo
from swarm.engine.state import SERVING, EngineLifecycle
from swarm.errors import (
    EngineFailure,
    EngineNotReady,
    EpisodeEnded,
    NotFound,
    RolloutPaused,
    SwarmError,
    TrainingComplete,
    Unauthorized,
)
from swarm.gateway.auth import key_digest, new_key
from swarm.ledger import EndReceipt, EpisodeRow, Ledger
from swarm.schemas import BeginEpisodeRequest, EndEpisodeRequest, EngineState, EpisodeState
from swarm.tracker.merge import merge
from swarm.tracker.tree import EpisodeTree
from swarm.types import EpisodeType, FinishedEpisode

logger = logging.getLogger(__name__)

EXPIRY_INTERVAL_S = 1.0
CLIENT_MEMORY_S = 600.0
"""How long a client without episodes stays in the status."""


REMEMBERED_KEYS = 10_000
"""Digests of closed episodes' keys, so that a late call hears what became of its episode."""


@dataclass(slots=True)
class RunningEpisode:
    """One episode between begin and end. `closed` says why it can take no more calls, once it cannot."""

    episode_id: str
    episode_type: EpisodeType
    client_id: str
    key_digest: str
    tree: EpisodeTree
    begun_at: float
    last_seen_at: float
    idle_timeout_s: float
    deadline_at: float
    calls_in_flight: int = 0
    closed: str | None = None

    def touch(self) -> None:
        self.last_seen_at = time.time()

    def expiry_reason(self, now: float) -> str | None:
        """A call in flight is a sign of life; the hard deadline applies all the same."""
        if now > self.deadline_at:
            return "deadline"
        if not self.calls_in_flight and now - self.last_seen_at > self.idle_timeout_s:
            return "idle_timeout"
        return None


@dataclass(slots=True)
class ClientRecord:
    """What the status shows of one client."""

    last_seen_at: float
    completed: int = 0


@dataclass(frozen=True, slots=True)
class BegunEpisode:
    episode_id: str
    api_key: str
    weight_version: int
    deadline_at: float


@dataclass(slots=True)
class Rollout:
    """Every episode of one job, from the start of its engine to the stop. Used from one event loop."""

    job: TrainJob
    info: EngineInfo
    pool: BatchPool
    ledger: Ledger
    lifecycle: EngineLifecycle
    batch_ready: asyncio.Event
    clients: dict[str, ClientRecord] = field(default_factory=dict[str, ClientRecord])
    _running: dict[str, RunningEpisode] = field(default_factory=dict[str, RunningEpisode])
    _by_key: dict[str, RunningEpisode] = field(default_factory=dict[str, RunningEpisode])
    _closed_keys: OrderedDict[str, str] = field(default_factory=OrderedDict[str, str])
    _idle: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def begin(self, request: BeginEpisodeRequest) -> BegunEpisode:
        """Open an episode, holding the call up to `wait_s` seconds while the engine cannot take one.

        Raises TrainingComplete for a train episode after the last step, RolloutPaused or EngineNotReady when the wait
        was in vain.
        """
        await self._admit(request.episode_type, request.wait_s)
        now = time.time()
        key = new_key()
        episode = RunningEpisode(
            episode_id=f"ep-{uuid.uuid4().hex}",
            episode_type=request.episode_type,
            client_id=request.client_id,
            key_digest=key_digest(key),
            tree=EpisodeTree(""),
            begun_at=now,
            last_seen_at=now,
            idle_timeout_s=request.idle_timeout_s,
            deadline_at=now + self.job.episode_timeout_s,
        )
        episode.tree = EpisodeTree(episode.episode_id)
        # Counted before the ledger answers, so that a batch sealed meanwhile waits for this episode.
        self._running[episode.episode_id] = episode
        try:
            await self.ledger.begin_episode(_row_of(episode, request.task_id))
        except BaseException:
            self._running.pop(episode.episode_id, None)
            await self._notify_idle()
            raise
        self._by_key[episode.key_digest] = episode
        self._see(request.client_id)
        return BegunEpisode(episode.episode_id, key, self.lifecycle.weights.version, episode.deadline_at)

    async def end(self, episode_id: str, request: EndEpisodeRequest) -> EndReceipt:
        """Complete an episode exactly once; durable on return.

        Raises NotFound, IdempotencyMismatch, or EpisodeEnded with what became of it.
        """
        episode = self._running.get(episode_id)
        if episode is not None:
            episode.closed = "ended"
        ended_at = time.time()
        try:
            receipt = await self.ledger.end_episode(
                episode_id,
                idempotency_key=request.idempotency_key or episode_id,
                payload_digest=_payload_digest(request),
                task_id=request.task_id,
                reward=request.reward,
                is_success=request.is_success,
                metadata=request.metadata,
                ended_at=ended_at,
            )
        except SwarmError:
            if episode is not None and episode_id in self._running:
                episode.closed = None
            raise
        self._see(request.client_id)
        if episode is not None and not receipt.replayed:
            await self._complete(episode, request, ended_at)
        return receipt

    async def abort(self, episode_id: str, reason: str) -> None:
        """Give an episode up without a reward; a repeated abort is no error. Raises NotFound or EpisodeEnded."""
        await self._close(episode_id, EpisodeState.ABORTED, reason)

    def heartbeat(self, episode_id: str) -> RunningEpisode:
        """A sign of life. Raises EpisodeEnded if the episode is not running."""
        episode = self._running.get(episode_id)
        if episode is None:
            raise EpisodeEnded(f"episode {episode_id} is not running: begin another one")
        episode.touch()
        self._see(episode.client_id)
        return episode

    def authorize(self, key: str) -> RunningEpisode:
        """The running episode that a key opens. Raises EpisodeEnded with the reason, or Unauthorized."""
        digest = key_digest(key)
        episode = self._by_key.get(digest)
        reason = self._closed_keys.get(digest) if episode is None else episode.closed
        if reason is not None:
            raise EpisodeEnded(f"the episode of this key is over ({reason}): begin another one")
        if episode is None:
            raise Unauthorized("this key opens no episode of this server")
        episode.touch()
        return episode

    def running(self, episode_type: EpisodeType) -> int:
        return sum(episode.episode_type is episode_type for episode in self._running.values())

    def running_by_client(self) -> Counter[str]:
        return Counter(episode.client_id for episode in self._running.values())

    def last_seen(self, episode_id: str) -> float | None:
        episode = self._running.get(episode_id)
        return None if episode is None else episode.last_seen_at

    async def drained(self, timeout_s: float) -> bool:
        """Wait until no train episode runs; False if some still do after `timeout_s` seconds."""
        try:
            async with asyncio.timeout(timeout_s), self._idle:
                await self._idle.wait_for(lambda: self.running(EpisodeType.TRAIN) == 0)
        except TimeoutError:
            return False
        return True

    async def expire_forever(self) -> None:
        """Give up episodes whose client is silent or whose deadline has passed. Runs until cancelled."""
        while True:
            await asyncio.sleep(EXPIRY_INTERVAL_S)
            now = time.time()
            for episode in list(self._running.values()):
                if episode.closed is None and (reason := episode.expiry_reason(now)):
                    await self._expire(episode, reason)
            for client_id in [name for name, seen in self.clients.items() if now - seen.last_seen_at > CLIENT_MEMORY_S]:
                del self.clients[client_id]

    async def close(self, reason: str) -> None:
        """Abort whatever runs: the engine stops."""
        for episode in list(self._running.values()):
            try:
                await self._close(episode.episode_id, EpisodeState.ABORTED, reason)
            except SwarmError as error:
                logger.warning("episode %s not closed: %s", episode.episode_id, error.message)

    async def _admit(self, episode_type: EpisodeType, wait_s: float) -> None:
        states = SERVING if episode_type is EpisodeType.EVAL else frozenset({EngineState.ROLLING})
        leave = states | {EngineState.FAILED, EngineState.OFFLINE}
        deadline = time.monotonic() + wait_s
        while True:
            self._refuse_after_last_step(episode_type)
            if self.lifecycle.state in states:
                return
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not await self.lifecycle.wait_until(leave, remaining):
                raise RolloutPaused(f"the engine is {self.lifecycle.state}: try again", retry_after_s=1)
            if self.lifecycle.state is EngineState.FAILED:
                raise EngineFailure(f"the engine has failed: {self.lifecycle.reason}")
            if self.lifecycle.state is EngineState.OFFLINE:
                raise EngineNotReady("the engine is stopped: start it first")

    def _refuse_after_last_step(self, episode_type: EpisodeType) -> None:
        total, done = self.job.total_steps, self.lifecycle.weights.step
        if episode_type is EpisodeType.TRAIN and total is not None and done >= total:
            raise TrainingComplete(f"all {total} steps of this job are done: no more train episodes")

    async def _complete(self, episode: RunningEpisode, request: EndEpisodeRequest, ended_at: float) -> None:
        self._forget(episode)
        self.clients[request.client_id].completed += 1
        if episode.episode_type is EpisodeType.TRAIN:
            self.pool.add(
                FinishedEpisode(
                    episode_id=episode.episode_id,
                    task_id=request.task_id,
                    client_id=request.client_id,
                    reward=request.reward,
                    is_success=request.is_success,
                    samples=merge(episode.tree.turns),
                    ended_at=ended_at,
                )
            )
            if self.pool.ready:
                self.batch_ready.set()
        await self._notify_idle()

    async def _expire(self, episode: RunningEpisode, reason: str) -> None:
        logger.info("episode %s of %s expired: %s", episode.episode_id, episode.client_id, reason)
        try:
            await self._close(episode.episode_id, EpisodeState.EXPIRED, reason)
        except EpisodeEnded:
            # Its end arrived while this was decided; the end wins.
            return

    async def _close(self, episode_id: str, state: EpisodeState, reason: str) -> None:
        episode = self._running.get(episode_id)
        if state is EpisodeState.EXPIRED:
            await self.ledger.close_episode(episode_id, EpisodeState.EXPIRED, reason, ended_at=time.time())
        else:
            await self.ledger.close_episode(episode_id, EpisodeState.ABORTED, reason, ended_at=time.time())
        if episode is not None:
            episode.closed = reason
            self._forget(episode)
            await self._notify_idle()

    def _forget(self, episode: RunningEpisode) -> None:
        self._running.pop(episode.episode_id, None)
        self._by_key.pop(episode.key_digest, None)
        self._closed_keys[episode.key_digest] = episode.closed or "ended"
        while len(self._closed_keys) > REMEMBERED_KEYS:
            self._closed_keys.popitem(last=False)

    def _see(self, client_id: str) -> None:
        self.clients.setdefault(client_id, ClientRecord(time.time())).last_seen_at = time.time()

    async def _notify_idle(self) -> None:
        async with self._idle:
            self._idle.notify_all()

    def find(self, episode_id: str) -> RunningEpisode:
        """Raises NotFound if it does not run here."""
        episode = self._running.get(episode_id)
        if episode is None:
            raise NotFound(f"no running episode {episode_id}")
        return episode


def _row_of(episode: RunningEpisode, task_id: str | None) -> EpisodeRow:
    return EpisodeRow(
        episode_id=episode.episode_id,
        episode_type=episode.episode_type,
        client_id=episode.client_id,
        api_key_sha256=episode.key_digest,
        begun_at=episode.begun_at,
        idle_timeout_s=episode.idle_timeout_s,
        deadline_at=episode.deadline_at,
        task_id=task_id,
    )


def _payload_digest(request: EndEpisodeRequest) -> str:
    payload = request.model_dump(mode="json", exclude={"idempotency_key", "client_id"})
    return hashlib.sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest()
