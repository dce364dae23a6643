"""The findings of earlier studies in words, for planners and for people.

Place in the flow: the plan node puts these lines into the history that a planner gets. This module decides nothing.
"""

from __future__ import annotations

from experiments_db import ExperimentStore
from researcher.charter import Charter
from researcher.memory.recipe import Recipe
from researcher.memory.standing import KnownFinding, Standing, list_known, weigh
from researcher.question.flags import value_as_text

MOST_FINDINGS = 20
"""The most findings of other studies that are told, so that they fit a prompt and a person's patience."""
MOST_DIFFERENCES = 6


def recall(store: ExperimentStore, study_id: str, charter: Charter) -> tuple[str, ...]:
    """Return the findings of other studies in the environment of a charter, refuted ideas included; newest last."""
    found = [
        standing
        for standing in weigh(list_known(store))
        if standing.known.finding.study_id != study_id
        and standing.known.recipe.environment_name == charter.environment_name
    ]
    return tuple(describe_standing(item, charter) for item in found[-MOST_FINDINGS:])


def describe_standing(standing: Standing, charter: Charter | None = None) -> str:
    """Return a finding in one line; with a charter, also whether the environment has changed since."""
    finding, recipe = standing.known.finding, standing.known.recipe
    parts: list[str] = []
    # What takes a finding back comes first, because prompts cut a long line at its end.
    if finding.retracted_at is not None:
        parts.append(f"retracted: {finding.retraction}")
    if standing.contradicted_by:
        parts.append(f"contradicted by {', '.join(standing.contradicted_by)}")
    if charter is not None and recipe.environment_digest != charter.environment_digest:
        parts.append("on another version of the environment")
    parts += [
        f"{describe_comparison(recipe)}: {describe_effect(standing.known)}",
        finding.verdict.value,
        f"{recipe.runs} runs of the arm, study {finding.study_id}",
    ]
    if standing.replications:
        parts.append(f"found again by {', '.join(standing.replications)}")
    return "; ".join(parts)


def describe_comparison(recipe: Recipe) -> str:
    """Return the arm and its baseline with what differs between them."""
    changes = [
        f"{name} {value_as_text(was)} -> {value_as_text(now)}" for name, (was, now) in recipe.differences.items()
    ]
    if len(changes) > MOST_DIFFERENCES:
        changes = [*changes[:MOST_DIFFERENCES], f"{len(changes) - MOST_DIFFERENCES} more"]
    if recipe.arm.program != recipe.baseline.program:
        changes.append(f"program {recipe.baseline.program[:8]} -> {recipe.arm.program[:8]}")
    if recipe.arm.train_environment != recipe.baseline.train_environment:
        trained = (each.train_environment or recipe.environment_name for each in (recipe.baseline, recipe.arm))
        changes.append(f"trained on {' -> '.join(trained)}")
    return f"{recipe.arm.name} against {recipe.baseline.name} ({', '.join(changes) or 'nothing differs'})"


def describe_effect(known: KnownFinding) -> str:
    """Return the effect with its interval."""
    finding = known.finding
    if finding.effect is None:
        return "not compared"
    if finding.ci_low is None or finding.ci_high is None:
        return f"{finding.effect:+.3f}"
    return f"{finding.effect:+.3f} [{finding.ci_low:+.3f}, {finding.ci_high:+.3f}]"
