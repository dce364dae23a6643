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

REWARD = "critic/score/mean"
_CONTEXT = ("actor/entropy", "actor/ppo_kl", "actor/grad_norm")


@dataclass(frozen=True, slots=True)
class Limits:
    """When to give a run up.

    stall_s: longer without a step than the slowest step of a laptop run by an order of magnitude.
    dead_steps: a dozen batches without one success; at 128 episodes a step no skill is that rare and still learnable.
    collapse_*: over `window` steps the reward fell below `fraction` of the best such window, itself at least `floor`.
    """

    stall_s: float = 300.0
    overrun_s: float = 6 * 3600.0
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
    """One run. Steps come in rising order."""

    def __init__(self, limits: Limits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._started = self._last_step_at = clock()
        self._rewards: list[float] = []
        self._last: Mapping[str, float | None] = {}
        self._step = 0

    def observe(self, step: int, metrics: Mapping[str, float | None]) -> None:
        self._step = step
        self._last_step_at = self._clock()
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
        if now - self._started > self._limits.overrun_s:
            sentence = f"Not done after {self._limits.overrun_s / 3600:g} hours, at step {self._step}."
            return Diagnosis("overrun", sentence, is_scored=False, is_retried=False)
        if now - self._last_step_at > self._limits.stall_s:
            sentence = f"No step for {self._limits.stall_s:g} s after step {self._step}."
            return Diagnosis("stall", sentence, is_scored=False, is_retried=True)
        return None

    def _context(self) -> str:
        known = [(name.partition("/")[2], self._last.get(name)) for name in _CONTEXT]
        parts = [f"{name} {value:.3g}" for name, value in known if value is not None]
        return f" ({', '.join(parts)})" if parts else ""
