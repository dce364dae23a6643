"""Tells from a run's curves that it is not worth going on, and says why in one sentence.

Place in the flow: monitor feeds it every finished step and acts on a diagnosis; the sentence goes to the next plan. It
knows nothing of servers, clients or the database.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean
from types import MappingProxyType

REWARD = "critic/score/mean"
_CONTEXT = ("actor/entropy", "actor/ppo_kl", "actor/grad_norm")


STALL_FACTOR = 10
"""So many times as long as the slowest step so far is no slow step any more."""
OVERRUN_FACTOR = 3
"""Responses grow while a model learns, and steps with them; not to so many times the time of the first ones."""
PACE_STEPS = 5
"""Steps that say how long a run should take."""


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
    """

    stall_s: float | None = None
    overrun_s: float | None = None
    dead_steps: int = 12
    window: int = 5
    collapse_fraction: float = 0.1
    collapse_floor: float = 0.1
    kl_limit: float = 10.0


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`is_scored`: what was learned up to here is the arm's outcome. `is_retried`: the system failed, not the arm."""

    kind: str
    sentence: str
    is_scored: bool
    is_retried: bool


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
        self._slowest_s = 0.0
        self._observed = 0
        self._pace_s: float | None = None
        self._rewards: list[float] = []
        self._last: Mapping[str, float | None] = {}
        self._step = 0

    def begin(self) -> None:
        """Training begins now: what came before, such as loading a large model, is not counted."""
        self._started = self._last_step_at = self._clock()

    def observe(self, step: int, metrics: Mapping[str, float | None]) -> None:
        now = self._clock()
        self._slowest_s = max(self._slowest_s, now - self._last_step_at)
        self._observed += 1
        if self._observed == PACE_STEPS:
            self._pace_s = (now - self._started) / PACE_STEPS
        self._step = step
        self._last_step_at = now
        self._last = metrics
        reward = metrics.get(REWARD)
        if reward is not None:
            self._rewards.append(reward)

    def diagnose(self) -> Diagnosis | None:
        """The first reason to stop; None if the run may go on."""
        return self._not_finite() or self._dead() or self._collapsed() or self._diverged() or self._late()

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

    def _late(self) -> Diagnosis | None:
        now = self._clock()
        if now - self._started > self._overrun_s():
            sentence = f"Not done after {self._overrun_s() / 3600:.3g} hours, at step {self._step}."
            return Diagnosis("overrun", sentence, is_scored=False, is_retried=False)
        if now - self._last_step_at > self._stall_s():
            sentence = f"No step for {self._stall_s():.0f} s after step {self._step}."
            return Diagnosis("stall", sentence, is_scored=False, is_retried=True)
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
