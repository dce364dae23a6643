"""What a planner that asks in words finds in its prompts; tools that they point to have their own tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from recorded_answers import FIRST_ROUND, RecordedAnswers, arm, explored, framed_search

from experiments_db import (
    Author,
    ExperimentStatus,
    ExperimentStore,
    NotebookEntry,
    NoteKind,
    Operator,
    RunStatus,
    open_store,
)
from researcher.analysis import Analysis
from researcher.charter import Budget, Charter
from researcher.history import History
from researcher.plan import Arm, ArmProgram, ManipulationCheck, ProgramProblem, Speaker, Stage
from researcher.planner.language_model.answers import Unusable
from researcher.planner.language_model.briefing import MAX_NOTEBOOK_CHARS, show_notebook
from researcher.planner.llm import LLMPlanner, StoredArms
from researcher.planner.texts import MAX_CODE_CHARS
from researcher.study.settings import StudySettings

FAILED = "it raised KeyError: 'content'"
PROGRAM = "```python\nx = 1\n```"
ANALYSIS = Analysis(arms=(), comparisons=(), ranking=(), failed={})
LONG_PROGRAM = "".join(f"x{number} = {number}\n" for number in range(3_000))[:MAX_CODE_CHARS]


@pytest.fixture
def charter() -> Charter:
    return make_charter()


@pytest.fixture
def history(charter: Charter) -> History:
    return make_history(charter)


def make_charter() -> Charter:
    charter = framed_search(steps=40, max_runs=40, max_hours=3, attempt_calls=4)
    return replace(charter, eval_every=10)


def make_history(charter: Charter) -> History:
    seen = explored(charter, {charter.baseline: 0.3, "fast": 0.41, "twice": FAILED})
    return replace(
        seen,
        notes=(note(1, NoteKind.REASON, "Higher rates learn sooner."), note(2, NoteKind.LESSON, "0.01 diverges.")),
        earlier_findings=("lr=0.003 against lr=0.001: +0.12 [0.05, 0.19] in study s1, program plain",),
        diagnoses=("fast with seed 0: entropy fell to 0.1",),
        runs_used=3,
    )


def note(number: int, kind: NoteKind, text: str) -> NotebookEntry:
    return NotebookEntry(number, "s", f"k{number}", 0, kind, "llm:recorded", text, 0.0)


def asked_to_explore(charter: Charter, history: History) -> str:
    answers = RecordedAnswers(explore=[{"rationale": "r", "done": True}])
    LLMPlanner(answers).explore(charter, history, ())
    return answers.last


def test_tree_shows_every_arm_with_parent_operator_change_scores_and_cost(charter: Charter, history: History) -> None:
    shown = asked_to_explore(charter, history)

    assert "- fast <- baseline (tune): lr=0.003 | 0.25: 0.41 [0.3512, 0.4688], before 0.1, 41 s of training" in shown
    assert 'twice <- baseline (draft): batch_size=8, program "asks twice" | no score | OUT' in shown
    assert f"twice: {FAILED}" in shown and "Best so far: fast, baseline." in shown


def test_plan_sees_notebook_findings_rules_and_the_budget_of_its_stage(charter: Charter, history: History) -> None:
    shown = asked_to_explore(charter, history)

    assert "[1, reason, llm:recorded] Higher rates learn sooner." in shown and "0.01 diverges." in shown
    assert "+0.12 [0.05, 0.19] in study s1, program plain" in shown and "entropy fell to 0.1" in shown
    assert "below 0.05" in shown and "every 10 steps" in shown and "4 model calls" in shown
    assert "40 runs in all, of which 3 are used" in shown and "Time: 3 h " in shown
    assert "50% for exploration, 35% for the confirmation" in shown and "10 full runs left" in shown
    assert "one of 0.25, 0.5, 1" in shown and "no verdict rests on them" in shown


def test_explored_arms_stand_in_the_tree_alone(charter: Charter, history: History) -> None:
    tried = (note(3, NoteKind.TRIED, "fast: score 0.410"), note(4, NoteKind.FAILED, f"twice: {FAILED}"))
    noted = replace(history, notes=(*history.notes, *tried))
    explored = replace(ANALYSIS, stage=Stage.EXPLORE)
    answers = RecordedAnswers(decide=[{"action": "refine", "reason": "r"}])
    LLMPlanner(answers).decide(charter, explored, noted)

    for shown in (asked_to_explore(charter, noted), answers.last):
        assert shown.count("- fast <- baseline") == 1 and shown.count(FAILED) == 1
        assert "score 0.410" not in shown and "Higher rates learn sooner." in shown
    assert "its scores stand in the tree" in answers.last


def test_author_of_a_program_sees_how_its_transcripts_are_counted(charter: Charter, history: History) -> None:
    check = ManipulationCheck("It asks twice.", pattern="Again", speaker=Speaker.MODEL, at_least=2, share=0.75)
    answers = RecordedAnswers(write_program=[PROGRAM])
    LLMPlanner(answers).write_program(charter, replace(history.plans[0].arms[2], manipulation=check), None)

    wanted = "It asks twice. (an attempt passes if the pattern `Again` occurs at least 2 times in the model's replies"
    assert wanted in answers.last and "75% of the attempts must pass" in answers.last


def test_program_of_any_length_that_a_check_accepts_is_shown_whole(charter: Charter, history: History) -> None:
    answers = RecordedAnswers(write_program=[PROGRAM], repair_program=[PROGRAM])
    changed = replace(history.plans[0].arms[2], manipulation=ManipulationCheck("It asks twice."))

    LLMPlanner(answers).write_program(charter, changed, ArmProgram("fast", LONG_PROGRAM, trusted=False))
    assert len(LONG_PROGRAM) > 30_000 and LONG_PROGRAM in answers.last
    assert "What its transcripts must show: It asks twice." in answers.last
    assert "What it is for: what twice is for" in answers.last and "derived by operator draft" in answers.last
    problem = ProgramProblem("trial", "user: cba\nagent: None\nTraceback: KeyError: 'content'")
    LLMPlanner(answers).repair_program(charter, changed, ArmProgram("twice", LONG_PROGRAM, trusted=False), (problem,))
    assert LONG_PROGRAM in answers.last and "agent: None" in answers.last


@pytest.fixture
def records(tmp_path: Path) -> Iterator[StoredArms]:
    """A study with a sound arm, and one that failed in its trial, in the check and in a run."""
    with open_store(tmp_path / "research.db") as store:
        study = store.create_study("t", planner="llm").id
        sound = store.create_experiment(study, "fast", factors={}, job={})
        store.revise_experiment(sound.id, program_code="fast = 1\n", author=Author.PACKAGE)
        failed = store.create_experiment(study, "twice", factors={}, job={})
        store.revise_experiment(
            failed.id,
            program_code="twice = 2\n",
            author=Author.LANGUAGE_MODEL,
            status=ExperimentStatus.INVALID,
            note="trial: 2 of 4 attempts broke",
        )
        _fail_run(store, failed.id)
        store.record_program_trial(
            study,
            code_digest="d",
            attempts=4,
            broken=2,
            seconds=3.0,
            experiment_id=failed.id,
            error="Traceback: line 3, in agent: KeyError: 'content'",
            transcripts=[
                {"task": "abc", "messages": [{"role": "user", "content": "abc"}], "score": 1.0, "error": None},
                {
                    "task": "xyz",
                    "messages": [{"role": "user", "content": "turn xyz"}],
                    "score": 0.0,
                    "error": "KeyError",
                },
            ],
        )
        yield StoredArms(store, study)


def _fail_run(store: ExperimentStore, experiment_id: str) -> None:
    run = store.claim_run(experiment_id, 0, "key", job={})
    store.update_run(run.id, status=RunStatus.FAILED, exit_reason="the loss was not finite")


def child(name: str, operator: Operator, parent: str, **fields: str) -> Arm:
    return Arm(name, {"program": name}, {}, "mended", parent=parent, operator=operator, **fields)


def test_arm_that_is_mended_comes_with_the_failure_its_transcript_and_traceback(
    charter: Charter, records: StoredArms
) -> None:
    answers = RecordedAnswers(write_program=[PROGRAM])
    parent = records.find_program("twice")

    LLMPlanner(answers, records=records).write_program(charter, child("m", Operator.DEBUG, "twice"), parent)
    for shown in ("twice = 2", "2 of 4 attempts broke", "line 3, in agent: KeyError", "[user] turn xyz", "not finite"):
        assert shown in answers.last
    assert records.describe_failure("fast") == "" == records.describe_failure("nobody")


def test_combination_comes_with_the_programs_of_both_parents(charter: Charter, records: StoredArms) -> None:
    answers = RecordedAnswers(write_program=[PROGRAM])
    both = child("both", Operator.COMBINE, "fast", second_parent="twice")

    LLMPlanner(answers, records=records).write_program(charter, both, records.find_program("fast"))
    assert "fast = 1" in answers.last and "twice = 2" in answers.last


def test_program_that_another_arm_has_is_copied_by_code(charter: Charter, records: StoredArms) -> None:
    answers = RecordedAnswers()
    same = child("same", Operator.TUNE, "twice", program_of="fast")

    written = LLMPlanner(answers, records=records).write_program(charter, same, records.find_program("twice"))
    assert written == ArmProgram("same", "fast = 1\n", trusted=True) and answers.asked == []


def test_notebook_keeps_lessons_and_the_newest_entries_and_counts_the_rest() -> None:
    notes = [
        note(1, NoteKind.LESSON, "The first lesson."),
        *(note(n, NoteKind.TRIED, f"{n} " * 90) for n in range(2, 90)),
    ]
    shown = show_notebook(notes)

    assert len(shown) < MAX_NOTEBOOK_CHARS + 300
    assert "The first lesson." in shown and "89 89" in shown and "2 2 2" not in shown
    kept = shown.count("[1, ")
    assert f"{len(notes) - kept} earlier entries are left out: the tool `notebook` shows them" in shown
    assert show_notebook(()) == "The notebook is empty."


def test_field_that_an_answer_does_not_have_is_named_in_the_refusal(charter: Charter, history: History) -> None:
    answers = RecordedAnswers(explore=[{"rationale": "r", "colour": "red"}])
    with pytest.raises(Unusable, match="colour"):
        LLMPlanner(answers).explore(charter, history, ())


def test_every_question_of_a_study_has_its_notebook_and_its_rules(charter: Charter, history: History) -> None:
    claims = {"claims": [{"claim": "opinion", "text": "Who knows."}]}
    answers = RecordedAnswers(
        explore=[{**FIRST_ROUND, "arms": [arm("a", "tune", settings={"lr": 0.01})]}],
        interpret=[claims],
        decide=[{"action": "refine", "reason": "r"}],
        respond=[{"withdraw": False, "answer": "It is sound."}],
    )
    planner = LLMPlanner(answers)
    planner.explore(charter, history, ())
    planner.interpret(charter, ANALYSIS, history)
    planner.decide(charter, ANALYSIS, history)
    planner.respond(charter, "fast", (), history)

    assert [node for node, _ in answers.asked] == ["explore", "interpret", "decide", "respond"]
    for _, question in answers.asked:
        assert "0.01 diverges." in question and "Code decides this, never a planner." in question


def test_frame_shows_the_limits_and_what_a_person_fixed() -> None:
    answers = RecordedAnswers(frame=[{"question": "Q?", "family": "reverse", "vary": ["lr=1,2"]}])
    request = StudySettings(planner="llm", engine="fake", max_runs=9, max_hours=2, metric="final", steps=12).request(
        "t"
    )
    LLMPlanner(answers).frame(request)
    for shown in ("- most runs of the study: 9", "- most hours: 2.0", "- judged_by: final", "- steps: 12"):
        assert shown in answers.last
    assert request.budget == Budget(max_runs=9, max_wall_s=7200)
