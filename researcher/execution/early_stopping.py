"""Early stopping of runs by the guard's rules over metrics and by clocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from experiments_db import ExperimentStore, RunStatus
from researcher.record.runs import STALL, Diagnosis, engine_of
from swarm.guard import NOT_FINITE, WATCHED, MetricLimits, StepMetrics, StepRow, find_fault

STALL_FACTOR = 10
"""A step that takes so many times as long as the slowest step so far counts as stalled."""
OVERRUN_FACTOR = 3
"""Responses grow while a model learns, and steps get slower, but not by this factor over the first ones."""
PACE_STEPS = 5
"""The number of first steps from which the time of the whole run is estimated."""


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """The default time limits of a run on an engine, in seconds: for its boot, its first step, and the whole run."""

    boot_s: float
    step_s: float
    run_s: float


TIME_LIMITS: Mapping[str, TimeLimits] = MappingProxyType(
    {
        "fake": TimeLimits(60.0, 120.0, 3600.0),
        "local": TimeLimits(300.0, 1800.0, 6 * 3600.0),
        "verl": TimeLimits(1800.0, 3600.0, 48 * 3600.0),
    }
)
"""Default limits by engine; the longest ones are for a cluster, which first loads a large model onto its GPUs.

A run whose own steps are slow gets longer limits.
"""


@dataclass(frozen=True, slots=True)
class StoppingLimits(MetricLimits):
    """The limits beyond which a run is ended early: those of the metrics, and these of the clocks.

    stall_s: seconds without a step. None: the engine's default or STALL_FACTOR times the slowest step, if that is
    longer.
    overrun_s: seconds for the whole run. None: the engine's default or, if longer, OVERRUN_FACTOR times the estimate
    from the pace of the first PACE_STEPS steps.
    outage_s: the least time for which a run waits for a server that does not answer, before it goes to another one. A
    run that has worked for longer waits as long as it has worked.
    """

    stall_s: float | None = None
    overrun_s: float | None = None
    outage_s: float = 60.0


class EarlyStopping:
    """The early stopping of one run of `total_steps` on an engine, from `begin` on.

    Steps are passed in rising order.
    """

    def __init__(
        self, limits: StoppingLimits, engine: str, total_steps: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits
        self._granted = TIME_LIMITS[engine]
        self._total_steps = total_steps
        self._clock = clock
        self._started = self._last_step_at = clock()
        self._paused_at: float | None = None
        self._slowest_s = 0.0
        self._observed = 0
        self._pace_s: float | None = None
        self._rows: list[StepRow] = []

    def restore(self, steps: Sequence[tuple[int, StepMetrics]]) -> None:
        """Take in the steps that an earlier process has seen; their durations are unknown."""
        self._rows.extend(StepRow(step, metrics) for step, metrics in steps)

    def begin(self) -> None:
        """Start the clocks: the time before, such as that of loading a large model, does not count."""
        self._started = self._last_step_at = self._clock()
        self._paused_at = None

    def pause(self) -> None:
        """Stop the clocks until `resume`, while the server does not answer. Idempotent."""
        if self._paused_at is None:
            self._paused_at = self._clock()

    def resume(self) -> None:
        """Start the clocks again; the time since `pause` counts neither as training nor as a stall."""
        if self._paused_at is None:
            return
        away = self._clock() - self._paused_at
        self._started, self._last_step_at, self._paused_at = self._started + away, self._last_step_at + away, None

    def observe(self, step: int, metrics: StepMetrics) -> None:
        now = self._clock()
        self._slowest_s = max(self._slowest_s, now - self._last_step_at)
        self._observed += 1
        if self._observed == PACE_STEPS:
            self._pace_s = (now - self._started) / PACE_STEPS
        self._last_step_at = now
        self._rows.append(StepRow(step, metrics))

    def diagnose(self) -> Diagnosis | None:
        """Return the first reason to stop; None if the run may go on."""
        found = find_fault(self._rows, self._limits)
        if found is None:
            return self._late()
        return Diagnosis(found.kind, found.sentence, is_scored=found.kind != NOT_FINITE, is_retried=False)

    def _late(self) -> Diagnosis | None:
        now, step = self._clock(), self._rows[-1].step if self._rows else 0
        if now - self._started > self._overrun_s():
            sentence = f"Not done after {self._overrun_s() / 3600:.3g} hours, at step {step}."
            return Diagnosis("overrun", sentence, is_scored=False, is_retried=False)
        if now - self._last_step_at > self._stall_s():
            sentence = f"No step for {self._stall_s():.0f} s after step {step}."
            return Diagnosis(STALL, sentence, is_scored=False, is_retried=True)
        return None

    def _stall_s(self) -> float:
        if self._limits.stall_s is not None:
            return self._limits.stall_s
        return max(self._granted.step_s, STALL_FACTOR * self._slowest_s)

    def _overrun_s(self) -> float:
        if self._limits.overrun_s is not None:
            return self._limits.overrun_s
        return max(self._granted.run_s, OVERRUN_FACTOR * (self._pace_s or 0.0) * self._total_steps)


def read_steps(store: ExperimentStore, run_id: str) -> list[tuple[int, StepMetrics]]:
    """Return the metrics of a run that early stopping looks at, by rising step."""
    steps: dict[int, dict[str, float | None]] = {}
    for point in store.list_metrics([run_id], names=WATCHED):
        steps.setdefault(point.step, {})[point.name] = point.value
    return sorted(steps.items())


def learn_limits(store: ExperimentStore, study_id: str, limits: StoppingLimits) -> StoppingLimits:
    """Return the limits, widened by the finished runs of the baseline; a run that was ended early teaches nothing."""
    baseline = {arm.id for arm in store.list_experiments(study_id) if arm.is_baseline}
    finished = store.list_runs(study_id=study_id, statuses=[RunStatus.FINISHED])
    healthy = [run.id for run in finished if run.experiment_id in baseline and run.diagnosis is None]
    return limits.learned_from([metrics for _, metrics in read_steps(store, run_id)] for run_id in healthy)


def boot_timeout_s(job: Mapping[str, Any]) -> float:
    """Return the longest time, in seconds, until the engine of a job serves."""
    return TIME_LIMITS[engine_of(job)].boot_s


def step_limit_s(job: Mapping[str, Any]) -> float:
    """Return the longest time, in seconds, that the engine of a job may train before it serves again."""
    return TIME_LIMITS[engine_of(job)].step_s
