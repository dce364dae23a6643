"""Questions to an external planner: asked once, checked, and waited for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from experiments_db import ExperimentStore, PlannerQuestion, QuestionStatus, StoreConflict
from researcher.errors import AnswerOverdue, AnswerRefused, ResearchError, TopicInvalid
from researcher.execution.background import Drained
from researcher.loop.settings_check import check_study
from researcher.planner.build import build_planner_in_words
from researcher.planner.external.question_queue import QuestionQueue
from researcher.planner.external.requests import MAX_ANSWER_CHARS, await_question, call_in_study, submit_answer
from researcher.planner.language_model.answers import Unusable
from researcher.planner.tools.base import PlannerTool, ToolArguments, Toolbox, ToolRefused
from researcher.record.budget import BudgetLedger
from researcher.record.log import StudyLog
from researcher.study.settings import StudySettings, read_settings

QUESTION = "# plan: what next?"


@pytest.fixture
def study_id(store: ExperimentStore) -> str:
    return store.create_study("a topic", planner="external").id


class World:
    """What happens outside while a study waits: one action for each of its looks, and then the end of the work."""

    def __init__(self, *actions: Callable[[], object]) -> None:
        self.actions = list(actions)
        self.events: list[tuple[str, str]] = []

    def sleep(self, _seconds: float) -> None:
        if not self.actions:
            raise Drained
        self.actions.pop(0)()

    def report(self, kind: str, message: str) -> None:
        self.events.append((kind, message))


def nothing() -> None:
    pass


def parse_number(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise Unusable(f"{text.strip()!r} is no number") from error


def queue_of(store: ExperimentStore, study_id: str, world: World, **options: Any) -> QuestionQueue:
    return QuestionQueue(store, study_id, sleep=world.sleep, report=world.report, **options)


def open_question(store: ExperimentStore, study_id: str) -> PlannerQuestion:
    found = store.find_waiting_question(study_id)
    assert found is not None
    return found


def answering(store: ExperimentStore, study_id: str, text: str) -> Callable[[], object]:
    return lambda: store.answer_question(open_question(store, study_id).id, text)


def test_an_answer_as_a_row_is_parsed_and_accepted(store: ExperimentStore, study_id: str) -> None:
    world = World(nothing, answering(store, study_id, "7"))

    assert queue_of(store, study_id, world).ask("plan", QUESTION, parse_number) == 7

    [question] = store.list_questions(study_id)
    assert question.status is QuestionStatus.ACCEPTED and QUESTION in question.prompt
    assert [kind for kind, _ in world.events] == ["planner.asked", "planner.answered"]


def test_a_refused_answer_opens_the_same_question_again_with_the_objection(
    store: ExperimentStore, study_id: str
) -> None:
    world = World(answering(store, study_id, "seven"), answering(store, study_id, "7"))

    assert queue_of(store, study_id, world).ask("plan", QUESTION, parse_number) == 7

    [question] = store.list_questions(study_id)
    assert question.objection == "'seven' is no number"


def test_a_process_that_goes_on_asks_its_open_question_again_and_keeps_accepted_answers(
    store: ExperimentStore, study_id: str
) -> None:
    def text(mark: str) -> str:
        return f"{QUESTION}\n\nBEGIN DATA {mark}\nforeign\nEND DATA {mark}"

    first = World(answering(store, study_id, "1"))
    queue = queue_of(store, study_id, first)
    assert queue.ask("interpret", text("aaaa"), parse_number) == 1
    with pytest.raises(Drained):
        queue.ask("plan", text("bbbb"), parse_number)
    number = open_question(store, study_id).id

    resumed = World(answering(store, study_id, "2"))
    queue = queue_of(store, study_id, resumed, deadline_s=600.0)
    assert queue.ask("interpret", text("cccc"), parse_number) == 1
    assert queue.ask("plan", text("dddd"), parse_number) == 2

    assert [item.status for item in store.list_questions(study_id)] == [QuestionStatus.ACCEPTED] * 2
    assert store.get_question(number).deadline is not None


def test_an_answer_that_came_while_no_process_worked_is_read_when_one_does(
    store: ExperimentStore, study_id: str
) -> None:
    with pytest.raises(Drained):
        queue_of(store, study_id, World()).ask("plan", QUESTION, parse_number)
    study = store.set_study_status(study_id, store.get_study(study_id).status.PAUSED, "paused on request")

    stored = submit_answer(store, study, "7", number=None, wait_s=60.0)

    assert stored.status is QuestionStatus.ANSWERED
    assert queue_of(store, study_id, World()).ask("plan", QUESTION, parse_number) == 7


def test_another_question_takes_the_place_of_one_that_is_no_longer_asked(store: ExperimentStore, study_id: str) -> None:
    for text in ("# plan: the first", "# plan: the second"):
        with pytest.raises(Drained):
            queue_of(store, study_id, World()).ask("plan", text, parse_number)

    assert [item.status for item in store.list_questions(study_id)] == [QuestionStatus.EXPIRED, QuestionStatus.OPEN]


def test_a_question_without_an_answer_ends_at_its_deadline_and_is_asked_anew(
    store: ExperimentStore, study_id: str
) -> None:
    queue = queue_of(store, study_id, World(nothing), deadline_s=-1.0)
    with pytest.raises(AnswerOverdue):
        queue.ask("plan", QUESTION, parse_number)
    world = World(answering(store, study_id, "7"))

    assert queue_of(store, study_id, world).ask("plan", QUESTION, parse_number) == 7

    assert [item.status for item in store.list_questions(study_id)] == [QuestionStatus.EXPIRED, QuestionStatus.ACCEPTED]


def test_of_two_answers_at_once_one_counts_and_the_other_is_a_conflict(store: ExperimentStore, study_id: str) -> None:
    def answer_twice() -> None:
        number = open_question(store, study_id).id
        store.answer_question(number, "1")
        with pytest.raises(StoreConflict):
            store.answer_question(number, "2")

    assert queue_of(store, study_id, World(answer_twice)).ask("plan", QUESTION, parse_number) == 1


class Doubled(ToolArguments):
    number: int


def double(given: Doubled) -> str:
    if given.number < 0:
        raise ToolRefused("no number below 0")
    return str(2 * given.number)


def test_tools_that_need_the_study_run_while_it_waits(store: ExperimentStore, study_id: str) -> None:
    def broken(_: ToolArguments) -> str:
        raise RuntimeError("out of order")

    toolbox = Toolbox(
        [PlannerTool("double", "Doubles.", Doubled, double), PlannerTool("broken", "Fails.", ToolArguments, broken)]
    )
    calls = [("double", '{"number": 21}'), ("double", '{"number": -1}'), ("double", "{}"), ("broken", "{}")]
    late = time.time() + 600

    def request() -> None:
        for tool, arguments in calls:
            store.request_tool(study_id, tool, arguments, deadline=late)
        store.request_tool(study_id, "double", '{"number": 1}', deadline=time.time() - 1)

    world = World(request, answering(store, study_id, "7"))
    assert queue_of(store, study_id, world, toolbox=toolbox).ask("plan", QUESTION, parse_number) == 7

    asked = store.list_questions(study_id)[-1].id
    answers = [store.get_question(asked + place) for place in range(1, 6)]
    assert [json.loads(item.answer or "null") for item in answers[:2]] == [
        {"result": "42"},
        {"refused": "no number below 0"},
    ]
    assert all("refused" in json.loads(item.answer or "null") for item in answers[2:4])
    assert answers[4].status is QuestionStatus.EXPIRED
    assert [item.id for item in store.list_questions(study_id)] == [asked] and store.list_tool_requests(study_id) == []


def test_a_study_that_does_not_ask_serves_no_tools_and_takes_no_answer(store: ExperimentStore, study_id: str) -> None:
    study = store.set_study_status(study_id, store.get_study(study_id).status.PAUSED, "paused on request")

    with pytest.raises(ToolRefused):
        call_in_study(store, study, "double", {"number": 1}, wait_s=0.0)
    with pytest.raises(ResearchError, match="no open question"):
        submit_answer(store, study, "7", number=None, wait_s=0.0)
    with pytest.raises(ResearchError, match="no question 12"):
        submit_answer(store, study, "7", number=12, wait_s=0.0)
    assert await_question(store, study, 60.0) is None


@pytest.mark.parametrize("text", ["", " \n", "x" * (MAX_ANSWER_CHARS + 1)])
def test_an_empty_or_endless_answer_is_refused_before_it_is_stored(
    store: ExperimentStore, study_id: str, text: str
) -> None:
    with pytest.raises(Drained):
        queue_of(store, study_id, World()).ask("plan", QUESTION, parse_number)

    with pytest.raises(AnswerRefused):
        submit_answer(store, store.get_study(study_id), text, number=None, wait_s=0.0)
    assert open_question(store, study_id).status is QuestionStatus.OPEN


def test_a_study_with_another_planner_asks_nobody(store: ExperimentStore) -> None:
    with pytest.raises(ResearchError, match="asks nobody"):
        await_question(store, store.create_study("a topic", planner="rules"), 0.0)


class Patience:
    """The background of a study: nothing wakes it before its deadline."""

    def sleep(self, seconds: float) -> None:
        time.sleep(min(seconds, 0.01))


def test_rules_answer_in_place_of_an_agent_that_is_silent(store: ExperimentStore, study_id: str) -> None:
    settings = StudySettings(planner="external", engine="fake", answer_deadline=1e-6, on_no_answer="rules")
    topic = "learning rate 0.001 or 0.003 for copying words"
    log = StudyLog(store, study_id)
    background: Any = Patience()
    request, ledger = settings.request(topic), BudgetLedger(store, study_id, settings.budget())
    planner = build_planner_in_words(settings, request, log, ledger, background)

    charter = planner.frame(settings.request(topic))

    assert planner.name == "external" and [factor.name for factor in charter.asks.factors] == ["lr"]
    assert [event.kind for event in store.list_events(study_id)] == ["planner.asked", "rules.answered"]


@pytest.mark.parametrize(
    ("named", "given"),
    [
        ("--model", {"planner": "external", "model": "m"}),
        ("--max-llm-usd", {"planner": "external", "max_llm_usd": 1.0}),
        ("--on-no-answer", {"planner": "external", "on_no_answer": "rules"}),
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
