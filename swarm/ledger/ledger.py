"""The durable record of jobs, episodes, turns, batches and metrics."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import IO, Any, Concatenate, ParamSpec, TypeVar

from swarm.errors import LedgerError
from swarm.ledger import evaluations, queries, writes
from swarm.ledger.database import hold_lock, reading
from swarm.ledger.integrity.opening import OpenLedger, open_ledger
from swarm.ledger.integrity.openings import RecordLoss, read_losses
from swarm.ledger.rows import EventRow
from swarm.ledger.writer import CommitCount, EventWatchers, Operation, Writer
from swarm.schemas import Receipt
from swarm.types import Turn

P = ParamSpec("P")
T = TypeVar("T")

# A disk that stalls longer is broken; the caller's own deadline is usually nearer.
WRITE_TIMEOUT_S = 60.0
READ_TIMEOUT_S = 60.0


def _read(
    query: Callable[Concatenate[sqlite3.Connection, P], T],
) -> Callable[Concatenate[Ledger, P], Coroutine[Any, Any, T]]:
    """Return the ledger method that runs this query, with the same parameters."""

    @wraps(query)
    async def read(ledger: Ledger, *args: P.args, **kwargs: P.kwargs) -> T:
        return await ledger.read(lambda connection: query(connection, *args, **kwargs))

    return read


def _write(
    operation: Callable[Concatenate[sqlite3.Connection, P], T],
) -> Callable[Concatenate[Ledger, P], Coroutine[Any, Any, T]]:
    """Return the ledger method that runs this operation, with the same parameters."""

    @wraps(operation)
    async def write(ledger: Ledger, *args: P.args, **kwargs: P.kwargs) -> T:
        return await ledger.write(lambda connection: operation(connection, *args, **kwargs))

    return write


class Ledger:
    """The record of one server directory, for any number of asyncio tasks and threads of one process.

    A write returns once it is on disk (`synchronous=FULL`). If the disk refuses, it raises LedgerError with nothing
    stored. Writes run in the order of their calls, in one thread that commits them in groups. Reads run in worker
    threads on read-only connections. Steps, metrics, counters and open work are those of the newest job. Every change
    of a job, a state, a batch or a reward records an event in the same transaction.
    """

    def __init__(self, opened: OpenLedger, watchers: EventWatchers, lock: IO[str]) -> None:
        self._path = opened.path
        self._opened = opened
        self._writer = Writer(opened, watchers.notify)
        self._watchers = watchers
        self._lock = lock

    @classmethod
    def open(cls, path: Path, lock: IO[str] | None = None, require: Callable[[], object] = lambda: None) -> Ledger:
        """Create or open the database file at `path` and keep its lock until `close`.

        A caller that holds the lock already passes it as `lock`. `require` is as for `open_ledger`.

        Raise LedgerInUse, which names the process that holds the lock. Raise LedgerDamaged if acknowledged episodes are
        lost or the file is not as it was written. Raise LedgerError for a ledger of another version and for a file that
        is not a ledger. A refused file stays as it is.
        """
        path = Path(path)
        lock = lock or hold_lock(path)
        try:
            return cls(open_ledger(path, require), EventWatchers(), lock)
        except BaseException:
            lock.close()
            raise

    def close(self) -> None:
        """Commit what is pending, leave everything in one file, and release the lock. Do nothing if it is closed."""
        self._writer.close()
        self._lock.close()

    def receipt(self) -> str:
        """Return a receipt of all that is acknowledged by now."""
        return str(self._opened.history.receipt(self._opened.control.mark.acknowledged))

    def find_loss(self, receipt: str) -> RecordLoss | None:
        """Return the loss that a receipt proves, or None, also for a receipt that this ledger has not given."""
        found, history = Receipt.parse(receipt), self._opened.history
        if found is None:
            return None
        loss = history.find_loss(found, self._opened.control.mark.acknowledged)
        return loss if loss is not None and found.is_sealed_with(history.secret) else None

    record_job = _write(writes.jobs.insert_job)
    extend_job = _write(writes.jobs.extend_job)
    record_launch = _write(writes.jobs.insert_launch)
    record_lease = _write(writes.jobs.insert_lease)
    end_lease = _write(writes.jobs.end_lease)
    record_state = _write(writes.events.insert_state)
    record_event = _write(writes.events.insert_event)
    record_audit = _write(writes.events.insert_audit)
    record_change = _write(writes.jobs.insert_change)
    begin_episode = _write(writes.episodes.insert_episode)
    end_episode = _write(writes.episodes.end_episode)
    prepare_episode = _write(writes.episodes.prepare_episode)
    commit_episode = _write(writes.episodes.commit_episode)
    revise_reward = _write(writes.episodes.revise_reward)
    close_episode = _write(writes.episodes.close_episode)
    close_batch = _write(writes.batches.close_batch)
    finish_batch = _write(writes.batches.finish_batch)
    fail_batch = _write(writes.batches.fail_batch)
    rewind = _write(writes.batches.rewind)
    answer_fault = _write(writes.jobs.answer_fault)
    recover = _write(writes.jobs.recover)
    add_demonstrations = _write(writes.demonstrations.insert_demonstrations)
    open_evaluation = _write(evaluations.insert_evaluation)
    claim_evaluation = _write(evaluations.claim_evaluation)
    return_evaluation = _write(evaluations.return_evaluation)
    abandon_evaluation = _write(evaluations.abandon_evaluation)
    end_evaluation = _write(evaluations.end_evaluation)
    record_evaluation = _write(evaluations.record_evaluation)

    job = _read(queries.job)
    latest_job = _read(queries.latest_job)
    job_changes = _read(queries.job_changes)
    launches = _read(queries.launches)
    newest_launch_key = _read(queries.newest_launch_key)
    lease = _read(queries.present_lease)
    states = _read(queries.states)
    losses = _read(read_losses)
    events = _read(queries.events)
    newest_events = _read(queries.newest_events)
    audit = _read(queries.audit)
    episode = _read(queries.episode)
    episodes = _read(queries.episodes)
    closed_episodes = _read(queries.closed_episodes)
    turns = _read(queries.turns)
    transaction = _read(queries.transaction)
    batches = _read(queries.batches)
    trained_batches = _read(queries.trained_batches)
    first_step_without_tokens = _read(queries.first_step_without_tokens)
    batch_episodes = _read(queries.batch_episodes)
    task_counts = _read(queries.task_counts)
    trained_groups_by_source = _read(queries.trained_groups_by_source)
    failures = _read(queries.failures)
    demonstrations = _read(queries.demonstrations)
    job_use = _read(queries.job_use)
    episode_counts = _read(queries.episode_counts)
    newest_evaluation = _read(evaluations.newest_evaluation)
    evaluations = _read(evaluations.evaluations)

    async def wait_for_events(self, after_id: int, limit: int, timeout_s: float) -> list[EventRow]:
        """Return the same as `events`, once there is at least one.

        Return nothing after `timeout_s` seconds without any.
        """
        with self._watchers.watch() as arrived:
            try:
                async with asyncio.timeout(timeout_s):
                    while not (found := await self.events(after_id, limit)):
                        await arrived.wait()
                        arrived.clear()
            except TimeoutError:
                return []
            return found

    async def add_turns(self, turns: Sequence[Turn]) -> None:
        """Record the choices of one model call, all or none.

        Raise LedgerError if their episode is not on record or one of them is there already.
        """
        encoded = [writes.turns.EncodedTurn.of(turn) for turn in turns]
        await self.write(partial(writes.turns.insert_turns, turns=encoded))

    @property
    def commits(self) -> CommitCount:
        """Return how much was made durable since the ledger was opened, and the time that took."""
        return self._writer.count

    async def write(self, operation: Operation[T]) -> T:
        """Return the result of an operation once it is on disk."""
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
                LedgerError(f"{self._path} did not answer within {WRITE_TIMEOUT_S:.0f} s: check the disk")
            )

    async def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        """Return the answer to a query, asked on a connection that cannot write."""
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                return await asyncio.to_thread(self._query, query)
        except TimeoutError as error:
            raise LedgerError(f"{self._path} did not answer within {READ_TIMEOUT_S:.0f} s: check the disk") from error

    def _query(self, query: Callable[[sqlite3.Connection], T]) -> T:
        self._writer.require_place()
        with reading(self._path) as connection:
            return query(connection)
