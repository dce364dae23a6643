"""Questions to an external planner: asked once, checked, and waited for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from experiments_db import ExperimentStore, PlannerQuestion, QuestionStatus, StoreConflict, StudyStatus
from researcher.errors import AnswerOverdue, AnswerRefused, ResearchError, TopicInvalid
from researcher.execution.background import Drained
from researcher.loop.settings_check import check_study
from researcher.planner.external.question_queue import QuestionQueue
from researcher.planner.external.requests import MAX_ANSWER_CHARS, await_question, call_in_study, submit_answer
from researcher.planner.language_model.answers import Unusable
from researcher.planner.tools.base import PlannerTool, ToolArguments, Toolbox, ToolRefused
from researcher.study.settings import read_settings

QUESTION = "# plan: what next?"


def parse_number(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise Unusable(f"{text.strip()!r} is no number") from error


class Study:
    """A study with an external planner. While it waits, one action happens outside for each of its looks."""

    def __init__(self, store: ExperimentStore) -> None:
        self.store = store
        self.id = store.create_study("a topic", planner="external").id
        self.events: list[str] = []

    def ask(self, *actions: Callable[[], object], node: str = "plan", text: str = QUESTION, **options: Any) -> int:
        left = list(actions)

        def sleep(_: float) -> None:
            if not left:
                raise Drained
            left.pop(0)()

        queue = QuestionQueue(
            self.store, self.id, sleep=sleep, report=lambda kind, _: self.events.append(kind), **options
        )
        return queue.ask(node, text, parse_number)

    def answer(self, text: str) -> Callable[[], object]:
        return lambda: self.store.answer_question(self.open.id, text)

    def pause(self) -> Any:
        return self.store.set_study_status(self.id, StudyStatus.PAUSED, "paused on request")

    @property
    def open(self) -> PlannerQuestion:
        found = self.store.find_waiting_question(self.id)
        assert found is not None
        return found

    @property
    def questions(self) -> list[PlannerQuestion]:
        return self.store.list_questions(self.id)

    @property
    def statuses(self) -> list[QuestionStatus]:
        return [item.status for item in self.questions]


@pytest.fixture
def study(store: ExperimentStore) -> Study:
    return Study(store)


def nothing() -> None:
    pass


def test_an_answer_is_parsed_and_accepted(study: Study) -> None:
    assert study.ask(nothing, study.answer("7")) == 7

    [question] = study.questions
    assert question.status is QuestionStatus.ACCEPTED and QUESTION in question.prompt
    assert study.events == ["planner.asked", "planner.answered"]


def test_a_process_that_goes_on_asks_its_open_question_again_and_keeps_accepted_answers(study: Study) -> None:
    def text(mark: str) -> str:
        return f"{QUESTION}\n\nBEGIN DATA {mark}\nforeign\nEND DATA {mark}"

    assert study.ask(study.answer("1"), node="interpret", text=text("aaaa")) == 1
    with pytest.raises(Drained):
        study.ask(text=text("bbbb"))
    number = study.open.id

    assert study.ask(node="interpret", text=text("cccc")) == 1
    assert study.ask(study.answer("2"), text=text("dddd"), deadline_s=600.0) == 2

    assert study.statuses == [QuestionStatus.ACCEPTED] * 2
    assert study.store.get_question(number).deadline is not None


def test_an_answer_that_came_while_no_process_worked_is_read_when_one_does(study: Study) -> None:
    with pytest.raises(Drained):
        study.ask()

    stored = submit_answer(study.store, study.pause(), "7", number=None, wait_s=60.0)

    assert stored.status is QuestionStatus.ANSWERED
    assert study.ask() == 7


def test_another_question_takes_the_place_of_one_that_is_no_longer_asked(study: Study) -> None:
    for text in ("# plan: the first", "# plan: the second"):
        with pytest.raises(Drained):
            study.ask(text=text)

    assert study.statuses == [QuestionStatus.EXPIRED, QuestionStatus.OPEN]


def test_a_question_without_an_answer_ends_at_its_deadline_and_is_asked_anew(study: Study) -> None:
    with pytest.raises(AnswerOverdue):
        study.ask(nothing, deadline_s=-1.0)

    assert study.ask(study.answer("7")) == 7
    assert study.statuses == [QuestionStatus.EXPIRED, QuestionStatus.ACCEPTED]


def test_of_two_answers_at_once_one_counts_and_the_other_is_a_conflict(study: Study) -> None:
    def answer_twice() -> None:
        number = study.open.id
        study.store.answer_question(number, "1")
        with pytest.raises(StoreConflict):
            study.store.answer_question(number, "2")

    assert study.ask(answer_twice) == 1


class Doubled(ToolArguments):
    number: int


def double(given: Doubled) -> str:
    if given.number < 0:
        raise ToolRefused("no number below 0")
    return str(2 * given.number)


def test_tools_that_need_the_study_run_while_it_waits(study: Study) -> None:
    store = study.store

    def broken(_: ToolArguments) -> str:
        raise RuntimeError("out of order")

    toolbox = Toolbox(
        [PlannerTool("double", "Doubles.", Doubled, double), PlannerTool("broken", "Fails.", ToolArguments, broken)]
    )
    calls = [("double", '{"number": 21}'), ("double", '{"number": -1}'), ("double", "{}"), ("broken", "{}")]
    late = time.time() + 600

    def request() -> None:
        for tool, arguments in calls:
            store.request_tool(study.id, tool, arguments, deadline=late)
        store.request_tool(study.id, "double", '{"number": 1}', deadline=time.time() - 1)

    assert study.ask(request, study.answer("7"), toolbox=toolbox) == 7

    asked = study.questions[-1].id
    answers = [store.get_question(asked + place) for place in range(1, 6)]
    assert [json.loads(item.answer or "null") for item in answers[:2]] == [
        {"result": "42"},
        {"refused": "no number below 0"},
    ]
    assert all("refused" in json.loads(item.answer or "null") for item in answers[2:4])
    assert answers[4].status is QuestionStatus.EXPIRED
    assert [item.id for item in study.questions] == [asked] and store.list_tool_requests(study.id) == []


def test_a_study_that_does_not_ask_serves_no_tools_and_takes_no_answer(study: Study) -> None:
    store, paused = study.store, study.pause()

    with pytest.raises(ToolRefused):
        call_in_study(store, paused, "double", {"number": 1}, wait_s=0.0)
    with pytest.raises(ResearchError, match="no open question"):
        submit_answer(store, paused, "7", number=None, wait_s=0.0)
    with pytest.raises(ResearchError, match="no question 12"):
        submit_answer(store, paused, "7", number=12, wait_s=0.0)
    assert await_question(store, paused, 60.0) is None


@pytest.mark.parametrize("text", ["", " \n", "x" * (MAX_ANSWER_CHARS + 1)])
def test_an_empty_or_endless_answer_is_refused_before_it_is_stored(study: Study, text: str) -> None:
    with pytest.raises(Drained):
        study.ask()

    with pytest.raises(AnswerRefused):
        submit_answer(study.store, study.store.get_study(study.id), text, number=None, wait_s=0.0)
    assert study.open.status is QuestionStatus.OPEN


def test_a_study_with_another_planner_asks_nobody(store: ExperimentStore) -> None:
    with pytest.raises(ResearchError, match="asks nobody"):
        await_question(store, store.create_study("a topic", planner="rules"), 0.0)


@pytest.mark.parametrize(
    ("named", "given"),
    [
        ("--model", {"planner": "external", "model": "m"}),
        ("--max-llm-usd", {"planner": "external", "max_llm_usd": 1.0}),
        ("--answer-deadline", {"planner": "rules", "vary": ("lr=1e-3,1e-2",), "answer_deadline": 5.0}),
        ("--train-env", {"planner": "external", "train_envs": ("reverse",)}),
        ("--vary", {"planner": "external", "family": "reverse", "vary": ("env.nosuch=1,3",)}),
        (
            "--program",
            {"planner": "external", "programs": tuple({"name": name, "code": f"x = {name!r}"} for name in "ab")},
        ),
    ],
)
def test_settings_that_do_not_fit_the_planner_are_refused_by_name(named: str, given: dict[str, Any]) -> None:
    with pytest.raises(TopicInvalid, match=named):
        check_study("A title", read_settings({"engine": "fake", **given}))
