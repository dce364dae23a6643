"""Early stopping of runs: finds in a run's curves that it is not worth going on, and says why in one sentence.

Place in the flow: monitor passes in every finished step and acts on a diagnosis; the sentence goes to the next plan.
This module knows nothing of servers, clients or the database.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from types import MappingProxyType
from typing import Any

STALL = "stall"
"""Kind of the diagnosis of a run that has made no step for too long."""
REWARD, SPREAD = "critic/score/mean", "critic/score/std"
SUCCESS = "batch/success_rate"
"""Share of the batch's episodes that the environment counts as solved, whatever their reward in training."""
ENTROPY, KL = "actor/entropy", "actor/ppo_kl"
GROUPS, SILENT_GROUPS = "rollout/groups", "rollout/groups_zero_advantage"
"""The number of groups in a batch, and of those whose advantages are all zero, which teach nothing."""
WATCHED = (REWARD, SUCCESS, ENTROPY, KL, GROUPS, SILENT_GROUPS)
_CONTEXT = (ENTROPY, KL, "actor/grad_norm")


STALL_FACTOR = 10
"""A step that takes so many times as long as the slowest step so far counts as stalled."""
OVERRUN_FACTOR = 3
"""Responses grow while a model learns, and steps get slower, but not by this factor over the first ones."""
PACE_STEPS = 5
"""The number of first steps from which the time of the whole run is estimated."""
MARGIN = 2
"""A limit is at least so many times the largest value in runs that went well."""

StepMetrics = Mapping[str, float | None]


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
class StoppingLimits:
    """The limits beyond which a run is ended early.

    stall_s: seconds without a step. None: the engine's default or STALL_FACTOR times the slowest step, if that is
    longer.
    overrun_s: seconds for the whole run. None: the engine's default or, if longer, OVERRUN_FACTOR times the estimate
    from the pace of the first PACE_STEPS steps.
    dead_steps: steps in a row without any reward. At 128 episodes a step, no skill that rare can be learned.
    collapse_*: over `window` steps the mean reward fell below `fraction` of the best such window, itself at least
    `floor`.
    kl_limit: the largest absolute KL divergence of one step.
    silent_*: over so many steps the rewards were equal in at least this share of all groups, while at most `solved` of
    the episodes are successes. Nothing is learned any more, and the task is not learned yet.
    entropy_fraction: over `silent_steps` the entropy stayed below this fraction of its mean in the first window, with
    the task likewise unsolved. The policy has settled on one answer.
    outage_s: the least time for which a run waits for a server that does not answer, before it goes to another one. A
    run that has worked for longer waits as long as it has worked.
    gap_*: from the first to the last `window` steps the training reward rose by at least `rise` standard
    deviations of an episode's reward, while the success rate fell by at least `fall`. The program's reward is then
    learned at the cost of the task.
    """

    stall_s: float | None = None
    overrun_s: float | None = None
    dead_steps: int = 12
    window: int = 5
    collapse_fraction: float = 0.1
    collapse_floor: float = 0.1
    kl_limit: float = 10.0
    silent_steps: int = 12
    silent_share: float = 0.98
    solved: float = 0.9
    entropy_fraction: float = 0.01
    gap_rise: float = 1.0
    gap_fall: float = 0.1
    outage_s: float = 60.0

    def learned_from(self, healthy: Iterable[Sequence[StepMetrics]]) -> StoppingLimits:
        """Return limits that are wider where healthy runs came close to these; each run is given as its steps in order.

        The baseline shows how late the first reward may come and for how long steps may teach nothing. It also shows
        how far one step may move the policy.
        """
        limits = self
        for steps in healthy:
            moved = [abs(value) for step in steps if (value := step.get(KL)) is not None]
            limits = replace(
                limits,
                dead_steps=max(limits.dead_steps, MARGIN * _longest(steps, lambda step: step.get(REWARD) == 0)),
                silent_steps=max(
                    limits.silent_steps,
                    MARGIN * _longest(steps, lambda step: (_silent_share(step) or 0.0) >= self.silent_share),
                ),
                kl_limit=max(limits.kl_limit, MARGIN * max(moved, default=0.0)),
            )
        return limits


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A reason to end a run early.

    `is_scored`: the weights trained so far are scored as the arm's result. `is_retried`: the system failed, not the
    arm, so another attempt follows.
    """

    kind: str
    sentence: str
    is_scored: bool
    is_retried: bool

    def as_recorded(self) -> dict[str, Any]:
        """Return the form in which the row of a run stores it."""
        return {"kind": self.kind, "sentence": self.sentence, "is_retried": self.is_retried}

    @classmethod
    def on_record(cls, recorded: Mapping[str, Any]) -> Diagnosis:
        """Return the diagnosis of a run whose training was ended in order to be scored.

        Only such a diagnosis is stored before its run is over.
        """
        return cls(str(recorded["kind"]), str(recorded["sentence"]), is_scored=True, is_retried=False)


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
        self._rewards: list[float] = []
        self._steps: list[StepMetrics] = []
        self._last: StepMetrics = {}
        self._step = 0

    def restore(self, steps: Sequence[tuple[int, StepMetrics]]) -> None:
        """Take in the steps that an earlier process has seen; their durations are unknown."""
        for step, metrics in steps:
            self._note(step, metrics)

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
        self._note(step, metrics)

    def _note(self, step: int, metrics: StepMetrics) -> None:
        self._step = step
        self._last = metrics
        self._steps.append(metrics)
        reward = metrics.get(REWARD)
        if reward is not None:
            self._rewards.append(reward)

    def diagnose(self) -> Diagnosis | None:
        """Return the first reason to stop; None if the run may go on."""
        return (
            self._not_finite()
            or self._dead()
            or self._collapsed()
            or self._diverged()
            or self._reward_gap()
            or self._silent()
            or self._settled()
            or self._late()
        )

    def _not_finite(self) -> Diagnosis | None:
        broken = [name for name, value in self._last.items() if value is None or not math.isfinite(value)]
        if not broken:
            return None
        sentence = f"{', '.join(sorted(broken)[:3])} is not a finite number at step {self._step}."
        return Diagnosis("not_finite", sentence, is_scored=False, is_retried=False)

    def _dead(self) -> Diagnosis | None:
        count = self._limits.dead_steps
        if len(self._rewards) < count or any(self._rewards[-count:]):
            return None
        return Diagnosis(
            "dead_reward",
            f"No episode earned a reward in {count} steps up to step {self._step}.",
            is_scored=True,
            is_retried=False,
        )

    def _collapsed(self) -> Diagnosis | None:
        window = self._limits.window
        if len(self._rewards) < 2 * window:
            return None
        means = [fmean(self._rewards[start : start + window]) for start in range(len(self._rewards) - window + 1)]
        best, recent = max(means[:-1]), means[-1]
        if best < self._limits.collapse_floor or recent > self._limits.collapse_fraction * best:
            return None
        sentence = (
            f"The mean reward fell from {best:.3f} to {recent:.3f} by step {self._step}"
            f"{self._context()}: the policy collapsed."
        )
        return Diagnosis("collapse", sentence, is_scored=True, is_retried=False)

    def _diverged(self) -> Diagnosis | None:
        kl = self._last.get("actor/ppo_kl")
        if kl is None or abs(kl) <= self._limits.kl_limit:
            return None
        sentence = f"One step moved the policy by a KL of {kl:.1f} at step {self._step}: it left its old self."
        return Diagnosis("kl_divergence", sentence, is_scored=True, is_retried=False)

    def _silent(self) -> Diagnosis | None:
        shares = self._recent(_silent_share)
        if not shares or min(shares) < self._limits.silent_share or self._is_solved():
            return None
        sentence = (
            f"In {len(shares)} steps up to step {self._step} at least {min(shares):.0%} of all groups had rewards "
            "without a difference: nothing is learned any more."
        )
        return Diagnosis("no_signal", sentence, is_scored=True, is_retried=False)

    def _settled(self) -> Diagnosis | None:
        entropies = self._recent(lambda step: step.get(ENTROPY))
        first = [value for step in self._steps[: self._limits.window] if (value := step.get(ENTROPY)) is not None]
        if not entropies or not first or max(entropies) >= self._limits.entropy_fraction * fmean(first):
            return None
        if self._is_solved():
            return None
        sentence = (
            f"The entropy fell from {fmean(first):.3g} to {entropies[-1]:.3g} by step {self._step}: the policy has "
            "settled on its answers."
        )
        return Diagnosis("entropy_collapse", sentence, is_scored=True, is_retried=False)

    def _reward_gap(self) -> Diagnosis | None:
        window = self._limits.window
        if len(self._steps) < 2 * window:
            return None
        first, last = self._steps[:window], self._steps[-window:]
        was, now, spread = _mean(first, REWARD), _mean(last, REWARD), _mean(first, SPREAD)
        solved, still = _mean(first, SUCCESS), _mean(last, SUCCESS)
        if was is None or now is None or spread is None or solved is None or still is None:
            return None
        if now - was <= self._limits.gap_rise * spread or solved - still < self._limits.gap_fall:
            return None
        sentence = (
            f"The training reward rose from {was:.3f} to {now:.3f} by step {self._step} while the share of solved "
            f"tasks fell from {solved:.3f} to {still:.3f}: the reward is learned at the cost of the task."
        )
        return Diagnosis("reward_gap", sentence, is_scored=True, is_retried=False)

    def _recent(self, value_of: Callable[[StepMetrics], float | None]) -> list[float]:
        """Return the values of the last `silent_steps` steps; an empty list unless all of these steps have one."""
        values = [value_of(step) for step in self._steps[-self._limits.silent_steps :]]
        known = [value for value in values if value is not None]
        return known if len(known) == len(values) == self._limits.silent_steps else []

    def _is_solved(self) -> bool:
        """Return whether there is nothing left to learn, by the success rate or else by the reward."""
        last = self._steps[-self._limits.window :]
        rate = _mean(last, SUCCESS)
        rate = _mean(last, REWARD) if rate is None else rate
        return rate is not None and rate > self._limits.solved

    def _late(self) -> Diagnosis | None:
        now = self._clock()
        if now - self._started > self._overrun_s():
            sentence = f"Not done after {self._overrun_s() / 3600:.3g} hours, at step {self._step}."
            return Diagnosis("overrun", sentence, is_scored=False, is_retried=False)
        if now - self._last_step_at > self._stall_s():
            sentence = f"No step for {self._stall_s():.0f} s after step {self._step}."
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

    def _context(self) -> str:
        known = [(name.partition("/")[2], self._last.get(name)) for name in _CONTEXT]
        parts = [f"{name} {value:.3g}" for name, value in known if value is not None]
        return f" ({', '.join(parts)})" if parts else ""


def _silent_share(step: StepMetrics) -> float | None:
    groups, silent = step.get(GROUPS), step.get(SILENT_GROUPS)
    return silent / groups if groups and silent is not None else None


def _mean(steps: Sequence[StepMetrics], name: str) -> float | None:
    values = [value for step in steps if (value := step.get(name)) is not None]
    return fmean(values) if values else None


def _longest(steps: Iterable[StepMetrics], is_so: Callable[[StepMetrics], bool]) -> int:
    """Return the length of the longest run of consecutive steps for which `is_so` holds."""
    longest = present = 0
    for step in steps:
        present = present + 1 if is_so(step) else 0
        longest = max(longest, present)
    return longest
