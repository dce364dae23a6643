"""The measurements of one run, passed from the process of a side to the process that compares.

Place in the flow: written by trl_side.py and service_side.py, read by comparison.py. Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

WARM_UP_STEPS = 3
"""The first steps of a run pay for what is built once, and do not count."""
GOAL_STEPS = 3
LAST_STEPS = 5


@dataclass(frozen=True, slots=True)
class StepFigures:
    """The figures of one training step.

    Seconds are of the clock. `ended_s` counts from the start of training; `tokens` are the sampled ones.
    """

    ended_s: float
    rollout_s: float
    train_s: float
    reward: float
    tokens: int


@dataclass(frozen=True, slots=True)
class RunReport:
    """The steps of a run in order, and the peak of resident memory of each process, in MB."""

    steps: Sequence[StepFigures]
    memory_mb: dict[str, float]

    def to_json(self) -> str:
        return json.dumps({"steps": [asdict(step) for step in self.steps], "memory_mb": self.memory_mb})

    @staticmethod
    def from_json(text: str) -> RunReport:
        """Read a report from its JSON. Raises ValueError, KeyError or TypeError if the text is no report."""
        found: dict[str, Any] = json.loads(text)
        return RunReport([StepFigures(**step) for step in found["steps"]], dict(found["memory_mb"]))


def summarize(report: RunReport, goal: float | None) -> dict[str, float]:
    """Return figures by name; those of the goal are missing if it was not reached.

    `*_s` are medians of the steps after the first `WARM_UP_STEPS`, or of all if there are no more.
    """
    counted = report.steps[WARM_UP_STEPS:] or report.steps
    starts = [0.0, *(step.ended_s for step in report.steps)]
    durations = [end - start for start, end in pairwise(starts)][-len(counted) :]
    reached = None if goal is None else steps_to(goal, [step.reward for step in report.steps])
    return {
        "step_s": median(durations),
        "rollout_s": median(step.rollout_s for step in counted),
        "train_s": median(step.train_s for step in counted),
        "tokens_per_second": sum(step.tokens for step in counted) / sum(durations),
        **({} if reached is None else {"steps_to_goal": reached, "goal_s": report.steps[reached - 1].ended_s}),
        "last_reward": mean(step.reward for step in report.steps[-LAST_STEPS:]),
        **{f"peak_rss_{process}": megabytes for process, megabytes in report.memory_mb.items()},
        "peak_rss": sum(report.memory_mb.values()),
    }


def steps_to(goal: float, rewards: Sequence[float]) -> int | None:
    """Return the first step, counted from 1, at which the mean reward of it and the two before is at least `goal`."""
    for end in range(GOAL_STEPS, len(rewards) + 1):
        if mean(rewards[end - GOAL_STEPS : end]) >= goal:
            return end
    return None


def peak_mb(pid: int | str = "self") -> float:
    """Return the peak of resident memory of a running process, in MB. Linux only: raises OSError elsewhere."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
        # getrusage would include the memory of the parent when it started this process.
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise OSError(f"/proc/{pid}/status names no peak of memory")
