"""This module says what all arms of a study get the same amount of, and how many steps each of them gets for it.

Place in the flow: rules.py asks when it has laid out arms. Group size, batch size, steps, response length and model
change how much an arm computes, so an arm could win by having more. What is held equal is said by the topic, or else by
the factors: equal *episodes*, but for the number of steps, which is the amount itself. The report shows episodes,
tokens and seconds of training of every arm. This module knows neither topics nor scores.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

from researcher.types import Arm, ComparedAt
from swarm import TrainJob

HELD: Mapping[ComparedAt, str] = {
    ComparedAt.EPISODES: "Every arm trains on as many episodes: one with fewer of them per step gets more steps",
    ComparedAt.STEPS: "Every arm trains for the steps that its settings say, however many episodes those have",
}
"""What the number of steps holds equal, before a run."""

TOLERATED = 0.02
"""Share of the episodes by which arms may differ without a word."""
TOKENS_PER_REPLY = 0.5
"""A reply is taken to be so long, as a share of the bound on it, where the topic names no number of tokens."""
SECONDS_PER_STEP = 2.0
"""A step is taken to last so long where the topic names no time: as one of the bundled models on a busy laptop."""
MOST_STEPS_IN_TIME = 1000
"""A run that time ends may have so many times the usual number of steps, which it never reaches."""


def usual_comparison(varied: Collection[str]) -> ComparedAt:
    """Return what arms that differ in these settings are compared at where nobody says so: equal episodes, but for the
    number of steps, which is the amount itself."""
    return ComparedAt.STEPS if "total_steps" in varied else ComparedAt.EPISODES


def usual_amount(compared_at: ComparedAt, job: Mapping[str, Any], max_tokens: int) -> float:
    """The share of a run where the topic names none, by the usual job and the bound on a reply of its environment; 0
    where the number of steps is the share."""
    match compared_at:
        case ComparedAt.TOKENS:
            return float(max(1, round(count_episodes(job) * max_tokens * TOKENS_PER_REPLY)))
        case ComparedAt.TIME:
            return SECONDS_PER_STEP * int(job["total_steps"])
        case _:
            return 0.0


def say_what_is_equal(compared_at: ComparedAt, amount: float) -> str:
    """One sentence for the charter."""
    if compared_at in HELD:
        return f"{HELD[compared_at]}."
    share = f"{amount:,.0f} tokens" if compared_at is ComparedAt.TOKENS else f"{amount:,.0f} seconds of training"
    return f"Every run ends with the step that reaches {share}; the report shows what each arm had."


def hold_equal(arms: Sequence[Arm], compared_at: ComparedAt, amount: float = 0.0) -> tuple[Arm, ...]:
    """The arms with the numbers of steps that give each as many episodes as the baseline has, to the nearest step.

    Compared at steps they stay as they are. Compared at tokens or time, `amount` ends a run, and its steps are more
    than it can make of that: an episode has at least one token.
    """
    if compared_at is ComparedAt.STEPS:
        return tuple(arms)
    if compared_at is not ComparedAt.EPISODES:
        return tuple(
            replace(arm, job={**arm.job, "total_steps": _most_steps(arm.job, compared_at, amount)}) for arm in arms
        )
    baseline = next((arm for arm in arms if arm.is_baseline), arms[0])
    return tuple(replace(arm, job=give_episodes_of(baseline.job, arm.job)) for arm in arms)


def say_inequality(arms: Sequence[Arm], compared_at: ComparedAt) -> tuple[str, ...]:
    """One sentence where whole steps leave arms with numbers of episodes that differ by more than `TOLERATED`."""
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
    """The job with the number of steps that has as many episodes as the baseline's job, to the nearest step."""
    return {**job, "total_steps": _steps_for(count_episodes(baseline), job)}


def count_episodes(job: Mapping[str, Any]) -> int:
    """Episodes that a run of this job trains on, if no group of it is lost."""
    return int(job["total_steps"]) * episodes_per_step(job)


def episodes_per_step(job: Mapping[str, Any]) -> int:
    return int(_present(job, "batch_size")) * int(_present(job, "num_repeat"))


def _most_steps(job: Mapping[str, Any], compared_at: ComparedAt, amount: float) -> int:
    if compared_at is ComparedAt.TIME:
        return MOST_STEPS_IN_TIME * int(job["total_steps"])
    return max(1, ceil(amount / max(1, episodes_per_step(job))))


def _steps_for(episodes: int, job: Mapping[str, Any]) -> int:
    try:
        return max(1, round(episodes / episodes_per_step(job)))
    except (ValueError, ZeroDivisionError):
        # A size that no job can have is refused by name when the job is checked.
        return int(job["total_steps"])


def _present(job: Mapping[str, Any], name: str) -> Any:
    return job.get(name, TrainJob.model_fields[name].default)
