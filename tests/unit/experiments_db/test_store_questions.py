"""Questions to an external planner, and calls of tools, as rows."""

from __future__ import annotations

import pytest

from experiments_db import QuestionStatus, StoreConflict, Study


def test_the_same_question_is_one_row_with_the_newest_deadline(store, study: Study) -> None:
    first = store.ask_planner(study.id, "plan", "what next?", deadline=1.0)
    again = store.ask_planner(study.id, "plan", "what next?", deadline=2.0)
    other = store.ask_planner(study.id, "decide", "what next?")

    assert (again.id, again.deadline) == (first.id, 2.0)
    assert [item.status for item in store.list_questions(study.id)] == [QuestionStatus.EXPIRED, QuestionStatus.OPEN]
    assert store.find_waiting_question(study.id) == other


def test_a_question_takes_one_answer_until_it_is_refused(store, study: Study) -> None:
    asked = store.ask_planner(study.id, "plan", "what next?")
    store.answer_question(asked.id, "first")
    with pytest.raises(StoreConflict):
        store.answer_question(asked.id, "second")
    assert store.close_question(asked.id, is_expired=True).status is QuestionStatus.ANSWERED

    refused = store.close_question(asked.id, objection="too short")
    assert (refused.status, refused.objection) == (QuestionStatus.OPEN, "too short")
    store.answer_question(asked.id, "second")
    assert store.close_question(asked.id).status is QuestionStatus.ACCEPTED
    assert store.find_waiting_question(study.id) is None


def test_calls_of_tools_are_no_questions_and_outlive_them(store, study: Study) -> None:
    asked = store.ask_planner(study.id, "plan", "what next?")
    request = store.request_tool(study.id, "try_program", "{}", deadline=1.0)
    store.ask_planner(study.id, "decide", "go on?")

    assert (request.tool, asked.tool) == ("try_program", "")
    assert store.list_tool_requests(study.id) == [request]
    assert request.id not in [item.id for item in store.list_questions(study.id)]
    store.answer_question(request.id, "done")
    assert store.list_tool_requests(study.id) == [] and store.get_question(request.id).answer == "done"
