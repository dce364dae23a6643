"""The evaluations of a run: when the weights are due to be scored, and which evaluator scores them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from swarm.errors import Conflict, SwarmError
from swarm.ledger import EvaluationReport, EvaluationRow, EvaluationState, Ledger
from swarm.processes.child import is_dead
from swarm.run.lifecycle import EngineLifecycle
from swarm.run.running_job import RunningJob
from swarm.schemas import EngineState

logger = logging.getLogger(__name__)

NO_EVALUATOR = "no_evaluator"
TIMEOUT = "timeout"
LEASE_EXPIRED = "lease_expired"
EVALUATOR_DIED = "evaluator_died"
PROCESS_MARK = "/"
"""The separator before the name of the process in an evaluator's name. Not every evaluator's name has one."""
RESTORED_LEASE_S = 30.0
"""The lease of an evaluation that runs when the server is restarted."""
RETRY_S = 1.0
"""The pause before an expiry is repeated that could not be recorded."""

Departure = Callable[[], Awaitable[None]]
"""A function that returns when the caller has disconnected."""


@dataclass(slots=True)
class _Open:
    """The evaluation that is due or running. Times are seconds on the monotonic clock."""

    row: EvaluationRow
    since: float
    lease_s: float = 0.0
    lease_until: float = 0.0


@dataclass(slots=True)
class Evaluations:
    """The evaluations of one run, of which at most one is open. Use it from one event loop.

    After a restart of the server, the lease of a running evaluation and the timeout of an open one begin again.
    """

    running_job: RunningJob
    lifecycle: EngineLifecycle
    ledger: Ledger
    last_done: EvaluationRow | None = None
    """The newest evaluation with a score."""
    _open: _Open | None = None
    _settled_step: int | None = None
    _has_evaluator: bool = True
    """False after the wait for an evaluator has timed out, until one claims an evaluation."""
    _changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _listeners: list[Callable[[EvaluationRow], None]] = field(default_factory=list[Callable[[EvaluationRow], None]])
    _unsubscribe: Callable[[], None] = field(init=False)

    def __post_init__(self) -> None:
        self.running_job.subscribe(self._notify)
        self._unsubscribe = self.lifecycle.subscribe(self._notify)

    @property
    def present(self) -> EvaluationRow | None:
        """The evaluation that is due or running; the next batch waits for it."""
        return None if self._open is None else self._open.row

    @property
    def is_over(self) -> bool:
        """True if no evaluation is open and none will follow, because the job is complete."""
        return self._open is None and self.lifecycle.state is EngineState.COMPLETE

    def subscribe(self, listener: Callable[[EvaluationRow], None]) -> None:
        """Call `listener` with every new score."""
        self._listeners.append(listener)

    def close(self) -> None:
        """Stop, because the run is over. An open evaluation stays open in the ledger."""
        self._unsubscribe()
        self._notify()

    async def restore(self) -> None:
        """Read from the ledger the newest score, and whether the last wait for an evaluator timed out."""
        self.last_done = await self.ledger.newest_evaluation(EvaluationState.DONE)
        newest = await self.ledger.newest_evaluation()
        self._has_evaluator = newest is None or newest.reason != NO_EVALUATOR

    async def open_if_due(self) -> None:
        """Open an evaluation if one is due for the current weights. Call it whenever the engine comes to rest.

        A second call for the same weights changes nothing. Raise LedgerError.
        """
        weights = self.lifecycle.weights
        async with self._changing:
            if self._open is not None and self._open.row.step == weights.step:
                return
            if self._open is not None or (self._settled_step or 0) > weights.step:
                await self._forget_left_past()
            if self._settled_step == weights.step or not self._is_due(weights.step):
                return
            job = self.running_job.at(weights.step)
            row = await self.ledger.open_evaluation(weights.step, weights.version, job.eval_episodes)
            self._settled_step = weights.step
            if row.is_open and row.evaluator is None and not self._has_evaluator:
                row = await self.ledger.abandon_evaluation(row.step, NO_EVALUATOR)
            if row.is_open:
                now = time.monotonic()
                self._open = _Open(row, now, RESTORED_LEASE_S, now + RESTORED_LEASE_S)
                logger.info("step %d: weight version %d is due to be scored", row.step, row.weight_version)
            self._notify()

    async def until_wanted(self) -> None:
        """Wait until an evaluation is open or will follow. Until then no evaluator has to run."""
        while not self._is_wanted:
            await self._changed.wait()

    async def closed(self) -> None:
        """Wait until no evaluation is open."""
        while self._open is not None:
            await self._changed.wait()

    async def claim(
        self, evaluator: str, lease_s: float, wait_s: float = 0.0, departure: Departure | None = None
    ) -> EvaluationRow | None:
        """Claim the evaluation that is due for this evaluator, and return it. A repeated claim returns the same one.

        The result is None if none is due within `wait_s` seconds, if the job is complete or if the caller disconnects.
        Raise FailedEngine or EngineNotReady if no engine runs, and LedgerError.
        """
        self._has_evaluator = True
        leaving = asyncio.ensure_future((departure or _never)())
        until = time.monotonic() + wait_s
        try:
            while True:
                changed = self._changed
                if self.lifecycle.state in {EngineState.OFFLINE, EngineState.FAILED}:
                    raise self.lifecycle.refusal()
                if (row := await self._claim_now(evaluator, lease_s)) is not None:
                    return row
                left_s = until - time.monotonic()
                if self.is_over or leaving.done() or left_s <= 0:
                    return None
                await _first_of(left_s, leaving, changed)
        finally:
            leaving.cancel()

    def renew(self, step: int, evaluator: str) -> EvaluationRow:
        """Renew the lease of a claimed evaluation. Raise Conflict if the evaluator has no claim on this step."""
        current = self._open
        if current is None or current.row.step != step or current.row.evaluator != evaluator:
            raise Conflict(f"{evaluator} has no claim on the evaluation of step {step}: claim the one that is due")
        current.lease_until = time.monotonic() + current.lease_s
        return current.row

    async def end(self, step: int, report: EvaluationReport) -> EvaluationRow:
        """Record the end of an evaluation, durable on return. Raise the errors of `Ledger.end_evaluation`."""
        async with self._changing:
            row = await self.ledger.end_evaluation(step, report)
            if self._open is not None and self._open.row.evaluation_id == row.evaluation_id:
                self._close(row)
            return row

    async def record(self, step: int, report: EvaluationReport) -> EvaluationRow:
        """Record a score of the present weights that was not due, durable on return.

        Raise Conflict if other weights are served, and the errors of `Ledger.record_evaluation`.
        """
        async with self._changing:
            weights = self.lifecycle.weights
            if weights.step != step:
                raise Conflict(f"the weights of step {step} are not served any more: those of step {weights.step} are")
            row = await self.ledger.record_evaluation(step, weights.version, report)
            if self.last_done is None or self.last_done.evaluation_id != row.evaluation_id:
                self.last_done = row
                for listener in self._listeners:
                    listener(row)
            return row

    async def expire_forever(self) -> None:
        """Expire evaluations whose lease or timeout is over, until cancelled."""
        while True:
            due, changed = self._next_due(), self._changed
            await _first_of(None if due is None else max(0.0, due - time.monotonic()), changed)
            try:
                await self._expire()
            except SwarmError as error:
                logger.warning("the end of an evaluation could not be recorded and is repeated: %s", error.message)
                await asyncio.sleep(RETRY_S)

    @property
    def _is_wanted(self) -> bool:
        asks = self.running_job.at(self.lifecycle.weights.step + 1).eval_every
        return self._open is not None or (bool(asks) and not self.is_over)

    def _is_due(self, step: int) -> bool:
        """Return whether weights are scored at this step: every `eval_every` steps, from step 0, and after the last."""
        every = self.running_job.at(step).eval_every
        total = self.running_job.at(step + 1).total_steps
        return bool(every) and (step % every == 0 or (total is not None and step >= total))

    async def _forget_left_past(self) -> None:
        """Drop the state of later steps, because older weights are served and the steps are repeated."""
        self._open, self._settled_step = None, None
        self.last_done = await self.ledger.newest_evaluation(EvaluationState.DONE)
        self._notify()

    async def _claim_now(self, evaluator: str, lease_s: float) -> EvaluationRow | None:
        async with self._changing:
            current = self._open
            if current is None:
                return None
            if current.row.evaluator is not None and current.row.evaluator != evaluator:
                if not is_dead(current.row.evaluator.rpartition(PROCESS_MARK)[2]):
                    return None
                # An evaluator of this host that is dead loses its claim at once.
                current.row = await self.ledger.return_evaluation(current.row.step, EVALUATOR_DIED)
            if current.row.evaluator is None:
                current.row = await self.ledger.claim_evaluation(current.row.step, evaluator)
            current.lease_s, current.lease_until = lease_s, time.monotonic() + lease_s
            self._notify()
            return current.row

    def _next_due(self) -> float | None:
        """Return the time, on the monotonic clock, at which the open evaluation expires next, or None."""
        current = self._open
        if current is None:
            return None
        # The next step waits for this evaluation, so the settings of that step have the timeout.
        deadline = current.since + self.running_job.at(current.row.step + 1).eval_timeout_s
        return deadline if current.row.evaluator is None else min(deadline, current.lease_until)

    async def _expire(self) -> None:
        async with self._changing:
            current, due = self._open, self._next_due()
            if current is None or due is None or time.monotonic() < due:
                return
            is_running = current.row.evaluator is not None
            if is_running and time.monotonic() >= current.lease_until:
                logger.warning("step %d: the lease of evaluator %s is over", current.row.step, current.row.evaluator)
                current.row = await self.ledger.return_evaluation(current.row.step, LEASE_EXPIRED)
                self._notify()
                return
            self._has_evaluator = is_running
            reason = TIMEOUT if is_running else NO_EVALUATOR
            logger.warning("step %d is not scored: %s", current.row.step, reason)
            self._close(await self.ledger.abandon_evaluation(current.row.step, reason))

    def _close(self, row: EvaluationRow) -> None:
        self._open = None
        if row.state is EvaluationState.DONE:
            self.last_done = row
            for listener in self._listeners:
                listener(row)
        self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


async def _first_of(timeout_s: float | None, *reasons: asyncio.Event | asyncio.Future[None]) -> None:
    """Wait for the first of these events or futures, up to `timeout_s` seconds."""
    waits = {each: asyncio.ensure_future(each.wait()) if isinstance(each, asyncio.Event) else each for each in reasons}
    try:
        await asyncio.wait(waits.values(), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each, wait in waits.items():
            if isinstance(each, asyncio.Event):
                wait.cancel()


async def _never() -> None:
    await asyncio.get_running_loop().create_future()
