"""The episodes of one job: begin, end, abort, heartbeat, expire.

Place in the flow: routers call it, it records in the ledger before it acknowledges, and hands every ended train episode
to the batch pool. Who may begin is decided in admission.py, when an episode comes due in running.py, what a client
may change about the batch in current_batch.py. It knows nothing of HTTP, of sampling, or of what happens to a complete
batch.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from swarm.batch import BatchPolicy, BatchPool, Place, SealedBatch
from swarm.batch.diagnostics import Diagnostics
from swarm.errors import BadRequest, EpisodeEnded, IdempotencyMismatch, SwarmError, Unauthorized
from swarm.job import TrainJob
from swarm.ledger import NO_USE, ClosedEpisode, EndReceipt, EpisodeRow, Ledger, RecordedEpisode
from swarm.rollout.admission import Admission, Departure
from swarm.rollout.clients import Client, Clients, ClientWarnings
from swarm.rollout.current_batch import CurrentBatch
from swarm.rollout.model_share import share_of_model
from swarm.rollout.results import align_turn_rewards, check_rewards, ending_of, salvaged_episode
from swarm.rollout.running import (
    DeadlineQueue,
    DeadlineTimer,
    RunningEpisode,
    RunningEpisodes,
    key_digest,
    new_key,
    new_row,
)
from swarm.rollout.transactions.coordinator_client import CoordinatorClient
from swarm.rollout.transactions.two_phase import Transactions
from swarm.run.lifecycle import SERVING, EngineLifecycle
from swarm.run.running_job import RunningJob
from swarm.sampler import EngineInfo
from swarm.schemas import (
    BatchPolicies,
    BeginEpisodeRequest,
    ClientView,
    EndEpisodeRequest,
    EngineState,
    EpisodeState,
    PoolView,
    ReviseRewardRequest,
    RunningEpisodeView,
    UpdateBatchPolicyRequest,
    WarningView,
)
from swarm.types import EpisodeType, FinishedEpisode, TrainBatch

logger = logging.getLogger(__name__)

HOUSEKEEPING_S = 5.0
LEAST_PAUSE_S = 0.05
"""Between two looks at the leases: thousands of episodes that come due one by one are taken together."""

RETRY_EXPIRY_S = 1.0
"""How soon an expiry is tried again that the ledger refused."""

CLOSED_TOGETHER = 500
"""Writes handed to the ledger at once: it commits them in one group."""


_SAME_BEGIN = (
    "client_id", "episode_type", "data_source", "task_id", "sampling_seed", "temperature", "max_calls", "max_tokens",
)  # fmt: skip
"""What a begin secret that is sent again must say again."""


@dataclass(frozen=True, slots=True)
class BegunEpisode:
    episode_id: str
    api_key: str
    weight_version: int
    deadline_at: float
    is_greedy: bool = False


@dataclass(slots=True)
class Episodes:
    """Every episode of one job, from the start of its engine to the stop. Used from one event loop.

    `max_running` bounds the running episodes. The training loop takes its batches from here.
    """

    running_job: RunningJob
    info: EngineInfo
    pool: BatchPool
    ledger: Ledger
    lifecycle: EngineLifecycle
    max_running: int
    _is_open: bool = False
    coordinator_client: CoordinatorClient = field(default_factory=CoordinatorClient)
    diagnostics: Diagnostics = field(default_factory=Diagnostics)
    batch_ready: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever the batch has become complete."""
    _running: RunningEpisodes = field(default_factory=RunningEpisodes)
    _clients: Clients = field(default_factory=Clients)
    _timer: DeadlineTimer = field(default_factory=DeadlineTimer)
    _warnings: ClientWarnings = field(init=False)
    _batch: CurrentBatch = field(init=False)
    _admission: Admission = field(init=False)
    _deadlines: DeadlineQueue = field(init=False)
    transactions: Transactions = field(init=False)
    _unsubscribe: Callable[[], None] = field(init=False)

    def __post_init__(self) -> None:
        self._warnings = ClientWarnings(self.diagnostics, self.ledger)
        self._batch = CurrentBatch(self.running_job, self.pool, self.ledger, self._clients)
        self._admission = Admission(
            lambda step: self.running_job.at(step).total_steps, self.lifecycle, self.pool, self.max_running
        )
        self._deadlines = DeadlineQueue(self._running.by_id)
        self.transactions = Transactions(
            self.ledger,
            self._running,
            self.coordinator_client,
            self._complete,
            self._lose,
            lambda: self.job,
            self.model_share,
        )
        self._unsubscribe = self.lifecycle.subscribe(self._follow_state)
        self.running_job.subscribe(self._follow_change)
        self._foresee()

    @property
    def job(self) -> TrainJob:
        """The job that holds for what is sampled now, which is that of the step after the present weights."""
        return self.running_job.at(self.lifecycle.weights.step + 1)

    async def begin(self, request: BeginEpisodeRequest, departure: Departure | None = None) -> BegunEpisode:
        """Open an episode, holding the call up to `wait_s` seconds while none of its task may begin, or until
        `departure` says that the caller is gone.

        One that the same request has begun before, which its client does not know, is that episode again. Raises
        BadRequest for a data source outside the mixture or a task that has to be named, TrainingComplete for a train
        episode after the last step, RolloutPaused, EngineNotReady or EngineFailure when the wait was in vain;
        EpisodeEnded or IdempotencyMismatch for a begin secret whose episode is over or was another one.
        """
        self._clients.see(request.client_id)
        key = new_key(request.begin_secret)
        if (begun := self._begun_before(request, key)) is not None:
            return begun
        if self.policy.has_greedy and request.episode_type is EpisodeType.TRAIN and request.task_id is None:
            raise BadRequest(
                "algorithm remax has one greedy episode for each task: name the task when its episode begins",
                param="task_id",
            )
        place = await self._admission.enter(
            request.episode_type, request.data_source, request.task_id, request.wait_s, departure
        )
        try:
            begun = self._begun_before(request, key)
        except SwarmError:
            self._leave(request.episode_type, place)
            raise
        if begun is not None:
            self._leave(request.episode_type, place)
            return begun
        is_greedy = place is not None and place.is_greedy
        row = new_row(request, key_digest(key), self.job.episode_timeout_s, is_greedy=is_greedy)
        episode = RunningEpisode.of(row, place)
        # Counted before the ledger answers, so that a batch sealed meanwhile waits for this episode.
        self._adopt(episode)
        try:
            await self.ledger.begin_episode(row)
        except BaseException:
            if episode.episode_id in self._running:
                self._vacate(episode, "not_recorded")
            raise
        episode.touch()
        self._warnings.begun(episode)
        return self._answer(row, key)

    def _begun_before(self, request: BeginEpisodeRequest, key: str) -> BegunEpisode | None:
        """The episode that a request has begun whose answer was lost. Raises EpisodeEnded if that is over."""
        if request.begin_secret is None:
            return None
        digest = key_digest(key)
        if (reason := self._running.ended(digest)) is not None:
            raise EpisodeEnded(f"the episode of this begin secret is over ({reason}): draw another one")
        episode = self._running.opened_by(digest)
        if episode is None:
            return None
        row = episode.row
        if any(getattr(row, name) != getattr(request, name) for name in _SAME_BEGIN):
            raise IdempotencyMismatch("another episode was begun with this begin secret: draw one for each episode")
        episode.touch()
        return self._answer(row, key)

    def _answer(self, row: EpisodeRow, key: str) -> BegunEpisode:
        return BegunEpisode(row.episode_id, key, self.lifecycle.weights.version, row.deadline_at, row.is_greedy)

    def _leave(self, episode_type: EpisodeType, place: Place | None) -> None:
        """Give back the place of an episode that is not to be."""
        if place is not None:
            self.pool.lose(place)
        self._admission.leave(episode_type)

    def restore(self, running: Iterable[RecordedEpisode]) -> None:
        """Go on with the episodes that were running when the server before this one ended.

        Their keys work again and their leases start now. One whose record has a hole is given up at once.
        """
        for recorded in running:
            row = recorded.row
            place = self._admission.take(row.episode_type, row.data_source, row.task_id, is_greedy=row.is_greedy)
            episode = RunningEpisode.restored(recorded, place)
            self._adopt(episode)
            self._warnings.begun(episode)

    def remember(self, closed: Iterable[ClosedEpisode]) -> None:
        """Episodes that ended before this server began: late calls of theirs hear why."""
        self._running.remember(closed)

    async def end(self, episode_id: str, request: EndEpisodeRequest) -> EndReceipt:
        """Complete an episode exactly once; durable on return.

        Raises NotFound, IdempotencyMismatch, EpisodeEnded with what became of it, or BadRequest if `turn_rewards` does
        not have one entry per recorded turn, or `rewards` lacks one that the job asks of a train episode.
        """
        episode = self._running.get(episode_id)
        turn_rewards: tuple[float, ...] | None = None
        if episode is not None:
            turn_rewards = align_turn_rewards(request.turn_rewards, episode.tree.turns)
            if episode.row.episode_type is EpisodeType.TRAIN:
                check_rewards(self.job, request.rewards, turn_rewards)
            episode.closed = episode.closed or "ended"
        try:
            share = None if episode is None else await self.model_share(episode, request)
            unrecorded = NO_USE if episode is None else episode.meter.unrecorded
            ending = ending_of(episode_id, request, turn_rewards, unrecorded=unrecorded, model_share=share)
            receipt = await self.ledger.end_episode(ending)
        except BaseException:
            if episode is not None and episode.closed == "ended" and episode_id in self._running:
                episode.closed = None
            raise
        # Also after a replay: the first call may have been cut off after it was recorded.
        if episode is not None and episode_id in self._running:
            row = replace(
                episode.row,
                task_id=request.task_id,
                reward=request.reward,
                is_success=request.is_success,
                turn_rewards=turn_rewards,
                rewards=request.rewards,
                ended_at=receipt.ended_at,
            )
            await self._complete(episode, row)
        return receipt

    async def model_share(self, episode: RunningEpisode, request: EndEpisodeRequest) -> float | None:
        """How much of the replies that were graded the model wrote; None where none were sent."""
        if request.replies is None:
            return None
        turns = await self.ledger.turns(episode.episode_id) if episode.calls_in_flight else episode.tree.turns
        return await share_of_model(request.replies, turns)

    async def abort(self, episode_id: str, reason: str, *, is_final: bool = False) -> None:
        """Give an episode up without a reward; a repeated abort is no error.

        With `is_final` its client makes no other attempt: the group is complete without it. That may be said of an
        episode that was lost before as well. Raises NotFound, EpisodeEnded, or Conflict for a prepared one that another
        server decides about.
        """
        episode = self._running.get(episode_id)
        if is_final and episode is not None:
            episode.is_last_attempt = True
        elif is_final and (place := self._running.forget_place(episode_id)) is not None:
            self.pool.give_up(place)
            self._admission.release()
            self._announce_if_ready()
        if episode is not None and episode.is_prepared:
            await self.transactions.abort(episode, reason)
            return
        await self._give_up(episode_id, EpisodeState.ABORTED, reason)

    def heartbeat(self, episode_id: str) -> RunningEpisode:
        """A sign of life of one episode. Raises EpisodeEnded if it is not running."""
        episode = self._running.get(episode_id)
        if episode is None:
            why = self._running.ended(episode_id)
            raise EpisodeEnded(f"episode {episode_id} is not running{f' ({why})' if why else ''}: begin another one")
        episode.touch()
        self._clients.see(episode.client_id)
        return episode

    def heartbeat_client(self, client_id: str, episode_ids: Sequence[str]) -> dict[str, str]:
        """Renew the leases of these episodes. Returns those that do not run, with the reason or "unknown".

        Their idle timeouts go on: a client that lives may hold an agent that hangs.
        """
        self._clients.see(client_id)
        ended: dict[str, str] = {}
        for episode_id in episode_ids:
            episode = self._running.get(episode_id)
            if episode is None:
                ended[episode_id] = self._running.ended(episode_id) or "unknown"
            else:
                episode.renew()
        return ended

    def warnings_about(self, client_id: str) -> dict[str, str]:
        """What looks wrong about a client, by code."""
        return self._warnings.messages(client_id)

    def authorize(self, key: str) -> RunningEpisode:
        """The running episode that a key opens. Raises EpisodeEnded with the reason, or Unauthorized."""
        digest = key_digest(key)
        episode = self._running.opened_by(digest)
        reason = self._running.ended(digest) if episode is None else episode.closed
        if reason is not None:
            raise EpisodeEnded(f"the episode of this key is over ({reason}): begin another one")
        if episode is None:
            raise Unauthorized("this key opens no episode of this server")
        episode.touch()
        self._clients.see(episode.client_id)
        return episode

    async def revise(self, episode_id: str, request: ReviseRewardRequest) -> EpisodeRow:
        """Another reward for an ended train episode until its batch is sealed. Raises as `CurrentBatch.revise`."""
        row = await self._batch.revise(episode_id, request)
        self._announce_if_ready()
        return row

    def agree(self, client_id: str) -> tuple[tuple[str, ...], bool]:
        """Note that a client has sent what it has for this batch. Returns who has, and whether that completes it."""
        self._clients.see(client_id)
        self.pool.agree(client_id)
        return self.pool.agreed, self._announce_if_ready()

    async def propose_policy(self, request: UpdateBatchPolicyRequest) -> BatchPolicies:
        """Change the policy from the next batch on; durable on return. Raises BadRequest if the whole is not sound."""
        return await self._batch.propose_policy(request)

    def policies(self) -> BatchPolicies:
        return self._batch.policies()

    def is_batch_ready(self) -> bool:
        """Whether the batch can be sealed now, by the stop rule in force or because its time is over."""
        return self._batch.is_ready()

    async def until_batch_ready(self) -> None:
        while not self.is_batch_ready():
            self.batch_ready.clear()
            await self.batch_ready.wait()

    @property
    def policy(self) -> BatchPolicy:
        """What holds for the batch being filled."""
        return self.pool.policy

    def seal(self, batch_id: str, step: int) -> SealedBatch:
        """Take the batch out: what ends later belongs to another one."""
        sealed = self.pool.seal(batch_id, step)
        self.running_job.fill(step + 1)
        self._foresee()
        return sealed

    def fill(self, step: int) -> None:
        """Collect the batch of this step, by what holds for it: it was sealed and not trained, or is to come again."""
        self.running_job.fill(step)
        self.pool.adopt(BatchPolicy.of(self.running_job.at(step)))
        self._foresee()

    def confirm(self, batch: TrainBatch) -> None:
        """To be told once a seal is on record: the batch is looked over, and episodes of the next one may begin."""
        self._warnings.sealed(batch)
        self._admission.release()

    def take_back(self, episodes: Sequence[FinishedEpisode]) -> None:
        """Let the episodes of a batch that was not trained wait for the next one, which takes its step."""
        self.pool.restore(episodes)
        self.fill(self.lifecycle.weights.step + 1)

    def publish(self, weight_version: int) -> None:
        """To be told of every version that is served, which decides how stale an episode is."""
        self.pool.publish(weight_version)

    def context_length(self) -> int:
        """In tokens; 0 while the engine boots."""
        return self.info.context_length

    def running(self, episode_type: EpisodeType) -> int:
        return self._admission.running(episode_type)

    def as_present(self, row: EpisodeRow) -> EpisodeRow:
        """Return a row with what is known of a running episode and not on record yet."""
        episode = self._running.get(row.episode_id)
        if episode is None:
            return row
        return replace(row, last_seen_at=episode.last_seen_at, use=row.use + episode.meter.unrecorded)

    async def drained(self, timeout_s: float) -> bool:
        """Wait until no train episode runs; False if some still do after `timeout_s` seconds."""
        return await self._admission.drained(timeout_s)

    async def expire_forever(self) -> None:
        """Act when something falls due: a lease, a deadline of an episode or of the batch. Runs until cancelled."""
        try:
            await self._expire_and_tidy()
        finally:
            await self.transactions.close()

    async def _expire_and_tidy(self) -> None:
        tidy_at = 0.0
        while True:
            await self._timer.sleep_until(self._next_due())
            now = time.monotonic()
            await _in_groups([self._expire(episode, reason) for episode, reason in self._deadlines.overdue(now)])
            if self.pool.expire(lambda key: self._admission.awaits(*key)):
                self._admission.release()
            self._announce_if_ready()
            if now >= tidy_at:
                tidy_at = now + HOUSEKEEPING_S
                self._clients.forget_silent(now)
                await self._warnings.record_new()

    async def close(self, reason: str) -> None:
        """Abort whatever runs: the engine stops. What is prepared waits on record for the word of its client."""
        self._unsubscribe()
        doomed = [each.episode_id for each in self._running.by_id.values() if not each.is_prepared]
        await _in_groups([self._abort_at_close(episode_id, reason) for episode_id in doomed])

    def running_views(self, limit: int = 50) -> list[RunningEpisodeView]:
        """The episodes that were silent longest, longest first."""
        return [episode.view() for episode in self._running.longest_silent(limit)]

    def client_views(self) -> list[ClientView]:
        return self._clients.views()

    def warnings(self) -> list[WarningView]:
        return self._warnings.views()

    def pool_view(self) -> PoolView:
        return self._batch.view(self.pool.running, self.running(EpisodeType.EVAL), self._admission.waiting)

    def _adopt(self, episode: RunningEpisode) -> None:
        now = time.monotonic()
        due, _ = episode.expiry(now)
        self._running.add(episode)
        self._clients.began(episode.client_id, episode.episode_type)
        self._deadlines.watch(episode, due)
        self._timer.ring_by(due)

    async def _complete(self, episode: RunningEpisode, row: EpisodeRow) -> None:
        """Hand an ended episode on, once."""
        turns = episode.tree.turns
        if episode.calls_in_flight or episode.is_prepared:
            # The call was cut off by the end; whether its turn was recorded before is for the ledger to say.
            turns = await self.ledger.turns(episode.episode_id)
        finished = salvaged_episode(row, turns) if episode.episode_type is EpisodeType.TRAIN else None
        if episode.episode_id not in self._running:
            return
        self._remove(episode, "ended").completed += 1
        if finished is not None:
            self.pool.add(finished, episode.place)
            self._warnings.ended(finished, self.pool.policy.num_repeat)
        self._admission.leave(episode.episode_type)
        self._announce_if_ready()

    async def _give_up(
        self, episode_id: str, state: Literal[EpisodeState.ABORTED, EpisodeState.EXPIRED], reason: str
    ) -> None:
        episode = self._running.get(episode_id)
        closing = episode is not None and episode.closed is None
        if episode is not None and closing:
            episode.closed = reason
        try:
            await self.ledger.close_episode(
                episode_id,
                state,
                reason,
                ended_at=time.time(),
                last_seen_at=None if episode is None else episode.last_seen_at,
                unrecorded=NO_USE if episode is None else episode.meter.unrecorded,
            )
        except BaseException:
            if episode is not None and closing and episode_id in self._running:
                episode.closed = None
            raise
        if episode is not None and episode_id in self._running:
            self._lose(episode, reason)

    async def _expire(self, episode: RunningEpisode, reason: str) -> None:
        logger.info("episode %s of %s expires: %s", episode.episode_id, episode.client_id, reason)
        try:
            if episode.is_prepared:
                await self.transactions.expire(episode, reason)
            else:
                await self._give_up(episode.episode_id, EpisodeState.EXPIRED, reason)
        except EpisodeEnded:
            await self._settle(episode)
        except SwarmError as error:
            logger.warning("episode %s not expired: %s", episode.episode_id, error.message)
        if episode.episode_id in self._running:
            self._deadlines.watch(episode, time.monotonic() + RETRY_EXPIRY_S)

    async def _settle(self, episode: RunningEpisode) -> None:
        """Follow the ledger, which knows of an end whose caller was cut off before it was answered."""
        try:
            row = await self.ledger.episode(episode.episode_id)
            if row.state is EpisodeState.PREPARED:
                episode.row, episode.closed = row, row.state
            elif row.state is EpisodeState.COMPLETED:
                await self._complete(episode, row)
            elif episode.episode_id in self._running:
                self._lose(episode, row.outcome or row.state)
        except SwarmError as error:
            logger.warning("episode %s not settled: %s", episode.episode_id, error.message)

    async def _abort_at_close(self, episode_id: str, reason: str) -> None:
        try:
            await self._give_up(episode_id, EpisodeState.ABORTED, reason)
        except SwarmError as error:
            logger.warning("episode %s not closed: %s", episode_id, error.message)

    def _lose(self, episode: RunningEpisode, reason: str) -> None:
        self._vacate(episode, reason).lost += 1
        self._warnings.lost(episode, reason)
        self._announce_if_ready()

    def _vacate(self, episode: RunningEpisode, reason: str) -> Client:
        """An episode came to nothing: its place is free for another. Returns whose it was."""
        client = self._remove(episode, reason)
        if episode.place is not None:
            self.pool.lose(episode.place, is_final=episode.is_last_attempt)
            if not episode.is_last_attempt:
                self._running.remember_place(episode)
        self._admission.leave(episode.episode_type)
        return client

    def _remove(self, episode: RunningEpisode, reason: str) -> Client:
        """Whose episode it was; the caller counts it there, and lets it leave."""
        self._running.remove(episode, reason)
        return self._clients.left(episode.client_id, episode.episode_type)

    def _foresee(self) -> None:
        """The policy that the next batch will have."""
        self.pool.propose(BatchPolicy.of(self.running_job.at(self.running_job.filling + 1)))

    def _follow_change(self) -> None:
        self._foresee()
        self._admission.release()

    def _follow_state(self) -> None:
        """While nobody could begin an episode, no group was idle."""
        state = self.lifecycle.state
        if state is EngineState.ROLLING and not self._is_open:
            self.pool.resume()
        self._is_open = state in SERVING
        self._admission.release()

    def _announce_if_ready(self) -> bool:
        ready = self._batch.is_ready()
        if ready:
            self.batch_ready.set()
        elif (due := self._batch.next_due(time.monotonic())) is not None:
            self._timer.ring_by(due)
        return ready

    def _next_due(self) -> float:
        now = time.monotonic()
        dues = (now + HOUSEKEEPING_S, self._deadlines.next_due, self._batch.next_due(now))
        return max(now + LEAST_PAUSE_S, min(due for due in dues if due is not None))


async def _in_groups(work: Sequence[Awaitable[None]]) -> None:
    for start in range(0, len(work), CLOSED_TOGETHER):
        await asyncio.gather(*work[start : start + CLOSED_TOGETHER])
