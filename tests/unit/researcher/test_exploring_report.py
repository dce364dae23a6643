"""The report of an exploring study: what was explored stands in it, and no claim rests on that."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from exploring_study import (
    BASELINE,
    CRASHED,
    MENDED,
    PRETENDER,
    REJECTED,
    WINNER,
    WITHDRAWN,
    WITHOUT_AGENT,
    WITHOUT_LR,
    ExploringStudy,
    complete_study,
)
from markdown_it import MarkdownIt
from report_contradictions import Page, Texts, find_contradictions
from simulated_study import reports_without_images

from experiments_db import ArmFailure, ExperimentStore, NoteKind, Outcome, open_store
from researcher.claims import Claim, ClaimKind
from researcher.loop.nodes.report import write_report
from researcher.record.scores import read_scores
from researcher.report.advice import next_steps
from researcher.report.answer import answer
from researcher.report.claims import check_claim
from researcher.report.clauses import NOT_MEASURED, list_clauses
from researcher.report.numbers.facts import StudyFacts
from researcher.report.numbers.gather import gather
from researcher.report.numbers.planner_record import MOST_NOTES
from researcher.report.recommendation import recommendation
from researcher.report.summary import summarize
from researcher.report.write import ReportPaths, build_report
from researcher.scope import ArmPart, Scope
from researcher.verification.record import StudyRecord
from researcher.verification.report_check import check_report


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExperimentStore]:
    with open_store(tmp_path_factory.mktemp("exploring") / "research.db") as opened:
        yield opened


@pytest.fixture(scope="module")
def study(store: ExperimentStore, tmp_path_factory: pytest.TempPathFactory) -> ExploringStudy:
    return complete_study(store, tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def facts(study: ExploringStudy) -> StudyFacts:
    return gather(study.store, study.study_id)


@pytest.fixture(scope="module")
def paths(study: ExploringStudy, tmp_path_factory: pytest.TempPathFactory) -> ReportPaths:
    return build_report(study.store, study.study_id, tmp_path_factory.mktemp("report"), has_images=False)


@pytest.fixture
def exploring_only(tmp_path: Path) -> Iterator[ExploringStudy]:
    """A study at work on its second round."""
    with open_store(tmp_path / "research.db") as opened:
        study = ExploringStudy(opened, tmp_path)
        study.explore(2)
        yield study


def claimed_by_sql(study: ExploringStudy, split: str = "validation", phase: str = "final") -> dict[str, float]:
    """The mean score of each arm over its full runs."""
    query = (
        "select x.name, avg(v.mean) from evaluations v join runs r on r.id = v.run_id"
        " join experiments x on x.id = r.experiment_id where r.study_id = ? and r.rung = 0 and v.phase = ?"
        " and v.split = ? group by x.name"
    )
    with closing(sqlite3.connect(study.store.location)) as database:
        return dict(database.execute(query, (study.study_id, phase, split)).fetchall())


def test_means_and_verdicts_are_those_of_full_runs_alone(study: ExploringStudy, facts: StudyFacts) -> None:
    means = claimed_by_sql(study)
    assert {arm.name: arm.search.mean for arm in facts.arms} == pytest.approx(means)
    assert {arm.name for arm in facts.arms} == {BASELINE, WINNER, WITHOUT_LR, WITHOUT_AGENT}
    assert not any(item.run.rung for item in facts.runs)
    assert facts.counts.begun == facts.counts.counting == 12


def test_other_exploring_scores_change_no_claim(study: ExploringStudy, facts: StudyFacts, tmp_path: Path) -> None:
    with (
        closing(sqlite3.connect(study.store.location)) as original,
        closing(sqlite3.connect(tmp_path / "research.db")) as database,
        database,
    ):
        original.backup(database)
        database.execute("update evaluations set mean = 0.01 where run_id in (select id from runs where rung > 0)")
    with open_store(tmp_path / "research.db") as changed:
        other = gather(changed, study.study_id)
        scores = read_scores(changed, study.study_id, other.charter).runs
    assert answer(other) == answer(facts)
    assert [arm.comparison for arm in other.arms] == [arm.comparison for arm in facts.arms]
    assert [arm.counts for arm in other.arms] == [arm.counts for arm in facts.arms]
    assert scores == read_scores(study.store, study.study_id, facts.charter).runs
    assert other.exploration != facts.exploration


def test_short_runs_are_counted_apart(study: ExploringStudy, facts: StudyFacts) -> None:
    assert facts.exploration is not None
    short = [run for run in study.store.list_runs(study_id=study.study_id) if run.rung]
    assert facts.exploration.short_runs == len(short) == 16
    said = summarize(study.store, study.study_id).runs
    assert said.startswith("12 runs begun") and "16 short runs" in said


def test_every_arm_that_is_out_has_its_reason(facts: StudyFacts) -> None:
    assert facts.exploration is not None
    assert {arm.name: arm.failure for arm in facts.exploration.tree if arm.failure} == {
        REJECTED: ArmFailure.REJECTED,
        CRASHED: ArmFailure.CRASHED,
        PRETENDER: ArmFailure.NOT_AS_CLAIMED,
        WITHDRAWN: ArmFailure.WITHDRAWN,
    }
    assert all(arm.reason for arm in facts.exploration.tree if arm.failure)
    leaders = facts.exploration.leaders(1.0)
    assert leaders[0].name == WINNER
    assert {WITHDRAWN, PRETENDER}.isdisjoint(arm.name for arm in leaders)


def test_children_stand_to_the_right_of_their_parents_and_no_two_arms_in_one_place(facts: StudyFacts) -> None:
    assert facts.exploration is not None
    tree = {arm.name: arm for arm in facts.exploration.tree}
    assert all(arm.depth > tree[parent].depth for arm in tree.values() for parent in arm.parents)
    assert len({(arm.depth, arm.row) for arm in tree.values()}) == len(tree)
    assert tree[MENDED].parents == (REJECTED,) and tree[WINNER].parents == ("scratchpad", "lr=0.003")


def test_ablations_have_the_difference_of_their_runs_and_the_judges_outcome(
    study: ExploringStudy, facts: StudyFacts, paths: ReportPaths
) -> None:
    means = claimed_by_sql(study)
    assert facts.confirmation is not None and facts.confirmation.winner == WINNER
    found = {item.name: item for item in facts.confirmation.ablations}
    for name, item in found.items():
        assert item.difference is not None
        assert item.difference.difference == pytest.approx(means[WINNER] - means[name])
    assert found[WITHOUT_LR].outcome is Outcome.SUPPORTED and found[WITHOUT_AGENT].outcome is Outcome.UNDECIDED
    rows = {row["without a part"]: row for row in Page(paths.html.read_text()).sections["The winner"].tables[1]}
    assert rows[WITHOUT_LR]["outcome"] == "the gain needs this part"
    assert rows[WITHOUT_AGENT]["outcome"] == "not decided"


def test_an_arm_that_lacks_a_part_is_recommended_only_where_the_parts_were_asked_for(tmp_path: Path) -> None:
    with open_store(tmp_path / "research.db") as store:
        study = complete_study(store, tmp_path, true={WITHOUT_AGENT: 0.95})
        facts = gather(store, study.study_id)
        assert facts.ranked[0].name == WITHOUT_AGENT
        said = summarize(store, study.study_id)
    assert said.recommendation[0].startswith(f"Use {WITHOUT_AGENT}: ")
    assert f"in place of {WINNER}" in said.recommendation[1] and WITHOUT_LR in said.recommendation[1]
    assert f"Of 10 explored arms, {WINNER} was confirmed" in said.answer
    assert any(WITHOUT_AGENT in step for step in next_steps(facts))
    of_agents = replace(facts.charter.asks, scope=Scope.of([ArmPart.AGENT]))
    of_one_part = replace(facts, charter=replace(facts.charter, asks=of_agents))
    assert recommendation(of_one_part)[0].startswith(f"Use {WINNER}: ")


def test_an_arm_that_is_not_what_it_claims_is_named_before_any_verdict_and_has_none(tmp_path: Path) -> None:
    with open_store(tmp_path / "research.db") as store:
        study = complete_study(store, tmp_path, pretending=frozenset({PRETENDER, WINNER}))
        facts, said = gather(store, study.study_id), summarize(store, study.study_id)
    winner = facts.winner
    assert winner is not None and winner.verdict == "disqualified" and not winner.has_rank
    assert said.answer.startswith(f"{WINNER} is not what it claims to be, so it has no verdict: ")
    assert " is better than " not in said.answer
    assert not any(f"Use {WINNER}" in sentence for sentence in said.recommendation)


def test_every_part_of_the_question_is_answered_or_said_not_to_be_measured(
    facts: StudyFacts, exploring_only: ExploringStudy
) -> None:
    clauses = {clause.asked: clause for clause in list_clauses(facts)}
    assert clauses["the best that the search can find"].arm == WINNER
    assert clauses["the best that the search can find"].test is not None
    assert clauses["the size of the model"].result.startswith(NOT_MEASURED)
    assert f"{WINNER} is better than {BASELINE}." in clauses
    early = list_clauses(gather(exploring_only.store, exploring_only.study_id))
    assert all(clause.result.startswith(NOT_MEASURED) and not clause.arm for clause in early)
    assert any("2 arms explored it" in clause.result for clause in early if clause.asked == "learning rate")


def test_a_study_that_still_explores_claims_nothing(exploring_only: ExploringStudy, tmp_path: Path) -> None:
    said = summarize(exploring_only.store, exploring_only.study_id)
    assert said.answer.startswith("No answer yet: none of 9 explored arms") and said.verdicts == ()
    paths = build_report(exploring_only.store, exploring_only.study_id, tmp_path / "report", has_images=False)
    assert "search-tree" in {path.stem for path in paths.data}
    page = Page(paths.html.read_text())
    assert page.sections["Search"].tables and not page.sections["Arms"].table("rank")


def test_claims_of_a_round_are_checked_against_its_exploring_scores(study: ExploringStudy, facts: StudyFacts) -> None:
    then = facts.at_decisions[0]
    run = next(run for run in study.store.list_runs(experiment_id=study.arm("scratchpad").id) if run.rung == 2)
    score = study.store.find_evaluation(run.id, "final", "validation")
    assert score is not None
    true = check_claim(Claim(ClaimKind.MEAN, arm="scratchpad", number=score.mean), then)
    assert true.sentence.endswith("in exploration, over 1 run.")
    later = check_claim(Claim(ClaimKind.MEAN, arm=WINNER, number=0.8), then)
    assert not later.sentence and later.record.startswith("there is no arm")


def test_page_and_terminal_tell_the_same(study: ExploringStudy, paths: ReportPaths) -> None:
    said = summarize(study.store, study.study_id)
    texts = Texts(
        paths.html.read_text(),
        said.answer,
        said.verdicts,
        said.runs,
        said.recommendation,
        is_single=True,
    )
    assert find_contradictions(texts) == []
    assert find_contradictions(replace(texts, answer=f"Not so: {texts.answer}"))


def test_a_report_that_is_written_anew_from_raw_rewards_is_the_same(study: ExploringStudy) -> None:
    with reports_without_images():
        write_report(study.deps.log, study.home / "studies" / study.study_id)
    files, checked = check_report(StudyRecord(study.store, study.study_id, study.home))
    assert files.mismatches == checked.mismatches == [] and checked.checked > 5


def test_a_question_that_waits_stands_above_everything_else(paths: ReportPaths) -> None:
    page = Page(paths.html.read_text())
    assert any(line.startswith("Waits for an answer: question 2 (decide)") for line in page.sections[""].lines)


def test_words_of_planners_reviewers_and_programs_are_only_text(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script> | **bold** [x](http://evil.example) `code`"
    with open_store(tmp_path / "research.db") as store:
        study = ExploringStudy(store, tmp_path)
        study.explore(1)
        arm = study.arm("scratchpad").id
        store.write_note(study.study_id, "x", NoteKind.LESSON, hostile, iteration=0, author=hostile)
        objection = {"kind": hostile, "sentence": hostile, "is_grave": True}
        review = store.record_review(study.study_id, 1, arm, reviewer=hostile, objections=[objection])
        store.respond_to_review(review.id, hostile, is_withdrawn=True)
        store.record_program_trial(
            study.study_id, code_digest="d", attempts=1, broken=1, seconds=1.0, experiment_id=arm, error=hostile
        )
        store.ask_planner(study.study_id, hostile, hostile)
        paths = build_report(store, study.study_id, tmp_path / "report", has_images=False)
    rendered = MarkdownIt("commonmark").enable("table").render(paths.markdown.read_text())
    for text in (paths.html.read_text(), rendered):
        assert "<script" not in text and 'href="http://evil' not in text and "<strong>bold" not in text
        assert text.count("alert(1)") >= 8


def test_a_long_notebook_keeps_lessons_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    with open_store(tmp_path / "research.db") as store:
        study = ExploringStudy(store, tmp_path)
        store.write_note(study.study_id, "first", NoteKind.LESSON, "Keep this.", iteration=0, author="llm:m")
        for number in range(MOST_NOTES + 20):
            store.write_note(study.study_id, str(number), NoteKind.TRIED, f"try {number}", iteration=0, author="study")
        paths = build_report(store, study.study_id, tmp_path / "report", has_images=False)
    section = Page(paths.html.read_text()).sections["Notebook"]
    assert "21 older entries are left out" in section.lines[0]
    assert len(section.lines) == 1 + MOST_NOTES
    assert "Keep this." in section.text and f"try {MOST_NOTES + 19}" in section.text
    assert section.lines[2].endswith("try 21")


def test_the_picture_has_each_arm_and_its_scores_as_data(facts: StudyFacts) -> None:
    from researcher.report.drawing.pictures import draw_picture
    from researcher.report.drawing.search_figure import draw_search_tree

    assert facts.exploration is not None
    picture = draw_picture(draw_search_tree(facts, facts.exploration), is_main=False)
    rows = [line.split(",") for line in picture.csv.splitlines()[1:]]
    assert {row[0] for row in rows} == {arm.name for arm in facts.exploration.tree}
    assert sum(row[8] != "" for row in rows) == 15
    assert picture.png.startswith(b"\x89PNG")
