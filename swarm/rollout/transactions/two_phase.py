"""Episodes that count on several servers or on none: two-phase commit, as one of these servers sees it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal

from swarm.errors import Conflict, EpisodeEnded, SwarmError
from swarm.job import TrainJob
from swarm.ledger import NO_USE, EndReceipt, EpisodeRow, Ledger
from swarm.ledger.writes.episodes import COMMIT_LIMIT_S
from swarm.rollout.results import align_turn_rewards, check_rewards, ending_of
from swarm.rollout.running import RunningEpisode, RunningEpisodes
from swarm.rollout.transactions.coordinator_client import CoordinatorClient
from swarm.schemas import EndEpisodeRequest, EpisodeState, PrepareEpisodeRequest, TransactionState
from swarm.types import EpisodeType

logger = logging.getLogger(__name__)

ABORTED = "transaction_aborted"
UNRESOLVED = "transaction_unresolved"

ASK_AT_LEAST_S = 2 * COMMIT_LIMIT_S
"""How long after its preparation an episode is kept although its coordinator gives no answer. A later hard deadline
extends this time."""

GIVEN_UP = frozenset({EpisodeState.ABORTED, EpisodeState.EXPIRED})


@dataclass(slots=True)
class Transactions:
    """The prepared episodes among `running`. Use it from one event loop.

    `complete` passes an ended episode on, `lose` counts one that was given up; both act once per episode. `job` returns
    the present job. `model_share` returns the share of the graded replies that the episode's model wrote.

    A prepared episode has its result on record and waits. Its client commits first on one server, the coordinator, and
    that commit decides. A client that falls silent leaves its episodes prepared. Then the coordinator gives its own
    episode up, which decides as well, and the other servers ask it. Nothing is decided in memory: the ledger admits
    either the commit or the abort, whichever comes first, and never both.
    """

    ledger: Ledger
    running: RunningEpisodes
    coordinator_client: CoordinatorClient
    complete: Callable[[RunningEpisode, EpisodeRow], Awaitable[None]]
    lose: Callable[[RunningEpisode, str], None]
    job: Callable[[], TrainJob]
    model_share: Callable[[RunningEpisode, EndEpisodeRequest], Awaitable[float | None]]
    _asking: dict[str, asyncio.Task[None]] = field(default_factory=dict[str, asyncio.Task[None]])

    async def prepare(self, episode_id: str, request: PrepareEpisodeRequest) -> EndReceipt:
        """Store a result that counts only if the transaction commits; durable on return.

        The episode takes no more calls. Raise NotFound, IdempotencyMismatch, EpisodeEnded, or Conflict for another
        transaction. Raise BadRequest for turn or named rewards, or for a coordinator that may not be asked.
        """
        secret, coordinator = request.transaction_id, request.coordinator
        inquiry_url = None if coordinator is None else self.coordinator_client.url(coordinator, secret)
        episode = self.running.get(episode_id)
        turn_rewards: tuple[float, ...] | None = None
        is_closing = False
        if episode is not None:
            turn_rewards = align_turn_rewards(request.turn_rewards, episode.tree.turns)
            if episode.row.episode_type is EpisodeType.TRAIN:
                check_rewards(self.job(), request.rewards, turn_rewards)
            is_closing = episode.closed is None
            episode.closed = episode.closed or EpisodeState.PREPARED
        try:
            share = None if episode is None else await self.model_share(episode, request)
            unrecorded = NO_USE if episode is None else episode.meter.unrecorded
            ending = ending_of(episode_id, request, turn_rewards, unrecorded=unrecorded, model_share=share)
            receipt = await self.ledger.prepare_episode(
                ending, transaction_sha256=transaction_digest(secret), inquiry_url=inquiry_url
            )
        except BaseException:
            if episode is not None and is_closing and episode_id in self.running:
                episode.closed = None
            raise
        if episode is not None and receipt.episode.state is EpisodeState.PREPARED and episode_id in self.running:
            self._note_prepared(episode, await self.ledger.episode(episode_id))
        return receipt

    async def commit(self, episode_id: str, transaction_id: str) -> EndReceipt:
        """Complete a prepared episode exactly once; durable on return. Raise NotFound, Conflict or EpisodeEnded."""
        return await self._commit(episode_id, transaction_digest(transaction_id))

    async def abort(self, episode: RunningEpisode, reason: str) -> None:
        """Give a prepared episode up. Raise EpisodeEnded if that comes too late.

        Only on the coordinator may the client decide this. Elsewhere, raise Conflict unless the coordinator has aborted
        already.
        """
        if episode.row.inquiry_url is None:
            await self._give_up(episode, EpisodeState.ABORTED, reason)
            return
        await self._resolve(episode)
        if episode.is_prepared and episode.episode_id in self.running:
            raise Conflict(
                f"episode {episode.episode_id} is prepared: abort it on its coordinator, which decides about it"
            )

    async def expire(self, episode: RunningEpisode, reason: str) -> None:
        """Give up a prepared episode whose client is silent, or ask its coordinator in the background."""
        if episode.row.inquiry_url is None:
            await self._give_up(episode, EpisodeState.EXPIRED, reason)
        elif episode.episode_id not in self._asking:
            asking = asyncio.create_task(self._ask(episode), name="transaction inquiry")
            self._asking[episode.episode_id] = asking
            asking.add_done_callback(lambda _: self._asking.pop(episode.episode_id, None))

    async def state_of(self, transaction_id: str) -> TransactionState:
        """Return the state that other servers are told.

        A transaction whose time is over is first aborted for good.
        """
        row = await self.ledger.transaction(transaction_digest(transaction_id))
        if row is None or row.state is not EpisodeState.PREPARED:
            return state_of(row)
        episode = self.running.get(row.episode_id)
        if episode is None or episode.expiry(time.monotonic())[0] > time.monotonic():
            return TransactionState.PENDING
        try:
            await self._give_up(episode, EpisodeState.EXPIRED, episode.expiry(time.monotonic())[1])
        except EpisodeEnded:
            logger.debug("transaction of episode %s was decided meanwhile", row.episode_id)
        return state_of(await self.ledger.episode(row.episode_id))

    async def close(self) -> None:
        """Stop asking coordinators; the next server asks again."""
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    def _note_prepared(self, episode: RunningEpisode, row: EpisodeRow) -> None:
        if row.state is EpisodeState.PREPARED and episode.episode_id in self.running:
            episode.row = row
            episode.touch()

    async def _commit(self, episode_id: str, transaction_sha256: str) -> EndReceipt:
        receipt = await self.ledger.commit_episode(
            episode_id, transaction_sha256=transaction_sha256, ended_at=time.time()
        )
        episode = self.running.get(episode_id)
        if episode is not None:
            await self._follow(episode)
        return counted(receipt)

    async def _give_up(
        self, episode: RunningEpisode, state: Literal[EpisodeState.ABORTED, EpisodeState.EXPIRED], reason: str
    ) -> None:
        try:
            await self.ledger.close_episode(
                episode.episode_id,
                state,
                reason,
                ended_at=time.time(),
                last_seen_at=episode.last_seen_at,
                is_prepared=True,
            )
        finally:
            # The ledger may have recorded the other decision meanwhile.
            await self._follow(episode)

    async def _follow(self, episode: RunningEpisode) -> None:
        """Apply in memory what the ledger records about a prepared episode."""
        row = await self.ledger.episode(episode.episode_id)
        if row.state is EpisodeState.PREPARED or episode.episode_id not in self.running:
            return
        if row.state in GIVEN_UP:
            self.lose(episode, row.outcome or row.state)
        else:
            await self.complete(episode, row)

    async def _ask(self, episode: RunningEpisode) -> None:
        try:
            await self._resolve(episode)
        except SwarmError as error:
            logger.warning("episode %s stays prepared: %s", episode.episode_id, error.message)

    async def _resolve(self, episode: RunningEpisode) -> None:
        """Decide as the coordinator did; without an answer, ask again until the episode's own time is over."""
        row = episode.row
        assert row.inquiry_url is not None and row.transaction_sha256 is not None and row.ended_at is not None
        match await self.coordinator_client.ask(row.inquiry_url):
            case TransactionState.COMMITTED:
                await self._commit(episode.episode_id, row.transaction_sha256)
            case TransactionState.ABORTED:
                await self._give_up(episode, EpisodeState.ABORTED, ABORTED)
            case _ if time.time() > max(row.deadline_at, row.ended_at + ASK_AT_LEAST_S):
                logger.error("episode %s is given up: nobody says how its transaction ended", episode.episode_id)
                await self._give_up(episode, EpisodeState.EXPIRED, UNRESOLVED)
            case _:
                logger.info("episode %s waits for its coordinator", episode.episode_id)


def counted(receipt: EndReceipt) -> EndReceipt:
    """Return the receipt of a commit. Raise EpisodeEnded if the episode was given up before."""
    ended = receipt.episode
    if ended.state in GIVEN_UP:
        raise EpisodeEnded(f"episode {ended.episode_id} is {ended.state} ({ended.outcome}): begin another one")
    return receipt


def transaction_digest(transaction_id: str) -> str:
    """Return a digest of a transaction's secret, as the coordinator stores it."""
    return hashlib.sha256(transaction_id.encode()).hexdigest()


def state_of(row: EpisodeRow | None) -> TransactionState:
    """Return the state of a transaction by its deciding episode.

    Without such an episode nobody committed, nor ever will.
    """
    if row is None or row.state in GIVEN_UP:
        return TransactionState.ABORTED
    return TransactionState.PENDING if row.state is EpisodeState.PREPARED else TransactionState.COMMITTED


async def state_without_engine(ledger: Ledger, transaction_id: str) -> TransactionState:
    """Return the same as `Transactions.state_of` while no engine runs and no client can renew a lease."""
    row = await ledger.transaction(transaction_digest(transaction_id))
    if row is None or row.state is not EpisodeState.PREPARED:
        return state_of(row)
    lease_s = min(COMMIT_LIMIT_S, row.idle_timeout_s if row.lease_s is None else row.lease_s)
    now = time.time()
    if now <= (row.ended_at or 0.0) + lease_s:
        return TransactionState.PENDING
    try:
        await ledger.close_episode(
            row.episode_id, EpisodeState.EXPIRED, "lease_expired", ended_at=now, is_prepared=True
        )
    except EpisodeEnded:
        logger.debug("transaction of episode %s was decided meanwhile", row.episode_id)
    return state_of(await ledger.episode(row.episode_id))
