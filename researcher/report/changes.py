"""The differences of an arm from the baseline, by the values in force in both.

Place in the flow: the recommendation uses them to say what to use. A setting that one job names and the other leaves to
its default differs only if the values do. This module judges nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from researcher.report.formats import format_value
from researcher.report.numbers.facts import ArmFacts
from swarm import SwarmError
from swarm.job import build_job


def list_changes(baseline: ArmFacts, arm: ArmFacts) -> list[str]:
    """Return the differences of an arm, one clause each."""
    changed = [f"{name} {format_value(new)} in place of {format_value(old)}" for name, new, old in _jobs(baseline, arm)]
    if arm.code_hash != baseline.code_hash:
        changed.append("another program, which is shown below")
    if arm.experiment.train_environment != baseline.experiment.train_environment:
        changed.append(f"trained on {arm.experiment.train_environment or 'the environment that judges it'}")
    return changed


def _jobs(baseline: ArmFacts, arm: ArmFacts) -> Iterator[tuple[str, Any, Any]]:
    old, new = in_force(baseline.experiment.job), in_force(arm.experiment.job)
    named = dict.fromkeys((*arm.experiment.factors, *arm.experiment.job, *baseline.experiment.job))
    for name in named:
        if name in new and name in old and new[name] != old[name]:
            yield name, new[name], old[name]


def in_force(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return a whole job, with defaults and automatic values, or the job as it is stored if it is invalid."""
    try:
        return build_job(dict(job)).resolve().model_dump(mode="json")
    except SwarmError:
        return dict(job)
