"""The arms of a confirmation: those that a planner names, each with its hypothesis, and those that rules name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from searched_study import BASELINE, FAST, WIDE, SearchedStudy, begin_search, make_arm, make_charter, make_round
from store_samples import finish_run

from experiments_db import Outcome, RunStatus, Verdict
from researcher.charter import Budget, SampleSizeGoal
from researcher.errors import PlannerError
from researcher.history import Action, Decision, History, Objection, ObjectionKind, Response
from researcher.loop.nodes.design import design
from researcher.loop.nodes.launch import open_trials
from researcher.loop.nodes.plan import gather_history
from researcher.plan import Arm, ArmProgram, Contrast, Hypothesis, Plan, Relation, SampleSize
from researcher.report.answer import answer
from researcher.report.numbers.gather import gather
from researcher.report.recommendation import recommendation
from researcher.scope import ArmPart
from researcher.search.hypotheses import check_confirmed, usual_hypotheses
from researcher.tree import RungScore, SearchNode, SearchTree

LONG = make_arm("long", grad_clip=0.3)
FIRST = make_round([BASELINE, FAST, WIDE, LONG])
MEANS = {"baseline": 0.3, "fast": 0.4, "wide": 0.6, "long": 0.31}


def claims(
    arm: str, relation: Relation = Relation.BETTER, margin: float = 0.0, against: str = "baseline"
) -> Hypothesis:
    statement = f"{arm} is {relation.value} by {margin:g}"
    return Hypothesis(statement, "so", (arm,), Contrast(relation, (arm,), (against,), margin))


NULL = claims("long", Relation.NO_BETTER, 0.2)


def explored(home: Path, *named: Hypothesis, means: dict[str, float] = MEANS, **options: Any) -> SearchedStudy:
    """A search whose planner confirms after the first round, and names these hypotheses."""
    decision = Decision(Action.CONFIRM, "enough", confirms=named)
    study = begin_search(home, [FIRST], decisions=[decision], **options)
    study.plan()
    study.end(means)
    return study


def plan_of(study: SearchedStudy) -> Plan:
    planned = study.plan()
    assert planned is not None
    return planned


def test_a_planner_confirms_several_arms_and_a_null_becomes_a_finding_with_an_interval(tmp_path: Path) -> None:
    study = explored(tmp_path, NULL, claims("wide"), claims("fast"))
    planned = plan_of(study)

    assert planned.primary == ("wide", "fast", "long"), "those that are to be better come first"
    assert [arm.name for arm in planned.arms][:4] == ["baseline", "wide", "fast", "long"]
    assert all(arm.name.startswith("without ") for arm in planned.arms[4:])
    assert "share alpha equally" in planned.rationale, "the order stands in the plan before the first run"
    study.end({**MEANS, "without lr": 0.31, "without num_repeat": 0.31})

    judged = study.deps.log.history().analyses[-1]
    outcomes = {item.contrast.arms[0]: item.outcome for item in judged.contrasts[:3]}
    assert outcomes == {"wide": Outcome.SUPPORTED, "fast": Outcome.SUPPORTED, "long": Outcome.SUPPORTED}
    null = next(item for item in judged.contrasts if item.contrast.arms == ("long",))
    found = next(item for item in judged.comparisons if item.arm == "long")
    assert found.verdict is Verdict.NO_BETTER and found.ci_high < 0.2
    assert f"({found.ci_low:+.3f} to {found.ci_high:+.3f})" in null.reason and "margin is 0.2" in null.reason
    stored = study.store.list_findings(study_id=study.deps.study_id, verdict=Verdict.NO_BETTER)
    assert [(item.ci_low, item.ci_high) for item in stored] == [(found.ci_low, found.ci_high)]
    said = answer(gather(study.store, study.deps.study_id))
    assert "wide was confirmed" in said and NULL.statement in said and null.reason.rstrip(".") in said
    assert "fast is better than baseline" in said


def test_a_null_is_confirmed_where_no_arm_explored_better(tmp_path: Path) -> None:
    study = explored(tmp_path, NULL, means={**MEANS, "baseline": 0.7})
    planned = plan_of(study)
    assert (planned.primary, len(planned.arms)) == (("long",), 2), "an arm that is to gain nothing has no ablations"
    study.end({"baseline": 0.3, "long": 0.31})

    said = answer(gather(study.store, study.deps.study_id))
    assert "none was to be confirmed as better" in said and NULL.statement in said
    advice = recommendation(gather(study.store, study.deps.study_id))[0]
    assert advice.startswith("Stay with baseline") and "by 0.2 or more" in advice


def test_ablations_are_tested_behind_their_arm_whatever_becomes_of_the_others(tmp_path: Path) -> None:
    study = explored(tmp_path, claims("wide"), claims("fast"))
    plan_of(study)
    study.end({"baseline": 0.3, "wide": 0.6, "fast": 0.3, "without lr": 0.1, "without num_repeat": 0.1})
    judged = study.deps.log.history().analyses[-1]
    verdicts = {item.arm: item.verdict for item in judged.comparisons}
    assert (verdicts["wide"], verdicts["without lr"]) == (Verdict.KEEP, Verdict.WORSE)
    assert verdicts["fast"] is not Verdict.KEEP


def test_without_a_name_the_leader_alone_is_confirmed_and_an_arm_that_is_out_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    assert plan_of(explored(tmp_path / "one")).primary == ("wide",)
    study = explored(tmp_path, claims("wide"), claims("fast"), means={**MEANS, "wide": None})  # type: ignore[dict-item]
    assert plan_of(study).primary == ("fast",)
    assert study.store.list_events(study.deps.study_id, kind="confirm.left_out", limit=None)


def test_a_budget_leaves_out_ablations_first_and_then_the_last_arms(tmp_path: Path) -> None:
    charter = make_charter(budget=Budget(max_runs=16))
    study = explored(tmp_path, claims("wide"), claims("fast"), NULL, charter=charter)
    planned = plan_of(study)
    assert planned.primary == ("wide", "fast", "long") and len(planned.arms) == 4
    (tmp_path / "less").mkdir()
    less = explored(
        tmp_path / "less", claims("wide"), claims("fast"), NULL, charter=make_charter(budget=Budget(max_runs=13))
    )
    assert plan_of(less).primary == ("wide", "fast")


class Objecting:
    name = "rules"

    def review(self, charter: Any, arm: str) -> tuple[Objection, ...]:
        return (Objection(ObjectionKind.LEAK, "it knows the answers", True),) if arm == "wide" else ()


def test_an_arm_that_is_withdrawn_leaves_the_others_in(tmp_path: Path) -> None:
    study = explored(
        tmp_path,
        claims("wide"),
        NULL,
        reviewer=Objecting(),
        responses={"wide": Response("It does.", is_withdrawn=True)},
    )
    assert plan_of(study).primary == ("long",)


def history_of(study: SearchedStudy) -> History:
    return gather_history(study.deps, study.charter)


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ([claims("baseline")], "baseline cannot be confirmed"),
        ([claims("nobody")], "nobody cannot be confirmed"),
        ([claims("wide"), claims("wide", Relation.NO_BETTER, 0.1)], "named twice"),
        ([claims("wide", against="fast")], "against baseline alone"),
        ([claims("wide", Relation.BEST)], "one of the relations"),
        ([Hypothesis("it is good", "so", ("wide",))], "one of the relations"),
        ([Hypothesis("both", "so", ("wide", "fast"), claims("wide").contrast)], "one arm"),
        ([claims(name) for name in ("wide", "fast", "long", "a", "b")], "4 at most"),
    ],
)
def test_arms_that_cannot_be_confirmed_are_refused_by_name(
    tmp_path: Path, named: list[Hypothesis], message: str
) -> None:
    study = explored(tmp_path)
    with pytest.raises(PlannerError, match=message):
        check_confirmed(study.charter, history_of(study), named)


def test_an_arm_is_confirmed_once(tmp_path: Path) -> None:
    study = explored(tmp_path, claims("wide"))
    plan_of(study)
    study.end({"baseline": 0.3, "wide": 0.6, "without lr": 0.1, "without num_repeat": 0.1})
    with pytest.raises(PlannerError, match="wide cannot be confirmed"):
        check_confirmed(study.charter, history_of(study), [claims("wide")])


def node(name: str, score: float, *parts: ArmPart, share: float = 1.0) -> SearchNode:
    scores = tuple(RungScore(each, 1, score, 0.01) for each in (0.25, 0.5, 1.0) if each <= share)
    return SearchNode(name, ("baseline",), scores=scores, parts=parts)


TREE = SearchTree(
    (
        node("baseline", 0.5),
        node("mixed", 0.9, ArmPart.SETTINGS, ArmPart.AGENT),
        node("rate", 0.6, ArmPart.SETTINGS),
        node("group", 0.7, ArmPart.SETTINGS, share=0.25),
        node("dense", 0.45, ArmPart.REWARD),
    )
)


def test_rules_confirm_the_leader_and_the_best_arm_of_each_kind() -> None:
    charter = make_charter()
    found = usual_hypotheses(charter, History(tree=TREE), of_each_kind=True)
    relations = {item.arms[0]: item.contrast.relation for item in found if item.contrast is not None}
    assert relations == {"mixed": Relation.BETTER, "rate": Relation.BETTER, "dense": Relation.NO_BETTER}
    assert next(iter(relations)) == "mixed"
    assert [item.arms for item in usual_hypotheses(charter, History(tree=TREE), of_each_kind=False)] == [("mixed",)]


def test_rules_confirm_the_leader_alone_where_arms_differ_in_one_part_or_none_led() -> None:
    charter = make_charter()
    one_part = replace(
        charter, asks=replace(charter.asks, scope=replace(charter.asks.scope, parts=(ArmPart.SETTINGS,)))
    )
    assert [item.arms[0] for item in usual_hypotheses(one_part, History(tree=TREE), of_each_kind=True)] == ["mixed"]
    behind = SearchTree((node("baseline", 0.95), *TREE.nodes[1:]))
    assert usual_hypotheses(charter, History(tree=behind), of_each_kind=True) == ()


REWARDED = "from swarm.program import answer_in_turn as agent\n\ndef reward(task, transcript, grade):\n    return 1.0\n"


class WritesRewards:
    """A planner whose arm `long` is the baseline with another reward."""

    def __init__(self, planner: Any) -> None:
        self._planner = planner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._planner, name)

    def write_program(self, charter: Any, arm: Arm, parent: ArmProgram | None) -> ArmProgram:
        program = self._planner.write_program(charter, arm, parent)
        return replace(program, code=REWARDED) if arm.name == "long" else program


def test_the_kind_of_an_arm_is_read_from_its_settings_and_its_program(tmp_path: Path) -> None:
    study = begin_search(
        tmp_path, [make_round([BASELINE, FAST, replace(make_arm("long"), factors={"program": "dense"})])]
    )
    study.deps = replace(study.deps, planner=WritesRewards(study.deps.planner))
    study.plan()
    study.end(MEANS)
    parts = {item.name: item.parts for item in history_of(study).tree.nodes}
    assert parts == {"baseline": (), "fast": (ArmPart.SETTINGS,), "long": (ArmPart.REWARD,)}


FULL = make_round([BASELINE, FAST, WIDE, LONG], **dict.fromkeys(MEANS, 8))


def sized(home: Path, *named: Hypothesis, seeds: int | None = None, is_lost: bool = False) -> SampleSize:
    """The size of a confirmation after its pilot, whose runs have no score if they are lost."""
    home.mkdir()
    charter = make_charter(sample_size=SampleSizeGoal(seeds=seeds), eval_episodes=400)
    decisions = [Decision(Action.REFINE, "on"), Decision(Action.CONFIRM, "enough", confirms=named)]
    study = begin_search(home, [FIRST, FULL], decisions=decisions, charter=charter)
    for _ in range(2):
        study.plan()
        study.end(MEANS)
    plan_of(study)
    for trial in open_trials(study.deps, study.state) if seeds is None else ():
        if is_lost:
            key = f"lost-{trial.seed}"
            run = study.store.claim_run(trial.experiment.id, trial.seed, key, job={"total_steps": 8})
            diagnosis = {"kind": "unscored", "sentence": "lost", "is_retried": False}
            for status in (RunStatus.LAUNCHING, RunStatus.RUNNING):
                study.store.update_run(run.id, status=status)
            study.store.update_run(run.id, status=RunStatus.FAILED, exit_reason="lost", diagnosis=diagnosis)
        else:
            finish_run(study.store, trial.experiment.id, trial.seed, {"base": 0.1, "final": 0.3}, stderr=0.02)
    design(study.deps, study.state)
    size = study.plans[-1].sample_size
    assert size is not None
    return size


def test_the_number_of_runs_follows_from_runs_that_the_study_has_scored(tmp_path: Path) -> None:
    assert "pilot of 3 runs of baseline and its exploring run" in sized(tmp_path / "piloted", claims("wide")).basis
    for name, options in (("lost", {"is_lost": True}), ("fixed", {"seeds": 4})):
        size = sized(tmp_path / name, claims("wide"), **options)  # type: ignore[arg-type]
        assert "exploring runs of 4 arms" in size.basis and "assumption" not in size.basis
        assert size.seed_variance > 0.01, "arms that differ are taken to be runs of one arm, which is on the safe side"


def test_more_arms_and_smaller_margins_take_more_runs_and_one_arm_takes_as_many_as_before(tmp_path: Path) -> None:
    alone, two = sized(tmp_path / "a", claims("wide")), sized(tmp_path / "b", claims("wide"), claims("fast"))
    strict = sized(tmp_path / "c", claims("wide"), claims("fast", Relation.NO_BETTER, 0.05))
    assert (alone.comparisons, two.comparisons) == (1, 2)
    assert alone.power > two.power > strict.power and alone.wanted <= two.wanted < strict.wanted
