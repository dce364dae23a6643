"""Ledger: the durable record of jobs, episodes, turns, batches and metrics.

Place in the flow: the server writes here before it acknowledges anything, and reads here after a crash. Writes go
through one writer thread that commits them in groups; reads run in worker threads on read-only connections. This
module knows nothing of HTTP, tokenizers or weights.

Everything is a coroutine; a write returns once it is on disk (`synchronous=FULL`) and raises LedgerError, with nothing
stored, if the disk refuses. Writes are done in the order of their calls. Steps, metrics, counters and open
work are those of the newest job; earlier jobs stay on record. What changes jobs, states, batches or rewards
leaves an event in the same transaction.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, TypeVar

from swarm.errors import LedgerError
from swarm.ledger import evaluations, leases, queries, transactions
from swarm.ledger import writes as operations
from swarm.ledger.database import hold_lock, open_for_reading, open_for_writing
from swarm.ledger.rows import (
    AuditRow,
    BatchRow,
    ClosedEpisode,
    EndReceipt,
    EpisodeRow,
    EpisodeSlice,
    EvaluationRow,
    EvaluationState,
    EventRow,
    JobRow,
    LaunchRow,
    LeaseRow,
    MetricRow,
    OpenWork,
    RecordedEpisode,
    StateRow,
    TaskRow,
)
from swarm.ledger.writer import CommitCount, EventWatchers, Operation, Writer
from swarm.live_settings import JobChange
from swarm.schemas import EngineState, EpisodeState
from swarm.types import EpisodeType, StepReport, Turn

T = TypeVar("T")

# A disk that stalls longer is broken; the caller's own deadline is usually nearer.
WRITE_TIMEOUT_S = 60.0
READ_TIMEOUT_S = 60.0


class Ledger:
    """The record of one server directory. Used from any number of asyncio tasks and threads of one process."""

    def __init__(self, path: Path, writer: Writer, watchers: EventWatchers, lock: IO[str]) -> None:
        self._path = path
        self._writer = writer
        self._watchers = watchers
        self._lock = lock

    @classmethod
    def open(cls, path: Path) -> Ledger:
        """Create or open the database file at `path` and hold its lock (`<path>.lock`) until `close`.

        A file of an older version is migrated; a copy of it is kept as `<path>.v<version>`.

        Raises LedgerInUse if another process holds it (naming its pid); LedgerError, with the file untouched, if it
        was written by a newer version, or if it is damaged or not a ledger.
        """
        path = Path(path)
        lock = hold_lock(path)
        try:
            watchers = EventWatchers()
            return cls(path, Writer(open_for_writing(path), watchers.notify), watchers, lock)
        except BaseException:
            lock.close()
            raise

    def close(self) -> None:
        """Commit what is pending, close the file and release the lock. Idempotent."""
        self._writer.close()
        self._lock.close()

    async def record_job(
        self, job: Mapping[str, Any], resolved: Mapping[str, Any], *, from_weights: bool = False
    ) -> JobRow:
        """Start a new run: from here on steps count from 0 and the pool is empty.

        With `from_weights` it begins from those of the run before, if there is one. What that left open is closed with
        the reason `job_replaced`.
        """
        return await self._write(
            partial(
                operations.insert_job,
                job=operations.to_json(job),
                resolved=operations.to_json(resolved),
                at=time.time(),
                from_weights=from_weights,
            )
        )

    async def job(self, job_id: int) -> JobRow:
        """One run of this ledger. Raises NotFound."""
        return await self._read(partial(queries.job, job_id=job_id))

    async def extend_job(self, job: Mapping[str, Any], resolved: Mapping[str, Any]) -> JobRow:
        """Give the newest run its job anew, with another end: steps and pool stay."""
        return await self._write(
            partial(
                operations.extend_job,
                job=operations.to_json(job),
                resolved=operations.to_json(resolved),
                at=time.time(),
            )
        )

    async def record_launch(self, key: str, job: Mapping[str, Any], resolved: Mapping[str, Any]) -> JobRow:
        """As `record_job`, under a key that no run of this ledger has; raises Conflict for one that has been used."""
        return await self._write(
            partial(
                leases.insert_launch,
                key=key,
                job=operations.to_json(job),
                resolved=operations.to_json(resolved),
                at=time.time(),
            )
        )

    async def launches(self, key: str | None = None, limit: int = 100) -> list[LaunchRow]:
        """Runs that were started under a key, newest first; that of `key` alone if one is given."""
        return await self._read(partial(leases.launches, key=key, limit=limit))

    async def newest_launch_key(self) -> str | None:
        """The key of the newest job, if it was started under one."""
        return await self._read(leases.newest_launch_key)

    async def record_lease(
        self, study_id: str, *, holder: str, host: str, pid: int, database: str, ttl_s: float
    ) -> LeaseRow:
        """A new lease of the server; the one before it ends."""
        return await self._write(
            partial(
                leases.insert_lease,
                study_id=study_id,
                holder=holder,
                host=host,
                pid=pid,
                database=database,
                ttl_s=ttl_s,
                at=time.time(),
            )
        )

    async def end_lease(self, fence: int) -> None:
        """Idempotent."""
        await self._write(partial(leases.end_lease, fence=fence, at=time.time()))

    async def lease(self) -> LeaseRow | None:
        """The lease that nobody has given back; it may have run out."""
        return await self._read(leases.present_lease)

    async def open_evaluation(self, step: int, weight_version: int, episodes: int) -> EvaluationRow:
        """The evaluation of the present weights, due from now on if there is none on record. One that is still open for
        other weights is rewound."""
        return await self._write(
            partial(
                evaluations.insert_evaluation,
                step=step,
                weight_version=weight_version,
                episodes=episodes,
                at=time.time(),
            )
        )

    async def claim_evaluation(self, step: int, evaluator: str) -> EvaluationRow:
        """Raises Conflict unless it is due."""
        return await self._write(partial(evaluations.claim_evaluation, step=step, evaluator=evaluator, at=time.time()))

    async def return_evaluation(self, step: int, reason: str) -> EvaluationRow:
        """A running one is due again. Raises Conflict unless it runs."""
        return await self._write(partial(evaluations.return_evaluation, step=step, reason=reason, at=time.time()))

    async def abandon_evaluation(self, step: int, reason: str) -> EvaluationRow:
        """Raises Conflict unless it is open."""
        return await self._write(partial(evaluations.abandon_evaluation, step=step, reason=reason, at=time.time()))

    async def end_evaluation(self, step: int, report: evaluations.Report) -> EvaluationRow:
        """Score a step by the rewards of its episodes, exactly once; without episodes it is abandoned.

        Raises NotFound, Conflict unless its evaluator ends it, BadRequest for an episode that is no score of it.
        """
        return await self._write(partial(evaluations.end_evaluation, step=step, report=report, at=time.time()))

    async def evaluations(self, after_step: int = -1, limit: int = 1000) -> list[EvaluationRow]:
        """Those of the newest job beyond a step, by step and age."""
        return await self._read(partial(evaluations.evaluations, after_step=after_step, limit=limit))

    async def newest_evaluation(self, state: EvaluationState | None = None) -> EvaluationRow | None:
        """The newest of the newest job; of those in a state, if one is given."""
        return await self._read(partial(evaluations.newest_evaluation, state=state))

    async def latest_job(self) -> JobRow | None:
        return await self._read(queries.latest_job)

    async def record_state(self, state: EngineState, reason: str | None = None) -> None:
        await self._write(partial(operations.insert_state, state=state.value, reason=reason, at=time.time()))

    async def states(self, limit: int = 100) -> list[StateRow]:
        """The newest changes of the engine state, oldest first."""
        return await self._read(partial(queries.states, limit=limit))

    async def record_event(self, kind: str, detail: Mapping[str, Any]) -> None:
        detail_json = operations.to_json(detail)
        await self._write(partial(operations.insert_event, kind=kind, detail=detail_json, at=time.time()))

    async def events(self, after_id: int = 0, limit: int = 100) -> list[EventRow]:
        """Events beyond `after_id`, oldest first."""
        return await self._read(partial(queries.events, after_id=after_id, limit=limit))

    async def newest_events(self, limit: int) -> list[EventRow]:
        """The newest events, oldest first."""
        return await self._read(partial(queries.newest_events, limit=limit))

    async def wait_for_events(self, after_id: int, limit: int, timeout_s: float) -> list[EventRow]:
        """As `events`, but waits for the first one to come; empty after `timeout_s` seconds without any."""
        with self._watchers.watch() as arrived:
            try:
                async with asyncio.timeout(timeout_s):
                    while not (found := await self.events(after_id, limit)):
                        await arrived.wait()
                        arrived.clear()
            except TimeoutError:
                return []
            return found

    async def record_audit(self, entry: AuditRow) -> None:
        await self._write(partial(operations.insert_audit, entry=entry))

    async def audit(self, after_id: int = 0, limit: int = 100) -> list[AuditRow]:
        """Control calls beyond `after_id`, oldest first."""
        return await self._read(partial(queries.audit, after_id=after_id, limit=limit))

    async def record_change(self, change: JobChange) -> None:
        """Other settings of the newest job from a step on. Raises Conflict unless it is the next revision."""
        settings = operations.to_json(dict(change.settings))
        await self._write(partial(operations.insert_change, change=change, settings=settings, at=time.time()))

    async def job_changes(self, job_id: int) -> list[JobChange]:
        """The changes of one run, in their order."""
        return await self._read(partial(queries.job_changes, job_id=job_id))

    async def begin_episode(self, row: EpisodeRow) -> None:
        """Record a RUNNING episode of the newest job. Raises LedgerError if no job is recorded or the id is taken."""
        await self._write(partial(operations.insert_episode, row=row))

    async def add_turns(self, turns: Sequence[Turn]) -> None:
        """Record the choices of one model call, all or none.

        Raises LedgerError if their episode is not on record or one of them is there already.
        """
        encoded = [operations.EncodedTurn.of(turn) for turn in turns]
        await self._write(partial(operations.insert_turns, turns=encoded))

    async def end_episode(
        self,
        episode_id: str,
        *,
        idempotency_key: str,
        payload_digest: str,
        task_id: str,
        reward: float,
        is_success: bool | None,
        metadata: Mapping[str, Any],
        ended_at: float,
        turn_rewards: Sequence[float] | None = None,
        rewards: Mapping[str, float] | None = None,
    ) -> EndReceipt:
        """Complete a running episode exactly once; the same key and digest again give the same answer.

        Raises NotFound, IdempotencyMismatch (same key, other payload) or EpisodeEnded (it ended under another key,
        was aborted or expired; the message says which).
        """
        ending = operations.Ending(
            episode_id=episode_id,
            idempotency_key=idempotency_key,
            payload_digest=payload_digest,
            task_id=task_id,
            reward=reward,
            is_success=is_success,
            metadata=operations.to_json(metadata),
            ended_at=ended_at,
            turn_rewards=turn_rewards,
            rewards=rewards,
        )
        return await self._write(partial(operations.end_episode, ending=ending))

    async def prepare_episode(
        self, ending: operations.Ending, *, transaction_sha256: str, inquiry_url: str | None
    ) -> EndReceipt:
        """Store the result of a running episode that is to count only if its transaction does; the same again gives
        the same answer. `inquiry_url` None: its own commit decides.

        Raises NotFound, IdempotencyMismatch for another result, Conflict for another transaction, or EpisodeEnded.
        """
        return await self._write(
            partial(
                transactions.prepare_episode,
                ending=ending,
                transaction_sha256=transaction_sha256,
                inquiry_url=inquiry_url,
            )
        )

    async def commit_episode(self, episode_id: str, *, transaction_sha256: str, ended_at: float) -> EndReceipt:
        """Complete a prepared episode; again gives the same answer. If it decides and is too late, it is given up, as
        the state in the receipt says. Raises NotFound, EpisodeEnded if it was given up before, Conflict if it is not of
        this transaction."""
        return await self._write(
            partial(
                transactions.commit_episode,
                episode_id=episode_id,
                transaction_sha256=transaction_sha256,
                ended_at=ended_at,
            )
        )

    async def transaction(self, transaction_sha256: str) -> EpisodeRow | None:
        """The episode whose commit decides a transaction; None if none of this ledger does."""
        return await self._read(partial(transactions.transaction, transaction_sha256=transaction_sha256))

    async def revise_reward(
        self,
        episode_id: str,
        *,
        reward: float,
        is_success: bool | None,
        turn_rewards: Sequence[float] | None,
        rewards: Mapping[str, float] | None = None,
        reason: str,
        at: float,
    ) -> EpisodeRow:
        """Another result for an episode that waits for a batch; the former one is kept. Raises NotFound, or
        EpisodeEnded once its batch is sealed or if it is in any other state."""
        return await self._write(
            partial(
                operations.revise_reward,
                episode_id=episode_id,
                reward=reward,
                is_success=is_success,
                turn_rewards=turn_rewards,
                rewards=rewards,
                reason=reason,
                at=at,
            )
        )

    async def close_episode(
        self,
        episode_id: str,
        state: Literal[EpisodeState.ABORTED, EpisodeState.EXPIRED],
        reason: str,
        *,
        ended_at: float,
        last_seen_at: float | None = None,
        is_prepared: bool = False,
    ) -> bool:
        """Give a running episode up, or a prepared one if that is said. False if it was in that state already.

        Raises NotFound or EpisodeEnded.
        """
        return await self._write(
            partial(
                operations.close_episode,
                episode_id=episode_id,
                state=state,
                reason=reason,
                ended_at=ended_at,
                last_seen_at=last_seen_at,
                is_prepared=is_prepared,
            )
        )

    async def seal_batch(
        self,
        batch_id: str,
        step: int,
        members: Sequence[str],
        dropped: Sequence[tuple[str, str]],
        groups: Sequence[int] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Bind completed episodes to a batch and drop others, given as (episode id, reason), in one transaction.

        `groups` numbers the group of each member; without it, the members of a task are its group. `settings` is what
        the batch is trained with where that differs from the job. Raises Conflict, with nothing changed, if a member is
        not a completed train episode outside any batch.
        """
        await self._write(
            partial(
                operations.seal_batch,
                batch_id=batch_id,
                step=step,
                members=tuple(members),
                dropped=tuple(dropped),
                groups=groups,
                settings=operations.to_json(dict(settings or {})),
                at=time.time(),
            )
        )

    async def finish_batch(self, report: StepReport) -> None:
        """Members become TRAINED with their advantages and the step's metrics are recorded, in one transaction.

        Raises Conflict unless the batch that the report names is sealed.
        """
        metrics_json = operations.to_json(dict(report.metrics))
        await self._write(partial(operations.finish_batch, report=report, metrics=metrics_json, at=time.time()))

    async def fail_batch(self, batch_id: str, reason: str) -> None:
        """Give a sealed batch up: its members are completed and unbound again. Raises Conflict unless it is sealed."""
        await self._write(partial(operations.fail_batch, batch_id=batch_id, reason=reason, at=time.time()))

    async def rewind(self, step: int, reason: str) -> None:
        """Declare that the weights are back at `step`: later batches become REWOUND, their metrics leave the history.

        Their episodes stay TRAINED, so that no episode is trained twice.
        """
        await self._write(partial(operations.rewind, step=step, reason=reason, at=time.time()))

    async def recover(self, reason: str = "server_restarted") -> OpenWork:
        """What to go on with after a crash. Batches sealed and never finished fail with `reason`; running episodes go
        on running."""
        return await self._write(partial(operations.recover, reason=reason, at=time.time()))

    async def episode(self, episode_id: str) -> EpisodeRow:
        """Raises NotFound."""
        return await self._read(partial(queries.episode, episode_id=episode_id))

    async def episodes(
        self,
        *,
        state: EpisodeState | None = None,
        episode_type: EpisodeType | None = None,
        client_id: str | None = None,
        task_id: str | None = None,
        batch_id: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> EpisodeSlice:
        """Episodes of every job, newest first. Raises UnknownParameter for a cursor that is not of this ledger."""
        filters: dict[str, str | None] = {
            "state": state,
            "episode_type": episode_type,
            "client_id": client_id,
            "task_id": task_id,
            "batch_id": batch_id,
        }
        return await self._read(partial(queries.episodes, filters=filters, cursor=cursor, limit=limit))

    async def closed_episodes(self, limit: int) -> list[ClosedEpisode]:
        """The newest episodes of every job that run no more, oldest first."""
        return await self._read(partial(queries.closed_episodes, limit=limit))

    async def turns(self, episode_id: str) -> tuple[Turn, ...]:
        """The recorded turns of an episode by index; empty if there are none."""
        return await self._read(partial(queries.turns, episode_id=episode_id))

    async def metrics(self, after_step: int = 0, limit: int = 1000) -> list[MetricRow]:
        """Finished steps beyond `after_step`, oldest first."""
        return await self._read(partial(queries.metrics, after_step=after_step, limit=limit))

    async def batches(self, limit: int = 100) -> list[BatchRow]:
        """The newest batches, newest first."""
        return await self._read(partial(queries.batches, limit=limit))

    async def trained_batches(self, after_step: int, job_id: int | None = None) -> list[BatchRow]:
        """The batches trained beyond `after_step` and not rewound since, by step; of the newest run, if none is
        named."""
        return await self._read(partial(queries.trained_batches, after_step=after_step, job_id=job_id))

    async def first_step_without_tokens(self, after_step: int, up_to_step: int) -> int | None:
        """The first step of these whose batch cannot be trained again, because tokens of it were dropped."""
        return await self._read(
            partial(queries.first_step_without_tokens, after_step=after_step, up_to_step=up_to_step)
        )

    async def batch_episodes(self, batch_id: str) -> tuple[RecordedEpisode, ...]:
        """The members of a batch with their turns, in the order they began."""
        return await self._read(partial(queries.batch_episodes, batch_id=batch_id))

    async def held_tasks(self) -> list[TaskRow]:
        """The tasks of the newest job of which something is trained or waits to be, by task id."""
        return await self._read(queries.held_tasks)

    async def trained_groups_by_source(self) -> dict[str, int]:
        """How many groups of each data source have been trained."""
        return await self._read(queries.trained_groups_by_source)

    async def failures(self) -> dict[str, int]:
        """How many episodes were aborted, expired or dropped, by reason; the most frequent reasons only."""
        return await self._read(queries.failures)

    async def episode_counts(self) -> dict[tuple[str, str], int]:
        """How many episodes of the newest job there are by state and outcome, "" where there is none."""
        return await self._read(queries.episode_counts)

    @property
    def commits(self) -> CommitCount:
        """What was made durable since the ledger was opened, and the time it took."""
        return self._writer.count

    async def _write(self, operation: Operation[T]) -> T:
        future = self._writer.submit(operation)
        # asyncio.timeout would cost as much as the write itself.
        deadline = asyncio.get_running_loop().call_later(WRITE_TIMEOUT_S, self._give_up, future)
        try:
            return await future
        finally:
            deadline.cancel()

    def _give_up(self, future: asyncio.Future[Any]) -> None:
        if not future.done():
            future.set_exception(
                LedgerError(f"{self._path} did not answer within {WRITE_TIMEOUT_S:.0f} s: is the disk well?")
            )

    async def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                return await asyncio.to_thread(self._query, query)
        except TimeoutError as error:
            raise LedgerError(
                f"{self._path} did not answer within {READ_TIMEOUT_S:.0f} s: is the disk well?"
            ) from error

    def _query(self, query: Callable[[sqlite3.Connection], T]) -> T:
        try:
            with closing(open_for_reading(self._path)) as connection:
                return query(connection)
        except sqlite3.Error as error:
            raise LedgerError(f"{self._path} cannot be read: {error}") from error
