"""The guard of a training: it looks at every finished step, and decides what follows from a fault."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from swarm.errors import WeightsNotFinite
from swarm.guard import NOT_FINITE, MetricLimits, StepRow, TrainingFault, find_fault
from swarm.job import GuardMode
from swarm.ledger import EventRow, Ledger
from swarm.live_settings import JobChange, JobTimeline
from swarm.run.running_job import RunningJob

logger = logging.getLogger(__name__)

MAX_ROLLBACKS = 2
"""Times that a run goes on at an earlier step. A fault that comes back each time is not one of the learning rate."""
RATE_STEPS = 5
"""The number of steps before the good step whose learning rates count as having done well."""
LIMITS = MetricLimits()
WARNED, STOPPED, ROLLED_BACK = "guard.warned", "guard.stopped", "guard.rolled_back"
"""The kinds of events, one for each thing that the guard does."""


@dataclass(frozen=True, slots=True)
class RunHistory:
    """The history of a run as its events tell it: the crashes that it survived, and the actions of its guard.

    `answered_step` is the step of the newest fault with an answer. `end` is the step at which the guard ended the
    training, with the `reason`. `newest` is the newest event of the guard.
    """

    recoveries: int = 0
    rollbacks: int = 0
    answered_step: int = -1
    end: int | None = None
    reason: str = ""
    newest: EventRow | None = None

    def then(self, event: EventRow) -> RunHistory:
        """Return the history after one more event of the server."""
        detail = event.detail
        match event.kind:
            case "job.started":
                return RunHistory()
            case "engine.recovered":
                return replace(self, recoveries=self.recoveries + 1)
            case "weights.rewound":
                return replace(self, answered_step=min(self.answered_step, int(detail["step"])))
            case "guard.warned":
                return replace(self, answered_step=int(detail["step"]), newest=event)
            case "guard.rolled_back":
                answered = min(self.answered_step, int(detail["back_to"]))
                return replace(self, rollbacks=self.rollbacks + 1, answered_step=answered, newest=event)
            case "guard.stopped":
                end = int(detail["end"])
                return replace(self, answered_step=end, end=end, reason=str(detail["sentence"]), newest=event)
            case _:
                return self


@dataclass(frozen=True, slots=True)
class GuardAction:
    """The answer to a fault: an event of the `kind` with the `detail`, and further changes of the job.

    The training goes on, or ends, at the step `back_to`. It stays where it is if `back_to` is None.
    """

    kind: str
    detail: Mapping[str, Any]
    back_to: int | None
    timeline: JobTimeline
    changes: tuple[JobChange, ...]

    @property
    def line(self) -> str:
        """The fault and what follows from it, in one line."""
        return f"{self.detail['sentence']} {self.detail['advice']}"


class TrainingGuard:
    """The guard of one run, which began at `initial_step`. Use it from one event loop.

    The answer depends on the ledger alone, so a server that died before it was recorded gives the same one again.
    """

    def __init__(self, running_job: RunningJob, ledger: Ledger, history: RunHistory, *, initial_step: int) -> None:
        self._job = running_job
        self._ledger = ledger
        self._history = history
        self._initial_step = initial_step
        self._rows: list[StepRow] = []
        self._not_finite: str | None = None

    @property
    def newest(self) -> EventRow | None:
        """The newest event of the guard in this run."""
        return self._history.newest

    def end_at(self, step: int) -> str | None:
        """Return why the guard ended the training at this step, or None if it did not."""
        return self._history.reason if self._history.end == step else None

    def takes_up(self, error: WeightsNotFinite, step: int) -> bool:
        """Return whether the guard will repair weights of this step that cannot be sampled from.

        The next `answer` then does it.
        """
        if self._mode(step) == "warn" or step <= self._initial_step:
            return False
        self._not_finite = error.message
        return True

    async def answer(self, step: int) -> GuardAction | None:
        """Return what follows from a fault that shows at this step, or None if there is nothing to do."""
        rows, mode = await self._up_to(step), self._mode(step)
        finding = self._of_weights(step) or find_fault(rows, LIMITS)
        if step < self._history.answered_step:
            # Older weights were loaded: the step is done anew.
            self._history = replace(self._history, answered_step=step - 1)
        if finding is None or step <= self._history.answered_step:
            return None
        if mode == "warn":
            before = find_fault(rows[:-1], LIMITS)
            is_known = before is not None and before.kind == finding.kind
            return None if is_known else self._warning(finding)
        good = self._good_step(finding)
        if mode == "rollback" and good is not None and self._history.rollbacks < MAX_ROLLBACKS:
            return self._rollback(finding, good)
        is_unusable = finding.kind == NOT_FINITE
        return self._end(finding, good if mode == "rollback" or is_unusable else None)

    async def record(self, answer: GuardAction) -> None:
        """Record an answer in the ledger, in one transaction."""
        await self._ledger.answer_fault(answer.kind, answer.detail, back_to=answer.back_to, changes=answer.changes)

    def note(self, answer: GuardAction) -> None:
        """Take note of an answer that is on record now."""
        self._history = self._history.then(EventRow(0, answer.kind, answer.detail, 0.0))
        self._not_finite = None
        logger.warning("guard: %s", answer.line)

    def _mode(self, step: int) -> GuardMode:
        return self._job.at(step + 1).guard

    async def _up_to(self, step: int) -> list[StepRow]:
        """Return the finished steps up to this one; those that are known already are not read again."""
        while self._rows and self._rows[-1].step >= step:
            self._rows.pop()
        known = self._rows[-1].step if self._rows else self._initial_step
        for row in await self._ledger.trained_batches(known):
            self._rows.append(StepRow(row.step, row.metrics))
        return self._rows

    def _of_weights(self, step: int) -> TrainingFault | None:
        if self._not_finite is None:
            return None
        sentence = f"The weights of step {step} give no finite numbers: {self._not_finite}."
        return TrainingFault(NOT_FINITE, sentence, step, step - 1)

    def _good_step(self, finding: TrainingFault) -> int | None:
        """Return the newest good step. None if there is none, or if the run cannot end there."""
        if finding.good_step is None:
            return None
        # A reward may have been earned with weights that are older by so many steps.
        lag = self._job.at(finding.step).max_staleness
        return max(finding.good_step - lag, self._initial_step)

    def _warning(self, finding: TrainingFault) -> GuardAction:
        good = self._good_step(finding)
        advice = "The training goes on; guard: stop ends it"
        if good is not None:
            advice = f"The training goes on. To go back, load step {good} and set a lower lr; guard: rollback does both"
        return self._answer(WARNED, finding, f"{advice}.", None, self._job.timeline)

    def _rollback(self, finding: TrainingFault, good: int) -> GuardAction:
        name = "sft_lr" if self._job.at(finding.step).is_supervised(finding.step) else "lr"
        timeline, lr = self._with_half_rate(name, finding.step, good)
        advice = f"Back to step {good}, on with {name} {lr:g} ({self._history.rollbacks + 1} of {MAX_ROLLBACKS})."
        return self._answer(ROLLED_BACK, finding, advice, good, timeline, lr=lr)

    def _with_half_rate(self, name: str, step: int, good: int) -> tuple[JobTimeline, float]:
        """Return the job with half the learning rate `name` from the step after `good` on, and that rate.

        The rate is half the lowest one of the last steps. So a change that raised it does not come back, although its
        first steps may have done no harm yet.
        """
        timeline = self._job.timeline
        steps = range(max(1, good - RATE_STEPS + 1), step + 1)
        rates: list[float] = [rate for each in steps if (rate := getattr(timeline.at(each), name)) is not None]
        lr = min(rates) / 2
        passed = {change.at_step for change in timeline.changes if name in change.settings}
        for begin in sorted({good + 1, *(each for each in passed if good + 1 < each <= step + 1)}):
            timeline = timeline.with_change(begin, {name: lr})
        return timeline, lr

    def _end(self, finding: TrainingFault, good: int | None) -> GuardAction:
        """Return the end of the training at the good step, if there is one with an earlier end, or else here."""
        back_to = good if good else None
        end = finding.step if back_to is None else back_to
        timeline = self._job.timeline
        if timeline.at(end + 1).total_steps != end:
            timeline = timeline.with_change(end + 1, {"total_steps": end})
        way_out = "guard: warn and more total_steps go on from here"
        where = f"The training ends at step {end}, before the fall" if back_to else f"The training ends at step {end}"
        if not back_to and finding.good_step:
            way_out = f"load step {self._good_step(finding)} to go back before the fall"
        return self._answer(STOPPED, finding, f"{where}: {way_out}.", back_to, timeline, end=end)

    def _answer(
        self, kind: str, finding: TrainingFault, advice: str, back_to: int | None, timeline: JobTimeline, **more: Any
    ) -> GuardAction:
        detail = {
            "step": finding.step, "fault": finding.kind, "sentence": finding.sentence, "advice": advice,
            "good_step": self._good_step(finding), "back_to": back_to, **more,
        }  # fmt: skip
        changes = timeline.changes[self._job.timeline.revision :]
        return GuardAction(kind, detail, back_to, timeline, changes)
