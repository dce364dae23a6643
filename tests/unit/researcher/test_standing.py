"""What findings on one question say about each other: found again, contradicted, or neither."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from experiments_db import ExperimentStore, Finding, Verdict
from researcher.charter import JudgedBy
from researcher.memory.prior import conservative_effect
from researcher.memory.recipe import ArmRecipe, Recipe, recipe_from_json, recipe_to_json
from researcher.memory.standing import KnownFinding, agrees, contradicts, describe_standing, list_known, weigh

RECIPE = Recipe(
    environment_name="reverse",
    environment_digest="d",
    environment="reverse",
    model="nano",
    metric="mean reward of held-out episodes",
    judged_by=JudgedBy.FINAL,
    sign=1.0,
    min_effect=0.02,
    min_seeds=3,
    compared_at="episodes",
    amount=0.0,
    eval_episodes=400,
    attempt_calls=None,
    attempt_tokens=None,
    runs=6,
    planner="rules",
    arm=ArmRecipe("lr=0.003", {"lr": 0.003}, {"engine": "fake", "lr": 0.003}, "p"),
    baseline=ArmRecipe("lr=0.001", {"lr": 0.001}, {"engine": "fake", "lr": 0.001}, "p"),
)
KEPT = (0.10, 0.05, 0.15, 0.001, Verdict.KEEP)


def known(
    effect: float | None, low: float | None, high: float | None, p: float | None, verdict: Verdict, *, runs: int = 6
) -> KnownFinding:
    finding = Finding(
        id="fi", study_id="st", hypothesis_id=None, iteration=0, experiment_id="a", baseline_id="b", metric="m",
        split="validation", effect=effect, ci_low=low, ci_high=high, confidence=0.95, p_value=p, p_adjusted=p,
        verdict=verdict, method="t", run_ids=(), summary="s", details={"seeds": []}, recipe={}, created_at=1.0,
        question=RECIPE.question,
    )  # fmt: skip
    return KnownFinding(finding, replace(RECIPE, runs=runs))


@pytest.mark.parametrize(
    ("earlier", "later", "is_contradicted"),
    [
        (KEPT, (-0.10, -0.15, -0.05, 0.001, Verdict.WORSE), True),
        (KEPT, (0.00, -0.03, 0.03, 0.9, Verdict.NO_BETTER), True),
        (KEPT, (0.00, -0.03, 0.03, 0.9, Verdict.INCONCLUSIVE), True),
        (KEPT, (0.04, 0.02, 0.06, 0.001, Verdict.KEEP), False),
        (KEPT, (0.05, -0.20, 0.30, 0.6, Verdict.INCONCLUSIVE), False),
        (KEPT, (0.07, 0.05, 0.09, 0.001, Verdict.NO_BETTER), False),
        (KEPT, (-0.30, -0.70, 0.05, 0.08, Verdict.INCONCLUSIVE), False),
        (KEPT, (None, None, None, None, Verdict.INCONCLUSIVE), False),
        ((0.0, -0.02, 0.015, 0.9, Verdict.NO_BETTER), (0.10, 0.06, 0.14, 0.001, Verdict.KEEP), True),
        ((0.0, -0.30, 0.30, 0.9, Verdict.INCONCLUSIVE), (0.10, 0.06, 0.14, 0.001, Verdict.KEEP), False),
    ],
)
def test_later_finding_contradicts_by_sign_or_by_an_interval_that_excludes_the_earlier_effect(
    earlier: tuple[Any, ...], later: tuple[Any, ...], is_contradicted: bool
) -> None:
    assert contradicts(known(*later), known(*earlier)) is is_contradicted
    assert not (is_contradicted and agrees(known(*later), known(*earlier)))


def test_study_with_too_few_runs_contradicts_by_no_interval() -> None:
    nothing = (0.00, -0.03, 0.03, 0.9, Verdict.INCONCLUSIVE)
    assert contradicts(known(*nothing, runs=3), known(*KEPT))
    assert not contradicts(known(*nothing, runs=2), known(*KEPT))


@pytest.mark.parametrize(
    ("finding", "effect"),
    [
        (KEPT, 0.05),
        ((-0.10, -0.15, -0.05, 0.001, Verdict.WORSE), 0.05),
        ((-0.03, -0.06, 0.00, 0.2, Verdict.NO_BETTER), 0.05),
        ((0.10, -0.05, 0.25, 0.2, Verdict.KEEP), 0.0),
    ],
)
def test_effect_to_be_found_again_is_the_bound_nearer_to_zero_or_the_distance_from_an_effect_that_matters(
    finding: tuple[Any, ...], effect: float
) -> None:
    assert conservative_effect(known(*finding).finding, 1.0, 0.02) == pytest.approx(effect)


def test_question_is_the_same_whatever_names_and_left_out_defaults_are() -> None:
    renamed = replace(RECIPE, arm=replace(RECIPE.arm, name="fast"), planner="llm:x", runs=9, eval_episodes=50)
    spelled = replace(RECIPE, arm=replace(RECIPE.arm, settings={**RECIPE.arm.settings, "temperature": 1.0}))
    assert renamed.question == spelled.question == RECIPE.question
    assert recipe_from_json(recipe_to_json(RECIPE)) == RECIPE
    for other in (
        replace(RECIPE, environment_digest="e"),
        replace(RECIPE, metric="another"),
        replace(RECIPE, attempt_tokens=9),
        replace(RECIPE, arm=replace(RECIPE.arm, program="q")),
        replace(RECIPE, baseline=replace(RECIPE.baseline, settings={"engine": "fake", "lr": 0.1})),
        replace(RECIPE, arm=RECIPE.baseline, baseline=RECIPE.arm),
    ):
        assert other.question != RECIPE.question


def record(
    store: ExperimentStore, numbers: tuple[Any, ...], *, seed: int, iteration: int = 0, **settings: Any
) -> Finding:
    study = store.create_study("t", planner="rules", settings=settings).id
    arms = [store.create_experiment(study, name, factors={}, job={}) for name in ("arm", "baseline")]
    effect, low, high, p, verdict = numbers
    return store.record_finding(
        study, iteration=iteration, experiment_id=arms[0].id, baseline_id=arms[1].id, metric="m", split="validation",
        effect=effect, ci_low=low, ci_high=high, confidence=0.95, p_value=p, p_adjusted=p, verdict=verdict, method="t",
        run_ids=(), summary="s", details={"seeds": [seed]}, recipe=recipe_to_json(RECIPE),
        question=RECIPE.question,
    )  # fmt: skip


def test_finding_is_found_again_by_other_studies_on_other_seeds_alone(store: ExperimentStore) -> None:
    first = record(store, KEPT, seed=0)
    record(store, KEPT, seed=0)
    third = record(store, KEPT, seed=1)
    standing = weigh(list_known(store))[0]

    assert standing.known.finding.id == first.id and standing.replications == (third.study_id,)
    assert standing.is_prior and f"found again by {third.study_id}" in describe_standing(standing)


def test_contradicted_finding_is_no_prior_until_what_contradicts_it_is_retracted(store: ExperimentStore) -> None:
    record(store, KEPT, seed=0)
    later = record(store, (-0.10, -0.15, -0.05, 0.001, Verdict.WORSE), seed=1)
    first = weigh(list_known(store))[0]
    assert first.contradicted_by == (later.id,) and not first.is_prior
    assert f"contradicted by {later.id}" in describe_standing(first)

    store.retract_finding(later.id, "its grader was broken")
    first, second = weigh(list_known(store))
    assert first.is_prior and not second.is_prior
