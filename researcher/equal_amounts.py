"""The quantity that is equal in all arms, and the number of steps of each arm that follows from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

from researcher.charter import ComparedAt
from researcher.plan import Arm
from swarm import SwarmError, TrainJob
from swarm.job import build_job

HELD: Mapping[ComparedAt, str] = {
    ComparedAt.EPISODES: "Every arm trains on as many episodes: one with fewer of them per step gets more steps",
    ComparedAt.STEPS: "Every arm trains for the steps that its settings say, however many episodes those have",
}
"""The sentences for quantities that the number of steps makes equal before a run."""

TOLERATED = 0.02
"""The share of the episodes by which arms may differ without a note in the charter."""
TOKENS_PER_REPLY = 0.5
"""The assumed length of a reply, as a share of its bound, if the topic names no number of tokens."""
SECONDS_PER_STEP = 2.0
"""The assumed duration of a step if the topic names no time: that of a bundled model on a busy laptop."""
MOST_STEPS_IN_TIME = 1000
"""The factor on the usual number of steps for a run that time ends; no run reaches the product."""


def usual_comparison(varied: Collection[str]) -> ComparedAt:
    """Return the quantity at which arms with these varied settings are compared if nobody names one."""
    return ComparedAt.STEPS if "total_steps" in varied else ComparedAt.EPISODES


def usual_amount(compared_at: ComparedAt, job: Mapping[str, Any], max_tokens: int) -> float:
    """Return the amount that ends a run if the topic names none.

    It follows from the usual job and from `max_tokens`, the environment's bound on a reply. It is 0 if the number of
    steps ends a run.
    """
    match compared_at:
        case ComparedAt.TOKENS:
            return float(max(1, round(count_episodes(job) * max_tokens * TOKENS_PER_REPLY)))
        case ComparedAt.TIME:
            return SECONDS_PER_STEP * int(job["total_steps"])
        case _:
            return 0.0


def describe_equal_amount(compared_at: ComparedAt, amount: float) -> str:
    """Return one sentence for the charter about the equal quantity."""
    if compared_at in HELD:
        return f"{HELD[compared_at]}."
    quota = f"{amount:,.0f} tokens" if compared_at is ComparedAt.TOKENS else f"{amount:,.0f} seconds of training"
    return f"Every run ends with the step that reaches {quota}; the report shows what each arm had."


def hold_equal(arms: Sequence[Arm], compared_at: ComparedAt, amount: float = 0.0) -> tuple[Arm, ...]:
    """Return the arms with numbers of steps that give each as many episodes as the baseline.

    The numbers are rounded to whole steps. Arms compared at steps stay as they are. For arms compared at tokens or
    time, `amount` ends a run. Their number of steps is then an upper bound that no run reaches: an episode has at least
    one token.
    """
    if compared_at is ComparedAt.STEPS:
        return tuple(arms)
    if compared_at is not ComparedAt.EPISODES:
        return tuple(
            replace(arm, job={**arm.job, "total_steps": _most_steps(arm.job, compared_at, amount)}) for arm in arms
        )
    baseline = next((arm for arm in arms if arm.is_baseline), arms[0])
    return tuple(replace(arm, job=give_episodes_of(baseline.job, arm.job)) for arm in arms)


def describe_inequality(arms: Sequence[Arm], compared_at: ComparedAt) -> tuple[str, ...]:
    """Return one sentence if whole steps let the arms' numbers of episodes differ by more than `TOLERATED`."""
    if compared_at is not ComparedAt.EPISODES:
        return ()
    episodes = {arm.name: count_episodes(arm.job) for arm in arms}
    fewest, most = min(episodes, key=lambda name: episodes[name]), max(episodes, key=lambda name: episodes[name])
    if episodes[most] <= episodes[fewest] * (1 + TOLERATED):
        return ()
    return (
        f"Steps are whole, so that {fewest} trains on {episodes[fewest]:,} episodes and {most} on {episodes[most]:,}: "
        "more --steps make them more alike.",
    )


def give_episodes_of(baseline: Mapping[str, Any], job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job with the number of steps that gives it as many episodes as the baseline's job has.

    The number is rounded to whole steps.
    """
    return {**job, "total_steps": _steps_for(count_episodes(baseline), job)}


def count_episodes(job: Mapping[str, Any]) -> int:
    """Return the number of episodes that a run of this job trains on, if no group is lost."""
    return int(job["total_steps"]) * episodes_per_step(job)


def episodes_per_step(job: Mapping[str, Any]) -> int:
    return int(setting_of(job, "batch_size")) * int(setting_of(job, "num_repeat"))


def _most_steps(job: Mapping[str, Any], compared_at: ComparedAt, amount: float) -> int:
    if compared_at is ComparedAt.TIME:
        return MOST_STEPS_IN_TIME * int(job["total_steps"])
    return max(1, ceil(amount / max(1, episodes_per_step(job))))


def _steps_for(episodes: int, job: Mapping[str, Any]) -> int:
    try:
        return max(1, round(episodes / episodes_per_step(job)))
    except (ValueError, ZeroDivisionError):
        # The check of the job refuses an impossible size by name.
        return int(job["total_steps"])


def setting_of(job: Mapping[str, Any], name: str) -> Any:
    """Return a setting of a job, or its default if the job does not state it."""
    return job.get(name, TrainJob.model_fields[name].get_default(call_default_factory=True))


def in_force(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return a whole job, with defaults and automatic values, or the job as it is stored if it is invalid."""
    try:
        return build_job(dict(job)).resolve().model_dump(mode="json")
    except SwarmError:
        return dict(job)
