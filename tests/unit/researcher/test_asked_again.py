"""A question that was asked before is confirmed with fewer runs, at the same verdicts and the same error rate."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from store_samples import finish_run

from experiments_db import ExperimentStatus, ExperimentStore, Finding, Verdict
from researcher.charter import Charter
from researcher.judge import Family, judge
from researcher.judge.samples import ScoredRun
from researcher.loop.deps import Deps, first_state
from researcher.loop.nodes.analyze import analyze
from researcher.loop.nodes.design import design
from researcher.loop.nodes.launch import open_trials
from researcher.loop.nodes.plan import plan
from researcher.memory.recall import recall
from researcher.memory.settlement import FOUND_AGAIN, RETRACTED
from researcher.planner.rules import RulesPlanner
from researcher.record.budget import BudgetLedger
from researcher.record.log import StudyLog, to_json
from researcher.servers.server_pool import ServerPool
from researcher.study.settings import read_settings
from researcher.study.topics import read_request

TOPIC = "learning rate 1e-4, 1e-3 or 1e-2 for word reversal"
BASELINE, LOW, HIGH = "lr=0.001", "lr=0.0001", "lr=0.01"
TRUTH: Mapping[str, float] = {BASELINE: 0.5, LOW: 0.2, HIGH: 0.75}
SPREAD = 0.03
STUDIES = 1000


def begin(
    store: ExperimentStore,
    topic: str = TOPIC,
    *,
    is_afresh: bool = False,
    digest: str = "d",
    attempt_calls: int | None = None,
    **flags: object,
) -> Deps:
    """A study whose first plan is made and whose arms passed the check."""
    planner = RulesPlanner()
    charter = planner.frame(read_request(topic, read_settings(flags)))
    charter = replace(charter, metric_range=(0.0, 1.0), environment_digest=digest, attempt_calls=attempt_calls)
    study = store.create_study(topic, planner="rules").id
    store.freeze_charter(study, to_json(charter))
    deps = Deps(
        log=StudyLog(store, study),
        planner=planner,
        pool=cast(ServerPool, SimpleNamespace(slots=())),
        ledger=BudgetLedger(store, study, charter.budget),
        home=Path("nowhere"),
        is_afresh=is_afresh,
    )
    plan(deps, first_state(study))
    for experiment in store.list_experiments(study):
        store.revise_experiment(experiment.id, program_code="the plain program", status=ExperimentStatus.READY)
    return deps


def train(deps: Deps, truth: Mapping[str, float], chance: random.Random) -> None:
    """Finish every run that is open, with a score drawn around the truth of its arm."""
    charter = deps.log.charter()
    for trial in open_trials(deps, first_state(deps.study_id)):
        score = min(1.0, max(0.0, chance.gauss(truth[trial.experiment.name], SPREAD)))
        noise = math.sqrt(score * (1 - score) / charter.eval_episodes)
        scores = {"base": 0.2, "final": score}
        finish_run(deps.store, trial.experiment.id, trial.seed, scores, episodes=charter.eval_episodes, stderr=noise)


def carry_out(deps: Deps, truth: Mapping[str, float], chance: random.Random) -> Deps:
    """Play a study up to its verdicts: the pilot if it has one, then all runs."""
    state = first_state(deps.study_id)
    design(deps, state)
    train(deps, truth, chance)
    design(deps, state)
    train(deps, truth, chance)
    analyze(deps, state)
    return deps


def verdicts(deps: Deps) -> dict[str, Verdict]:
    analysis = deps.log.find_analysis(0)
    assert analysis is not None
    return {item.arm: item.verdict for item in analysis.comparisons}


def finding_on(deps: Deps, arm: str) -> Finding:
    experiment = deps.store.find_experiment(deps.study_id, arm)
    assert experiment is not None
    return next(
        item for item in deps.store.list_findings(study_id=deps.study_id) if item.experiment_id == experiment.id
    )


def confirms(deps: Deps) -> str:
    """What the plan of a study confirms; empty if it studies its question anew."""
    (planned,) = deps.log.history().plans
    return "" if planned.sample_size is None else planned.sample_size.confirms


def runs(deps: Deps) -> int:
    return len(deps.store.list_runs(study_id=deps.study_id))


def messages(deps: Deps, kind: str) -> list[str]:
    return [event.message for event in deps.store.list_events(deps.study_id, kind=kind)]


@pytest.mark.parametrize("number", range(2))
def test_question_asked_again_costs_at_most_half_the_runs_at_equal_verdicts(
    store: ExperimentStore, number: int
) -> None:
    chance = random.Random(number)
    first = carry_out(begin(store, seeds=8), TRUTH, chance)
    again = carry_out(begin(store), TRUTH, chance)

    assert verdicts(again) == verdicts(first) == {LOW: Verdict.WORSE, HIGH: Verdict.KEEP}
    assert 0 < runs(again) <= runs(first) / 2
    (planned,) = again.log.history().plans
    assert planned.sample_size is not None and first.study_id in planned.sample_size.confirms
    assert not {run.seed for run in store.list_runs(study_id=first.study_id)} & set(planned.seeds)
    assert messages(again, "plan.sized") and "Asked before" in messages(again, "plan.sized")[0]
    assert len(messages(again, FOUND_AGAIN)) == 2


def test_question_asked_a_third_time_needs_no_fewer_runs_than_the_second_time(store: ExperimentStore) -> None:
    chance = random.Random(0)
    carry_out(begin(store, seeds=12), TRUTH, chance)
    second = carry_out(begin(store), TRUTH, chance)
    third = carry_out(begin(store), TRUTH, chance)

    assert runs(third) == runs(second)
    seeds = [set(deps.log.history().plans[0].seeds) for deps in (second, third)]
    assert not seeds[0] & seeds[1]


@pytest.mark.parametrize(
    "changed",
    [{"is_afresh": True}, {"digest": "another"}, {"seeds": 5}, {"fix": ("batch_size=4",)}, {"attempt_calls": 3}],
    ids=lambda changed: next(iter(changed)),
)
def test_another_question_or_a_study_asked_for_afresh_takes_no_prior(
    store: ExperimentStore, changed: dict[str, object]
) -> None:
    chance = random.Random(0)
    carry_out(begin(store, seeds=8), TRUTH, chance)
    deps = begin(store, **changed)  # type: ignore[arg-type]
    design(deps, first_state(deps.study_id))

    assert not confirms(deps)


def test_question_with_an_arm_that_nobody_compared_is_studied_anew(store: ExperimentStore) -> None:
    chance = random.Random(0)
    carry_out(begin(store, "learning rate 1e-3 or 1e-2 for word reversal", seeds=8), TRUTH, chance)
    deps = begin(store)
    design(deps, first_state(deps.study_id))

    assert not confirms(deps)


def test_effect_too_small_for_half_the_runs_is_studied_anew_and_the_log_says_so(store: ExperimentStore) -> None:
    truth = {BASELINE: 0.5, LOW: 0.2, HIGH: 0.575}
    first = carry_out(begin(store, seeds=8), truth, random.Random(2))
    assert Verdict.INCONCLUSIVE not in verdicts(first).values()
    deps = begin(store)
    design(deps, first_state(deps.study_id))

    assert not confirms(deps)
    assert "studied anew" in messages(deps, "plan.studies_anew")[0]


def test_false_finding_is_contradicted_and_retracted_by_the_study_that_asks_again(store: ExperimentStore) -> None:
    chance = random.Random(4)
    # The first study is misled: its scores are not those of the truth.
    first = carry_out(begin(store, seeds=8), {**TRUTH, LOW: 0.8}, chance)
    again = carry_out(begin(store), TRUTH, chance)

    false, true = (finding_on(deps, LOW) for deps in (first, again))
    assert (false.verdict, true.verdict) == (Verdict.KEEP, Verdict.WORSE)
    retracted = store.get_finding(false.id)
    assert retracted.retracted_by == true.id and retracted.retraction is not None
    for deps in (first, again):
        assert any(false.id in message for message in messages(deps, RETRACTED))
    lines = recall(store, "a later study", again.log.charter())
    assert sum("retracted: " in line for line in lines) == 1

    # What is retracted is no prior: the arm's other finding is.
    third = begin(store)
    design(third, first_state(third.study_id))
    assert again.study_id in confirms(third)


def test_useless_arm_that_was_kept_before_is_kept_again_no_more_often_than_alpha(store: ExperimentStore) -> None:
    topic, useless = "learning rate 1e-3 or 1e-2 for word reversal", {BASELINE: 0.5, HIGH: 0.5}
    # The first study saw an effect that is not there.
    carry_out(begin(store, topic, seeds=8), {**useless, HIGH: 0.75}, random.Random(0))
    again = begin(store, topic)
    design(again, first_state(again.study_id))
    charter, (planned,) = again.log.charter(), again.log.history().plans
    assert planned.sample_size is not None and planned.sample_size.confirms

    chance = random.Random(1)
    kept = sum(
        judge(charter, runs, Family(0, runs, size=1)).comparisons[0].verdict is Verdict.KEEP
        for runs in (
            {arm: {seed: draw(charter, mean, chance) for seed in planned.seeds} for arm, mean in useless.items()}
            for _ in range(STUDIES)
        )
    )
    # Of 1,000 studies at 5 %, more than 72 happen in one of a thousand cases; the numbers are always the same.
    assert kept <= 72


def draw(charter: Charter, mean: float, chance: random.Random) -> ScoredRun:
    return ScoredRun("run", chance.gauss(mean, SPREAD), mean * (1 - mean) / charter.eval_episodes)
