"""Tells from a run's curves that it is not worth going on, and says why in one sentence.

Place in the flow: monitor feeds it every finished step and acts on a diagnosis; the sentence goes to the next plan. It
knows nothing of servers, clients or the database.
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
"""Kind of the diagnosis of a run without a step for too long."""
REWARD, SPREAD = "critic/score/mean", "critic/score/std"
SUCCESS = "batch/success_rate"
"""Share of the batch's episodes that the environment calls solved, whatever reward they are trained on."""
ENTROPY, KL = "actor/entropy", "actor/ppo_kl"
GROUPS, SILENT_GROUPS = "rollout/groups", "rollout/groups_zero_advantage"
"""How many groups a batch has, and how many of them nothing can be learned from."""
WATCHED = (REWARD, SUCCESS, ENTROPY, KL, GROUPS, SILENT_GROUPS)
_CONTEXT = (ENTROPY, KL, "actor/grad_norm")


STALL_FACTOR = 10
"""So many times as long as the slowest step so far is no slow step any more."""
OVERRUN_FACTOR = 3
"""Responses grow while a model learns, and steps with them; not to so many times the time of the first ones."""
PACE_STEPS = 5
"""Steps that say how long a run should take."""
MARGIN = 2
"""A limit is at least so many times what runs that went well have shown."""

StepMetrics = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """What is granted to any run on an engine, in seconds: to serve its model, its first step, and the whole of it."""

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
"""By engine: a cluster loads a model of many gigabytes onto its GPUs first. Beyond these limits, what the steps of the
run itself took decides."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When to give a run up.

    stall_s: without a step for so long. None: what the engine is granted, or STALL_FACTOR times the slowest step.
    overrun_s: not done after so long. None: what the engine is granted, or OVERRUN_FACTOR times what the pace of the
    first PACE_STEPS steps gives for the whole run.
    dead_steps: a dozen batches without one success; at 128 episodes a step no skill is that rare and still learnable.
    collapse_*: over `window` steps the reward fell below `fraction` of the best such window, itself at least `floor`.
    silent_*: over so many steps at least this share of all groups had rewards without a difference, while no more than
    `solved` of the episodes are successes: nothing is learned any more, and the task is not learned yet.
    entropy_fraction: over `silent_steps` the entropy stayed below this fraction of what it was in the first window,
    likewise unsolved: the policy has settled on one answer.
    outage_s: for at least so long, and for as long as it has worked, a run waits for a server that does not answer
    before it goes to another one.
    gap_*: from the first `window` steps to the last the training reward rose by at least `rise` standard deviations of
    an episode's reward, while the success rate fell by at least `fall`: the program's reward is learned at the cost of
    the task.
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

    def learned_from(self, healthy: Iterable[Sequence[StepMetrics]]) -> Limits:
        """Wider where runs that went well came close to these limits; each run is its steps in order.

        A study's own baseline shows how late the first reward may come on its environment, for how long steps may teach
        nothing, and how far one step may move the policy.
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
    """`is_scored`: what was learned up to here is the arm's outcome. `is_retried`: the system failed, not the arm."""

    kind: str
    sentence: str
    is_scored: bool
    is_retried: bool

    def as_recorded(self) -> dict[str, Any]:
        """What the row of a run that was ended by it says."""
        return {"kind": self.kind, "sentence": self.sentence, "is_retried": self.is_retried}

    @classmethod
    def on_record(cls, recorded: Mapping[str, Any]) -> Diagnosis:
        """That of a run whose training was ended to be scored: no other is on record before the run is over."""
        return cls(str(recorded["kind"]), str(recorded["sentence"]), is_scored=True, is_retried=False)


class EarlyStopping:
    """One run of `total_steps` on an engine, from `begin` on. Steps come in rising order."""

    def __init__(
        self, limits: Limits, engine: str, total_steps: int, *, clock: Callable[[], float] = time.monotonic
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
        """What an earlier process has seen of the run: nobody knows how long its steps took."""
        for step, metrics in steps:
            self._note(step, metrics)

    def begin(self) -> None:
        """Training begins now: what came before, such as loading a large model, is not counted."""
        self._started = self._last_step_at = self._clock()
        self._paused_at = None

    def pause(self) -> None:
        """Nobody knows what the run does until `resume`: its server does not answer. Idempotent."""
        if self._paused_at is None:
            self._paused_at = self._clock()

    def resume(self) -> None:
        """The time since `pause` is counted neither as training nor as standing still."""
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
        """The first reason to stop; None if the run may go on."""
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
        """The values of the last `silent_steps` steps; none unless all of them have one."""
        values = [value_of(step) for step in self._steps[-self._limits.silent_steps :]]
        known = [value for value in values if value is not None]
        return known if len(known) == len(values) == self._limits.silent_steps else []

    def _is_solved(self) -> bool:
        """Whether there is nothing left to learn; by the reward where nobody says what is a success."""
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
    """The longest stretch of steps of which something holds."""
    longest = present = 0
    for step in steps:
        present = present + 1 if is_so(step) else 0
        longest = max(longest, present)
    return longest
