"""The stages of a search: rounds, what ends them, the review of the leader, and the confirmation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from searched_study import BASELINE, FAST, RULES, WIDE, SearchedStudy, begin_search, make_arm, make_charter, make_round

from experiments_db import (
    ArmFailure,
    ExperimentStatus,
    NoteKind,
    Operator,
    Outcome,
    StudyStatus,
    Verdict,
    read_search_arms,
)
from researcher.charter import Budget, Charter, SampleSizeGoal
from researcher.errors import TopicInvalid
from researcher.history import Action, Decision, Objection, ObjectionKind, Response
from researcher.loop.explore import add_exploration, propose_next
from researcher.loop.nodes.design import design, needs_design, pilot_trials
from researcher.loop.nodes.plan import gather_history
from researcher.plan import ManipulationCheck, Plan, Stage
from researcher.planner.designs import default_job
from researcher.planner.language_model.briefing import show_history, show_tree
from researcher.planner.tools.base import ToolRefused
from researcher.record.costs import cost_from_json, cost_to_json
from researcher.record.log import OUT
from researcher.record.scores import find_excluded
from researcher.record.unlike_training import REPLY_LENGTH
from researcher.report.numbers.gather import gather
from researcher.report.recommendation import recommendation
from researcher.search.record import read_tree
from researcher.study.acceptance import ACCEPTED, accept_arms
from researcher.study.ending import REPORTED
from researcher.tree import Expand, Move, SearchTree

FIRST = make_round([BASELINE, FAST, WIDE])
CONFIRM = Decision(Action.CONFIRM, "It is clear.")
MEANS = {"baseline": 0.3, "fast": 0.5, "wide": 0.6}
GRAVE = Objection(ObjectionKind.LEAK, "It knows the answers.", is_grave=True)


@dataclass(frozen=True)
class Objecting:
    """A reviewer that objects to the arms it is given."""

    arms: tuple[str, ...]
    name = "rules"

    def review(self, charter: Charter, arm: str) -> tuple[Objection, ...]:
        return (GRAVE,) if arm in self.arms else ()


def explored(home: Path, *rounds: Plan, **options: Any) -> SearchedStudy:
    """A search that has ended its first round, and whose planner confirms then unless there are more rounds."""
    decisions = options.pop("decisions", [] if rounds else [CONFIRM])
    study = begin_search(home, [FIRST, *rounds], decisions=decisions, **options)
    study.plan()
    study.end(MEANS)
    return study


def test_rounds_are_described_without_a_claim_and_the_leader_is_confirmed(tmp_path: Path) -> None:
    study = begin_search(tmp_path, [FIRST], decisions=[CONFIRM])
    explored = study.plan()
    assert explored is not None and (explored.stage, explored.seeds) == (Stage.EXPLORE, (0,))
    study.end(MEANS)
    first = study.deps.log.history().analyses[0]
    assert (first.ranking, first.comparisons, first.stage) == (("wide", "fast", "baseline"), (), Stage.EXPLORE)
    assert study.store.list_findings(study_id=study.deps.study_id) == []

    claim = study.plan()

    assert claim is not None and (claim.stage, claim.claim, claim.primary) == (Stage.CLAIM, 0, ("wide",))
    assert [arm.name for arm in claim.arms] == ["baseline", "wide", "without lr", "without num_repeat"]
    assert min(claim.seeds) == 1 and len(claim.seeds) == 3
    assert study.arm("without lr").operator is Operator.ABLATE
    assert study.arm("without lr").program_code == study.arm("wide").program_code
    study.end({**MEANS, "without lr": 0.31, "without num_repeat": 0.5})
    judged = study.deps.log.history().analyses[-1]
    assert {item.arm: item.verdict for item in judged.comparisons}["wide"] is Verdict.KEEP
    assert [item.outcome for item in judged.contrasts] == [Outcome.SUPPORTED] * 3
    assert all(0 not in item.seeds for item in judged.comparisons), "no verdict rests on an exploring run"


def test_secondary_arms_are_not_decided_where_the_primary_one_is_not_kept(tmp_path: Path) -> None:
    study = explored(tmp_path)
    study.plan()

    study.end({"baseline": 0.3, "wide": 0.302, "without lr": 0.9, "without num_repeat": 0.9})

    judged = study.deps.log.history().analyses[-1]
    assert {item.verdict for item in judged.comparisons} <= {Verdict.INCONCLUSIVE, Verdict.NO_BETTER}
    assert all(item.outcome is not Outcome.SUPPORTED for item in judged.contrasts)


def test_study_ends_without_a_confirmation_if_no_arm_explored_better(tmp_path: Path) -> None:
    study = begin_search(tmp_path, [FIRST], decisions=[CONFIRM])
    study.plan()
    study.end({**MEANS, "baseline": 0.7})

    assert study.plan() is None
    assert study.store.list_events(study.deps.study_id, kind="explore.nothing_better", limit=None)


def test_arm_whose_code_did_the_work_of_the_model_is_out_without_a_review(tmp_path: Path) -> None:
    reviewer = Objecting(())
    study = begin_search(tmp_path, [FIRST], decisions=[CONFIRM], reviewer=reviewer)
    study.plan()
    study.train(MEANS, by_code=["wide"])
    study.end(MEANS)

    claim = study.plan()

    assert claim is not None and claim.primary == ("fast",)
    reason = find_excluded(study.store, study.deps.study_id)["wide"]
    assert "tells the model about the answer: in 9 of 20 attempts" in reason
    shown = {arm.experiment.name: arm for arm in read_search_arms(study.store, study.deps.study_id)}
    assert (shown["wide"].failure, shown["wide"].reason) == (ArmFailure.DISQUALIFIED, reason)
    assert study.store.list_reviews(study.deps.study_id)[0].experiment_id == study.arm("fast").id


def test_arm_that_a_person_accepts_stays_in_and_the_report_says_so(tmp_path: Path) -> None:
    study = begin_search(tmp_path, [FIRST], decisions=[CONFIRM])
    study.plan()
    study.train(MEANS, by_code=["wide"])
    store, study_id = study.store, study.deps.study_id
    with pytest.raises(TopicInvalid, match="no such arm; its arms are baseline, fast, wide"):
        accept_arms(store, store.get_study(study_id), ["wise"])
    for _ in range(2):
        accept_arms(store, store.get_study(study_id), ["wide"])
    study.end(MEANS)

    assert find_excluded(store, study_id) == {} and len(store.list_events(study_id, kind=ACCEPTED)) == 1
    claim = study.plan()
    assert claim is not None and claim.primary == ("wide",)
    study.train(MEANS, by_code=["wide"])
    facts = gather(store, study_id)
    (said,) = [line for line in recommendation(facts) if "decision of a person" in line]
    assert said.startswith("wide is in") and "tells the model about the answer: in 9 of 20 attempts" in said
    store.append_event(study_id, REPORTED, "The report is written.")
    store.set_study_status(study_id, StudyStatus.FINISHED, "done")
    with pytest.raises(TopicInvalid, match="start another study with --accept"):
        accept_arms(store, store.get_study(study_id), ["fast"])


def test_arm_that_votes_in_evaluation_alone_is_out_before_the_confirmation_and_its_planner_hears_why(
    tmp_path: Path,
) -> None:
    study = begin_search(tmp_path, [FIRST], decisions=[CONFIRM])
    study.plan()
    study.train(MEANS, votes=["wide"])
    study.end(MEANS)

    history = gather_history(study.deps, study.charter)
    claim = study.plan()

    assert claim is not None and claim.primary == ("fast",)
    reason = "its agent takes 3.0 calls an attempt in evaluation and 1.0 in training"
    assert find_excluded(study.store, study.deps.study_id) == {"wide": reason}
    assert f"wide: {reason}" in show_tree(history)
    assert "wide: training 1.0 calls, 10.0 prompt tokens" in show_history(history, "in mean")
    (event,) = study.store.list_events(study.deps.study_id, kind=OUT, limit=None)
    assert event.message == f"wide is out: {reason}"
    shown = {arm.experiment.name: arm for arm in read_search_arms(study.store, study.deps.study_id)}
    assert (shown["wide"].failure, shown["wide"].reason) == (ArmFailure.DISQUALIFIED, reason)


def test_arm_whose_replies_grew_in_training_is_not_out_for_their_length(tmp_path: Path) -> None:
    study = begin_search(tmp_path, [FIRST])
    study.plan()
    study.train(MEANS, votes=["fast", "wide"])
    grown = [20.0 + 4 * step for step in range(20)]
    for name in ("fast", "wide"):
        (run,) = study.store.list_runs(experiment_id=study.arm(name).id)
        taught = replace(cost_from_json(run.training_cost or {}), calls=3.0, prompt_tokens=17.0, sampled_tokens=9.0)
        study.store.update_run(run.id, training_cost=cost_to_json(taught))
        if name == "wide":
            study.store.record_metrics(run.id, {step: {REPLY_LENGTH: value} for step, value in enumerate(grown)})
    assert find_excluded(study.store, study.deps.study_id).keys() == {"fast"}


def test_leader_that_the_planner_withdraws_is_out_and_the_next_one_is_reviewed(tmp_path: Path) -> None:
    withdrawn = Response("It does.", is_withdrawn=True)
    reviewer = Objecting(("wide",))
    study = explored(tmp_path, responses={"wide": withdrawn}, reviewer=reviewer)

    claim = study.plan()

    assert claim is not None and claim.primary == ("fast",)
    assert find_excluded(study.store, study.deps.study_id) == {"wide": "withdrawn after a review: It does."}
    reviews = {study.arm("wide").id: True, study.arm("fast").id: False}
    assert {item.experiment_id: item.is_withdrawn for item in study.store.list_reviews(study.deps.study_id)} == reviews
    (note,) = study.store.list_notes(study.deps.study_id, kind=NoteKind.OBJECTION)
    assert "It knows the answers." in note.text and note.author == "rules"

    stays = {"wide": Response("It does not.", is_withdrawn=False)}
    other = explored(tmp_path / "other", responses=stays, reviewer=reviewer)
    claim = other.plan()
    assert claim is not None and claim.primary == ("wide",)
    (review,) = other.store.list_reviews(other.deps.study_id)
    assert (review.response, review.is_withdrawn, len(review.objections)) == ("It does not.", False, 1)


def test_baseline_is_trained_as_far_as_the_arm_that_goes_furthest(tmp_path: Path) -> None:
    second = make_round([WIDE], wide=4)
    study = explored(tmp_path, second)

    promoted = study.plan()

    assert promoted is not None and promoted.rungs == {"baseline": 4, "wide": 4}
    study.end({"baseline": 0.35, "wide": 0.7})
    tree = read_tree(study.store, study.deps.study_id, study.charter)
    assert {node.name: [score.share for score in node.scores] for node in tree.nodes} == {
        "baseline": [0.25, 0.5],
        "fast": [0.25],
        "wide": [0.25, 0.5],
    }
    assert tree.spent == 1.25 and [node.name for node in tree.ranked()] == ["wide", "baseline", "fast"]


def test_policy_chooses_the_moves_and_its_end_is_that_of_the_exploration(tmp_path: Path) -> None:
    seen: list[tuple[float, int]] = []

    def choose(tree: SearchTree, rungs: tuple[float, ...], left: float, width: int) -> tuple[Move, ...]:
        seen.append((left, width))
        return () if len(tree.nodes) > 1 else (Expand((), Operator.DRAFT), Expand((), Operator.DRAFT))

    study = explored(tmp_path, choose=choose, decisions=[])

    claim = study.plan()

    assert claim is not None and claim.stage is Stage.CLAIM
    assert seen == [(6.0 - 0.75, 2), (6.0 - 0.75 - 0.75, 2)], "what the baseline needs up to the last rung is kept"


@pytest.mark.parametrize(
    ("budget", "runs", "reason", "most"),
    [
        (Budget(), 2.6, "full runs", 5),
        (Budget(max_runs=8), 6.0, "full runs", 3),
        (Budget(max_wall_s=100.0), 6.0, "wall", 1),
    ],
)
def test_exploration_ends_with_its_part_of_the_budget(
    tmp_path: Path, budget: Budget, runs: float, reason: str, most: int
) -> None:
    others = [make_round([make_arm(f"arm {number}", lr=number * 1e-4)]) for number in range(1, 9)]
    charter, clock = make_charter(search=replace(RULES, runs=runs), budget=budget), [0.0]
    study = begin_search(tmp_path, [FIRST, *others], charter=charter, clock=lambda: clock[0])
    while (planned := study.plan()) is not None and planned.stage is Stage.EXPLORE:
        clock[0] += 60
        study.end(dict.fromkeys((arm.name for arm in planned.arms), 0.5))

    (event,) = study.store.list_events(study.deps.study_id, kind="explore.ended", limit=None)
    assert reason in event.message
    assert sum(plan.stage is Stage.EXPLORE for plan in study.plans) == most


def test_reserve_pays_for_another_exploration_after_the_first_confirmation(tmp_path: Path) -> None:
    third = make_round([make_arm("third", lr=5e-3)])
    charter = make_charter(search=replace(RULES, runs=2.0))
    study = explored(tmp_path, third, charter=charter, decisions=[CONFIRM])
    study.plan()
    study.end({**MEANS, "without lr": 0.3, "without num_repeat": 0.3})

    again = study.plan()
    assert again is not None and again.stage is Stage.EXPLORE and again.seeds == (0,)
    study.end({"third": 0.9})
    kept = study.deps.log.history().analyses[-1]
    assert [item.arm for item in kept.comparisons if item.verdict is Verdict.KEEP] == ["wide"]

    claim = study.plan()
    assert claim is not None and (claim.claim, claim.primary) == (1, ("third",))
    assert min(claim.seeds) == 4
    study.end({"baseline": 0.3, "third": 0.9})
    assert study.plan() is None, "no alpha is left for a third confirmation"


def test_second_confirmation_has_a_size_of_its_own_share_of_alpha_by_the_runs_before_it(tmp_path: Path) -> None:
    goal = SampleSizeGoal(target_effect=0.02, max_seeds=200)
    charter = make_charter(search=replace(RULES, runs=2.0), sample_size=goal)
    study = explored(tmp_path, make_round([make_arm("third", lr=5e-3)]), charter=charter, decisions=[CONFIRM])
    study.plan()
    study.end({**MEANS, "without lr": 0.3, "without num_repeat": 0.3})
    study.plan()
    study.end({"third": 0.9})

    claim = study.plan()
    assert claim is not None and (claim.claim, claim.sample_size) == (1, None)
    assert pilot_trials(study.deps, charter, claim) == [], "the runs before it are its pilot"
    design(study.deps, study.state)
    sized = study.plans[-1]
    assert sized.sample_size is not None and len(sized.seeds) == sized.sample_size.seeds
    assert sized.sample_size.basis == "the 3 runs of baseline"
    assert needs_design(charter, claim) and not needs_design(charter, sized)


def test_round_that_cannot_be_carried_out_ends_the_exploration_or_the_study(tmp_path: Path) -> None:
    unknown = make_round([make_arm("third", parent="nobody", lr=5e-3)])
    study = explored(tmp_path, unknown)

    claim = study.plan()

    assert claim is not None and claim.stage is Stage.CLAIM
    failures = study.store.list_events(study.deps.study_id, kind="planner.failed", limit=None)
    assert len(failures) == 2 and "nobody" in failures[0].message


def test_arms_that_failed_are_out_with_their_reasons(tmp_path: Path) -> None:
    rejected = make_arm("rejected", lr=5e-3)
    check = ManipulationCheck("it asks twice", pattern="really", share=0.5)
    false = replace(make_arm("false", lr=7e-3), manipulation=check)
    study = begin_search(tmp_path, [make_round([BASELINE, FAST, WIDE, rejected, false])])
    study.plan()
    study.store.revise_experiment(study.arm("rejected").id, status=ExperimentStatus.INVALID, note="a bad job")
    study.train({"baseline": 0.3, "fast": 0.5, "false": 0.9}, {"false": (1, 4)})

    study.end({})

    tree = read_tree(study.store, study.deps.study_id, study.charter)
    assert {node.name: node.failure for node in tree.nodes if node.failure} == {
        "wide": "it crashed",
        "rejected": "a bad job",
        "false": "it is not what it claims: in 1 of 4 transcripts it is true that 'it asks twice'",
    }
    assert study.deps.log.history().analyses[-1].ranking == ("fast", "baseline")


def test_notebook_tells_what_was_planned_tried_and_decided(tmp_path: Path) -> None:
    study = begin_search(tmp_path, [FIRST], decisions=[CONFIRM])
    study.plan()
    study.end({"baseline": 0.3, "wide": 0.6})
    study.plan()
    study.end({"baseline": 0.3, "wide": 0.6, "without lr": 0.3, "without num_repeat": 0.6})

    history = add_exploration(study.deps, study.charter, study.deps.log.history())
    by_kind: dict[NoteKind, list[str]] = {}
    for note in history.notes:
        by_kind.setdefault(note.kind, []).append(note.text)
    assert by_kind[NoteKind.REASON][:2] == ["a round", "confirm: It is clear."]
    assert any("wide" in text and "25% of its training" in text for text in by_kind[NoteKind.TRIED])
    assert any(text.startswith("wide: 0.601 over 3 seeds, +0.300") for text in by_kind[NoteKind.TRIED])
    assert len(by_kind[NoteKind.HYPOTHESIS]) == len(by_kind[NoteKind.OUTCOME]) == 3
    assert history.runs_left == pytest.approx(7.2 - 0.75 - 0.75), "the reserve is added after a confirmation"


def test_a_planner_that_looks_is_proposed_settings_that_no_arm_has(tmp_path: Path) -> None:
    charter = replace(make_charter(), job=default_job("reverse", steps=None, base={}))
    study = explored(tmp_path, charter=charter)

    proposed = propose_next(study.deps.log, Operator.TUNE, ("wide",))

    known = [node.levels for node in read_tree(study.store, study.deps.study_id, study.deps.charter()).nodes]
    assert proposed and proposed not in known
    with pytest.raises(ToolRefused, match="no arm nobody; there are: baseline, fast, wide"):
        propose_next(study.deps.log, Operator.IMPROVE, ("nobody",))
    study = begin_search(tmp_path / "compare", charter=replace(make_charter(), search=None))
    with pytest.raises(ToolRefused, match="nothing to propose"):
        propose_next(study.deps.log, Operator.DRAFT, ())
