"""The episodes of one job: begin, end, abort, heartbeat, expire."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from swarm.batch import BatchPolicy, BatchPool, ClosedBatch, Place
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
from swarm.sampler import SamplerInfo
from swarm.schemas import (
    BeginEpisodeRequest,
    ClientView,
    EndEpisodeRequest,
    EngineState,
    EpisodeState,
    PoolView,
    ReviseRewardRequest,
    RunningEpisodeView,
    WarningView,
)
from swarm.types import EpisodeType, FinishedEpisode, TrainBatch

logger = logging.getLogger(__name__)

HOUSEKEEPING_S = 5.0
LEAST_PAUSE_S = 0.05
"""The shortest pause between two checks of the leases, so that thousands of episodes due one by one are handled
together."""

RETRY_EXPIRY_S = 1.0
"""How soon an expiry that the ledger refused is tried again."""

CLOSED_TOGETHER = 500
"""The number of writes submitted to the ledger at once, which commits them in one group."""


_SAME_BEGIN = (
    "client_id", "episode_type", "data_source", "task_id", "sampling_seed", "temperature", "max_calls", "max_tokens",
    "fixed_sampling",
)  # fmt: skip
"""The fields that a repeated begin request must repeat unchanged."""


@dataclass(frozen=True, slots=True)
class BegunEpisode:
    episode_id: str
    api_key: str
    weight_version: int
    deadline_at: float
    is_greedy: bool = False


@dataclass(slots=True)
class Episodes:
    """Every episode of one job, from the start of its engine to the stop. Use it from one event loop.

    `max_running` limits the running episodes. A call that waits for more than `max_wait_s` seconds is kept waiting. The
    training loop takes its batches from here.
    """

    running_job: RunningJob
    info: SamplerInfo
    pool: BatchPool
    ledger: Ledger
    lifecycle: EngineLifecycle
    max_running: int
    max_wait_s: float = 100.0
    _is_open: bool = False
    coordinator_client: CoordinatorClient = field(default_factory=CoordinatorClient)
    diagnostics: Diagnostics = field(default_factory=Diagnostics)
    batch_ready: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever the batch has become complete."""
    _running: RunningEpisodes = field(default_factory=RunningEpisodes)
    _clients: Clients = field(default_factory=Clients)
    _timer: DeadlineTimer = field(default_factory=DeadlineTimer)
    _warnings: ClientWarnings = field(init=False)
    batch: CurrentBatch = field(init=False)
    _admission: Admission = field(init=False)
    _deadlines: DeadlineQueue = field(init=False)
    transactions: Transactions = field(init=False)
    _unsubscribe: Callable[[], None] = field(init=False)

    def __post_init__(self) -> None:
        self._warnings = ClientWarnings(self.diagnostics, self.ledger)
        self.batch = CurrentBatch(self.running_job, self.pool, self.ledger, self._clients)
        self._admission = Admission(self.running_job.at, self.lifecycle, self.pool, self.max_running)
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
        """The job in force for what is sampled now: the job of the step after the present weights."""
        return self.running_job.at(self.lifecycle.weights.step + 1)

    async def begin(self, request: BeginEpisodeRequest, departure: Departure | None = None) -> BegunEpisode:
        """Open an episode, or return the one that the same request has begun before.

        Wait up to `wait_s` seconds while no episode of the task may begin, or until `departure` reports that the caller
        is gone. A client repeats its request when the first answer was lost.

        Raise BadRequest for a data source outside the mixture or a task that has to be named. Raise TrainingComplete
        for a train episode after the last step. Raise RolloutPaused, EngineNotReady or EngineFailure when the wait was
        in vain. Raise EpisodeEnded for a begin secret whose episode is over, and IdempotencyMismatch for one of another
        episode.
        """
        self._clients.see(request.client_id)
        key = new_key(request.begin_secret)
        if (begun := self._begun_before(request, key)) is not None:
            return begun
        if self.policy.has_greedy and request.episode_type is EpisodeType.TRAIN and request.task_id is None:
            raise BadRequest(
                f"algorithm {self.job.algorithm} has one greedy episode for each task: name the task when its episode"
                " begins",
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
        # The episode counts before the ledger answers, so that a batch closed meanwhile waits for it.
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
        """Return the episode that an earlier copy of the request has begun, or None.

        Raise EpisodeEnded if that episode is over.
        """
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
        """Give back the place of an episode that failed to begin."""
        if place is not None:
            self.pool.lose(place)
        self._admission.leave(episode_type)

    def restore(self, running: Iterable[RecordedEpisode]) -> None:
        """Resume the episodes that were running when the previous server ended.

        Their keys work again and their leases start now. An episode with a gap in its record is given up at once.
        """
        for recorded in running:
            row = recorded.row
            place = self._admission.take(row.episode_type, row.data_source, row.task_id, is_greedy=row.is_greedy)
            episode = RunningEpisode.restored(recorded, place)
            self._adopt(episode)
            self._warnings.begun(episode)

    def remember(self, closed: Iterable[ClosedEpisode]) -> None:
        """Remember episodes that ended before this server began, so that their late calls are told the reason."""
        self._running.remember(closed)

    async def end(self, episode_id: str, request: EndEpisodeRequest) -> EndReceipt:
        """Complete an episode exactly once; durable on return.

        Raise NotFound, IdempotencyMismatch, or EpisodeEnded with how the episode ended. Raise BadRequest if
        `turn_rewards` does not have one entry per recorded turn, or if `rewards` lacks one that the job asks of a train
        episode.
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
        # A replay gets here too: the first call may have been cut off after it was recorded.
        if episode is not None and episode_id in self._running:
            row = replace(
                episode.row,
                task_id=request.task_id,
                reward=request.reward,
                is_success=request.is_success,
                turn_rewards=turn_rewards,
                rewards=request.rewards,
                ended_at=receipt.episode.ended_at,
            )
            await self._complete(episode, row)
        return receipt

    async def model_share(self, episode: RunningEpisode, request: EndEpisodeRequest) -> float | None:
        """Return the share of the graded replies that the model wrote; None where no replies were sent."""
        if request.replies is None:
            return None
        turns = await self.ledger.turns(episode.episode_id) if episode.calls_in_flight else episode.tree.turns
        return await share_of_model(request.replies, turns)

    async def abort(self, episode_id: str, reason: str, *, is_final: bool = False) -> None:
        """Give an episode up without a reward; a repeated abort is no error.

        With `is_final` the client makes no other attempt: the group is complete without it. This also works for an
        episode that was lost before. Raise NotFound, EpisodeEnded, or Conflict for a prepared episode that another
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
        """Note a sign of life of one episode. Raise EpisodeEnded if it is not running."""
        episode = self._running.get(episode_id)
        if episode is None:
            why = self._running.ended(episode_id)
            raise EpisodeEnded(f"episode {episode_id} is not running{f' ({why})' if why else ''}: begin another one")
        episode.touch()
        self._clients.see(episode.client_id)
        return episode

    def heartbeat_client(self, client_id: str, episode_ids: Sequence[str]) -> dict[str, str]:
        """Renew the leases of these episodes. Return those that do not run, each with the reason or "unknown".

        Their idle timeouts are not renewed: a client that lives may run an agent that hangs.
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
        """Return the warnings about a client, by code."""
        return self._warnings.messages(client_id)

    def authorize(self, key: str) -> RunningEpisode:
        """Return the running episode that a key opens. Raise EpisodeEnded with the reason, or Unauthorized."""
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
        """Change the reward of an ended train episode until its batch is closed. Raise as `CurrentBatch.revise`."""
        row = await self.batch.revise(episode_id, request)
        self._announce_if_ready()
        return row

    def agree(self, client_id: str) -> tuple[tuple[str, ...], bool]:
        """Note that a client has sent all it has for this batch.

        Return the clients that have agreed, and whether this completes the batch.
        """
        self._clients.see(client_id)
        self.pool.agree(client_id)
        return self.pool.agreed, self._announce_if_ready()

    def is_batch_ready(self) -> bool:
        """Return whether the batch is complete, by the stop rule in force or because its time is over."""
        return self.batch.is_ready()

    async def until_batch_ready(self) -> None:
        while not self.is_batch_ready():
            self.batch_ready.clear()
            await self.batch_ready.wait()

    async def until_asked(self) -> None:
        """Wait until somebody has asked to begin a train episode."""
        await self._admission.asked.wait()

    def is_asked(self) -> bool:
        return self._admission.asked.is_set()

    @property
    def policy(self) -> BatchPolicy:
        """The policy of the batch being filled."""
        return self.pool.policy

    def close_batch(self, batch_id: str, step: int) -> ClosedBatch:
        """Take the batch out of the pool; episodes that end later belong to another batch."""
        closed = self.pool.close_batch(batch_id, step)
        self.running_job.fill(step + 1)
        self._foresee()
        return closed

    def fill(self, step: int) -> None:
        """Collect the batch of this step under the policy of that step.

        Call it for a batch that was closed but not trained, or that has to be collected again.
        """
        self.running_job.fill(step)
        self.pool.adopt(BatchPolicy.of(self.running_job.at(step)))
        self._foresee()

    def confirm(self, batch: TrainBatch) -> None:
        """Check a batch whose close is on record, and admit episodes of the next one."""
        self._warnings.batch_closed(batch)
        self._admission.release()

    def take_back(self, episodes: Sequence[FinishedEpisode]) -> None:
        """Return the episodes of an untrained batch to the pool, for the next batch, which takes its step."""
        self.pool.restore(episodes)
        self.fill(self.lifecycle.weights.step + 1)

    def publish(self, weight_version: int) -> None:
        """Note the weight version that is served from now on, which decides how stale an episode is."""
        self.pool.publish(weight_version)

    def context_length(self) -> int:
        """Context length of the model in tokens; 0 while the engine boots."""
        return self.info.context_length

    def running(self, episode_type: EpisodeType) -> int:
        return self._admission.running(episode_type)

    def as_present(self, row: EpisodeRow) -> EpisodeRow:
        """Return a row completed by what is known of a running episode but not on record yet."""
        episode = self._running.get(row.episode_id)
        if episode is None:
            return row
        use = row.use + episode.meter.unrecorded
        if self.is_kept_waiting(episode):
            use = replace(use, system_failures=use.system_failures + 1)
        return replace(row, last_seen_at=episode.last_seen_at, use=use)

    def is_kept_waiting(self, episode: RunningEpisode) -> bool:
        """Return whether the server is so slow that it keeps a call of the episode waiting."""
        return episode.meter.keeps_waiting(self.max_wait_s) and self.asks_singly(episode.client_id)

    def asks_singly(self, client_id: str) -> bool:
        """Return whether no running episode of the client ever had two completions at once.

        Otherwise its agents could have filled the server themselves, to have the attempts repeated that go badly.
        """
        own = (each for each in self._running.by_id.values() if each.client_id == client_id)
        return all(each.meter.most_at_once <= 1 for each in own)

    async def drained(self, timeout_s: float) -> bool:
        """Wait until no train episode runs; return False if some still run after `timeout_s` seconds."""
        return await self._admission.drained(timeout_s)

    async def expire_forever(self) -> None:
        """Act whenever a lease or a deadline of an episode or of the batch is due. Run until cancelled."""
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
        """Abort whatever runs, since the engine stops. Prepared episodes stay on record until their client decides."""
        self._unsubscribe()
        doomed = [each.episode_id for each in self._running.by_id.values() if not each.is_prepared]
        await _in_groups([self._abort_at_close(episode_id, reason) for episode_id in doomed])

    def calls_in_flight(self) -> int:
        """Return how many completions are under way."""
        return sum(episode.calls_in_flight for episode in self._running.by_id.values())

    def running_views(self, limit: int = 50) -> list[RunningEpisodeView]:
        """Return views of the episodes that were silent longest, longest first."""
        return [episode.view() for episode in self._running.longest_silent(limit)]

    def client_views(self) -> list[ClientView]:
        return self._clients.views()

    def warnings(self) -> list[WarningView]:
        return self._warnings.views()

    def pool_view(self) -> PoolView:
        return self.batch.view(self.pool.running, self.running(EpisodeType.EVAL), self._admission.waiting)

    def _adopt(self, episode: RunningEpisode) -> None:
        now = time.monotonic()
        due, _ = episode.expiry(now)
        self._running.add(episode)
        self._clients.began(episode.client_id, episode.episode_type)
        self._deadlines.watch(episode, due)
        self._timer.ring_by(due)

    async def _complete(self, episode: RunningEpisode, row: EpisodeRow) -> None:
        """Pass an ended episode to the pool, once."""
        turns = episode.tree.turns
        if episode.calls_in_flight or episode.is_prepared:
            # The end cut the call off. Only the ledger knows whether its turn was recorded before that.
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
        if self.is_kept_waiting(episode):
            episode.meter.system_failures += 1
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
        """Follow the ledger, which may know of an end whose caller was cut off before the answer."""
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
        """Free the place of an episode without a result, and return its client."""
        client = self._remove(episode, reason)
        if episode.place is not None:
            self.pool.lose(episode.place, is_final=episode.is_last_attempt)
            if not episode.is_last_attempt:
                self._running.remember_place(episode)
        self._admission.leave(episode.episode_type)
        return client

    def _remove(self, episode: RunningEpisode, reason: str) -> Client:
        """Remove an episode and return its client; the caller counts it there and lets it leave."""
        self._running.remove(episode, reason)
        return self._clients.left(episode.client_id, episode.episode_type)

    def _foresee(self) -> None:
        """Give the pool the policy of the next batch."""
        self.pool.propose(BatchPolicy.of(self.running_job.at(self.running_job.filling + 1)))

    def _follow_change(self) -> None:
        self._foresee()
        self._admission.release()

    def _follow_state(self) -> None:
        """Restart the idle time of all groups once episodes may begin again."""
        state = self.lifecycle.state
        if state is EngineState.ROLLING and not self._is_open:
            self.pool.resume()
        self._is_open = state in SERVING
        self._admission.release()

    def _announce_if_ready(self) -> bool:
        ready = self.batch.is_ready()
        if ready:
            self.batch_ready.set()
        elif (due := self.batch.next_due(time.monotonic())) is not None:
            self._timer.ring_by(due)
        return ready

    def _next_due(self) -> float:
        now = time.monotonic()
        dues = (now + HOUSEKEEPING_S, self._deadlines.next_due, self.batch.next_due(now))
        return max(now + LEAST_PAUSE_S, min(due for due in dues if due is not None))


async def _in_groups(work: Sequence[Awaitable[None]]) -> None:
    for start in range(0, len(work), CLOSED_TOGETHER):
        await asyncio.gather(*work[start : start + CLOSED_TOGETHER])
