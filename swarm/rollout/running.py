"""The running episodes: what is known of each, how to find it by id or key, and when to look at it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import heapq
import logging
import secrets
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter

from swarm.batch import Place
from swarm.ledger import ClosedEpisode, EpisodeRow, RecordedEpisode
from swarm.ledger.writes.episodes import COMMIT_LIMIT_S, COMMIT_TIMEOUT
from swarm.rollout.deduplication import EpisodeCalls
from swarm.rollout.usage import UsageMeter
from swarm.schemas import BeginEpisodeRequest, EpisodeState, RunningEpisodeView
from swarm.tracker.tree import EpisodeTree
from swarm.types import EpisodeType

KEY_PREFIX = "sk-swarm-"


def new_key(begin_secret: str | None = None) -> str:
    """Return an unguessable episode key (192 bits).

    A key made from a secret is always the same, and does not reveal the secret.
    """
    if begin_secret is None:
        return KEY_PREFIX + secrets.token_urlsafe(24)
    digest = hashlib.sha256(f"episode key of {begin_secret}".encode()).digest()
    return KEY_PREFIX + base64.urlsafe_b64encode(digest[:24]).decode()


def key_digest(key: str) -> str:
    """Return a digest of a key, which recognizes the key but cannot be used in its place."""
    return hashlib.sha256(key.encode()).hexdigest()


logger = logging.getLogger(__name__)

REMEMBERED_EPISODES = 20_000
"""The most ids and key digests of closed episodes, kept so that a late call is told how its episode ended."""


@dataclass(slots=True, eq=False)
class RunningEpisode:
    """One episode between begin and end.

    `closed` is the reason why it takes no more calls, `unfit` the reason why it must be given up; None until then.
    `row` is the row recorded at begin, or at prepare if that came later. `meter` counts the use of its model. `place`
    is the place of a train episode in the batch; after the last attempt nobody takes it again.

    Three times are in seconds of the monotonic clock: `seen` is the last call of its agent, `renewed` the last sign of
    life of its client, `expires` its hard deadline.

    Ages and silences are measured on the monotonic clock, so that neither a corrected wall clock nor a suspended laptop
    ends an episode. Times that others see are in seconds since the epoch.
    """

    row: EpisodeRow
    tree: EpisodeTree
    calls: EpisodeCalls
    meter: UsageMeter
    seen: float
    renewed: float
    expires: float
    place: Place | None = None
    is_last_attempt: bool = False
    calls_in_flight: int = 0
    closed: str | None = None
    unfit: str | None = None

    @classmethod
    def of(cls, row: EpisodeRow, place: Place | None) -> RunningEpisode:
        """Return an episode without turns. Its lease starts now; its hard deadline is that of the row."""
        now = time.monotonic()
        expires = now + row.deadline_at - time.time()
        return cls(row, EpisodeTree(row.episode_id), EpisodeCalls(), UsageMeter.of(row), now, now, expires, place)

    @classmethod
    def restored(cls, recorded: RecordedEpisode, place: Place | None) -> RunningEpisode:
        """Return an episode that outlived its server, with the tree of its recorded turns.

        It is unfit if a turn extends another one that is not on record.
        """
        episode = cls.of(recorded.row, place)
        try:
            for turn in recorded.turns:
                episode.tree.add(turn)
            episode.calls = EpisodeCalls.recorded(recorded.turns)
        except ValueError as error:
            logger.error("episode %s cannot go on: %s", episode.episode_id, error)
            episode.unfit = episode.closed = "record_incomplete"
        if episode.is_prepared:
            # Its client was promised that its result counts if the transaction commits.
            episode.unfit, episode.closed = None, EpisodeState.PREPARED
        return episode

    @property
    def episode_id(self) -> str:
        return self.row.episode_id

    @property
    def episode_type(self) -> EpisodeType:
        return self.row.episode_type

    @property
    def client_id(self) -> str:
        return self.row.client_id

    @property
    def data_source(self) -> str:
        return self.row.data_source

    @property
    def key_digest(self) -> str:
        return self.row.api_key_sha256

    @property
    def is_prepared(self) -> bool:
        return self.row.state is EpisodeState.PREPARED

    def touch(self) -> None:
        """Note a call of the agent, or a heartbeat of this very episode."""
        self.seen = self.renewed = time.monotonic()

    def renew(self) -> None:
        """Note a sign of life of the client; the agent itself may hang."""
        self.renewed = time.monotonic()

    @property
    def last_seen_at(self) -> float:
        """Time of the last call or heartbeat, in seconds since the epoch."""
        return time.time() - self._idle_s(time.monotonic())

    def expiry(self, now: float) -> tuple[float, str]:
        """Return when and why the episode is given up if nothing more is heard of it.

        A call in flight is a sign of life, but the hard deadline still applies.
        """
        if self.unfit is not None:
            return now, self.unfit
        if self.is_prepared:
            return self._commit_due(now)
        seen, renewed = (now, now) if self.calls_in_flight else (self.seen, self.renewed)
        limits = [(self.expires, "deadline"), (seen + self.row.idle_timeout_s, "idle_timeout")]
        if self.row.lease_s is not None:
            limits.append((renewed + self.row.lease_s, "lease_expired"))
        return min(limits)

    def _commit_due(self, now: float) -> tuple[float, str]:
        """Return when and why a client that has not committed counts as gone."""
        lease_s = self.row.idle_timeout_s if self.row.lease_s is None else self.row.lease_s
        prepared_at = self.row.ended_at or 0.0
        left_s = prepared_at + COMMIT_LIMIT_S - time.time()
        return min((self.renewed + lease_s, "lease_expired"), (now + left_s, COMMIT_TIMEOUT))

    def view(self) -> RunningEpisodeView:
        return RunningEpisodeView(
            episode_id=self.episode_id,
            episode_type=self.episode_type,
            client_id=self.client_id,
            task_id=self.row.task_id,
            data_source=self.data_source,
            turns=len(self.tree.turns),
            calls_in_flight=self.calls_in_flight,
            age_s=max(0.0, time.time() - self.row.begun_at),
            idle_s=self._idle_s(time.monotonic()),
            state=self.row.state,
        )

    def _idle_s(self, now: float) -> float:
        return 0.0 if self.calls_in_flight else max(0.0, now - self.seen)


class RunningEpisodes:
    """All running episodes and, for a while, how earlier ones ended. Use it from one event loop."""

    def __init__(self) -> None:
        self._by_id: dict[str, RunningEpisode] = {}
        self._by_key: dict[str, RunningEpisode] = {}
        # Keys are episode ids and key digests, which cannot be confused.
        self._ended: OrderedDict[str, str] = OrderedDict()
        self._lost_places: OrderedDict[str, Place] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, episode_id: str) -> bool:
        return episode_id in self._by_id

    @property
    def by_id(self) -> Mapping[str, RunningEpisode]:
        return self._by_id

    def get(self, episode_id: str) -> RunningEpisode | None:
        return self._by_id.get(episode_id)

    def opened_by(self, key_digest: str) -> RunningEpisode | None:
        return self._by_key.get(key_digest)

    def ended(self, id_or_digest: str) -> str | None:
        """Return why an episode runs no more; None if it runs or is not remembered."""
        return self._ended.get(id_or_digest)

    def remember_place(self, episode: RunningEpisode) -> None:
        """Remember the place of an episode that was given up.

        Its client may declare later that nobody takes the place again.
        """
        if episode.place is not None:
            self._lost_places[episode.episode_id] = episode.place
            if len(self._lost_places) > REMEMBERED_EPISODES:
                self._lost_places.popitem(last=False)

    def forget_place(self, episode_id: str) -> Place | None:
        """Return the remembered place of an episode, once; None if there is none."""
        return self._lost_places.pop(episode_id, None)

    def add(self, episode: RunningEpisode) -> None:
        self._by_id[episode.episode_id] = episode
        self._by_key[episode.key_digest] = episode

    def remove(self, episode: RunningEpisode, reason: str) -> None:
        del self._by_id[episode.episode_id]
        del self._by_key[episode.key_digest]
        episode.closed = reason
        self._ended[episode.episode_id] = self._ended[episode.key_digest] = reason
        self._forget_oldest()

    def remember(self, episodes: Iterable[ClosedEpisode]) -> None:
        """Remember episodes that ended before this server began."""
        for episode in episodes:
            self._ended[episode.episode_id] = self._ended[episode.api_key_sha256] = episode.reason
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        while len(self._ended) > 2 * REMEMBERED_EPISODES:
            self._ended.popitem(last=False)

    def longest_silent(self, limit: int) -> list[RunningEpisode]:
        return heapq.nsmallest(limit, self._by_id.values(), key=attrgetter("seen"))


def new_row(request: BeginEpisodeRequest, digest: str, timeout_s: float, *, is_greedy: bool) -> EpisodeRow:
    """Return the row of a new episode.

    `digest` is the digest of its key, `timeout_s` its hard deadline in seconds from now.
    """
    now = time.time()
    return EpisodeRow(
        episode_id=f"ep-{uuid.uuid4().hex}",
        episode_type=request.episode_type,
        client_id=request.client_id,
        api_key_sha256=digest,
        begun_at=now,
        idle_timeout_s=request.idle_timeout_s,
        deadline_at=now + timeout_s,
        task_id=request.task_id,
        data_source=request.data_source,
        lease_s=request.lease_s,
        is_greedy=is_greedy,
        sampling_seed=request.sampling_seed,
        temperature=request.temperature,
        max_calls=request.max_calls,
        max_tokens=request.max_tokens,
        fixed_sampling=request.fixed_sampling,
    )


SLACK = 1024
"""Entries of ended episodes that may wait in the heap beyond the number of running ones."""


class DeadlineQueue:
    """The deadlines of running episodes, in seconds of the monotonic clock.

    `running` is the live view of the running episodes by id.
    """

    def __init__(self, running: Mapping[str, RunningEpisode]) -> None:
        self._running = running
        self._heap: list[tuple[float, str]] = []

    def watch(self, episode: RunningEpisode, due: float) -> None:
        """Add an episode that is due at `due`; it must not be watched already."""
        heapq.heappush(self._heap, (due, episode.episode_id))
        if len(self._heap) > 2 * len(self._running) + SLACK:
            self._heap = [entry for entry in self._heap if entry[1] in self._running]
            heapq.heapify(self._heap)

    @property
    def next_due(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def overdue(self, now: float) -> list[tuple[RunningEpisode, str]]:
        """Return the episodes to give up, each with the reason.

        They are no longer watched; a caller that keeps one must watch it again.
        """
        found: list[tuple[RunningEpisode, str]] = []
        while self._heap and self._heap[0][0] <= now:
            _, episode_id = heapq.heappop(self._heap)
            episode = self._running.get(episode_id)
            if episode is None:
                continue
            due, reason = episode.expiry(now)
            if due <= now:
                found.append((episode, reason))
            else:
                heapq.heappush(self._heap, (due, episode_id))
        return found


STALL_S = 2.0
STALL_GRACE_S = 1.0
"""A sleep that took STALL_S longer than planned means that this process stood still. Signs of life then wait to be
read, and nothing expires for STALL_GRACE_S more seconds."""


class DeadlineTimer:
    """A sleep until the next deadline, which an earlier deadline interrupts.

    Use it from one event loop, by one sleeper.
    """

    def __init__(self) -> None:
        self._rings_at = 0.0
        self._moved = asyncio.Event()

    def ring_by(self, due: float) -> None:
        """Wake the sleeper no later than `due`."""
        if due < self._rings_at:
            self._rings_at = due
            self._moved.set()

    async def sleep_until(self, due: float) -> None:
        """Sleep until `due`, or until `ring_by` names an earlier time. The caller then plans anew."""
        self._rings_at = due
        self._moved.clear()
        try:
            async with asyncio.timeout(max(0.0, due - time.monotonic())):
                await self._moved.wait()
        except TimeoutError:
            pass
        if time.monotonic() > self._rings_at + STALL_S:
            await asyncio.sleep(STALL_GRACE_S)
