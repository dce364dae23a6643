"""A language model that looks with tools before it answers, over real HTTP: streams, tool calls, and their bounds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from llm_replies.server import CUT, ReplyServer

from experiments_db import BudgetKind, ExperimentStore
from prompts import digest
from researcher.charter import Budget, FrameRequest, Question
from researcher.errors import BudgetExceeded, LanguageModelRefused, LanguageModelUnavailable, PlannerError, TopicInvalid
from researcher.execution.background import BackgroundTasks
from researcher.execution.preflight import check_program
from researcher.history import History
from researcher.planner.build import build_chat
from researcher.planner.conversation.backoff import Backoff
from researcher.planner.conversation.chat import Chat, ChatSettings
from researcher.planner.language_model.answers import DecideAnswer, parse_answer
from researcher.planner.llm import LLMPlanner
from researcher.planner.tools.base import PlannerTool, ToolArguments, Toolbox, ToolRefused
from researcher.record.budget import BudgetLedger
from researcher.record.log import StudyLog
from researcher.study.settings import read_settings
from swarm.sandbox.sandbox import choose_sandbox

KEY = "sk-canary-0123456789abcdef"
STOP = '{"action": "stop", "reason": "done"}'
LOOK = 'tool: curve {"arm": "a"}'
ASKED = "# decide: another iteration, or the end\n\nWhat now?"


class CurveArguments(ToolArguments):
    arm: str


def read_curve(arguments: CurveArguments) -> str:
    if arguments.arm == "none":
        raise ToolRefused("there is no arm none")
    if arguments.arm == "broken":
        raise RuntimeError("the disk is gone")
    return f"{arguments.arm}: 0.1, 0.2, 0.4"


TOOLBOX = Toolbox([PlannerTool("curve", "The reward of an arm by step.", CurveArguments, read_curve)])


@pytest.fixture
def study_id(store: ExperimentStore) -> str:
    return store.create_study("t", planner="llm").id


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., ReplyServer]]:
    """Starts a model that gives these replies to the question `decide`, one after the other."""
    servers: list[ReplyServer] = []

    def start(*replies: str, **options: Any) -> ReplyServer:
        for number, text in enumerate(replies, 1):
            (tmp_path / f"decide.{number:02}.md").write_text(text)
        servers.append(ReplyServer(tmp_path, **options).__enter__())
        return servers[-1]

    yield start
    for server in servers:
        server.__exit__(None, None, None)


@pytest.fixture
def ask(store: ExperimentStore, study_id: str) -> Callable[..., DecideAnswer]:
    def asked(
        server: ReplyServer | str,
        toolbox: Toolbox = TOOLBOX,
        *,
        patience_s: float = 0.0,
        times: int = 1,
        budget: Budget | None = None,
        pause: Callable[[float], object] = lambda seconds: None,
        **options: Any,
    ) -> DecideAnswer:
        url = server if isinstance(server, str) else server.url
        chat = Chat(
            ChatSettings(model="m", base_url=url, api_key=KEY, **options),
            store=store,
            study_id=study_id,
            ledger=BudgetLedger(store, study_id, budget or Budget()),
            toolbox=toolbox,
            backoff=Backoff("m", patience_s=patience_s, sleep=pause),
            report=lambda kind, line: store.append_event(study_id, kind, line),
        )
        answers = [chat.ask("decide", ASKED, lambda text: parse_answer(text, DecideAnswer)) for _ in range(times)]
        return answers[-1]

    return asked


def test_model_looks_with_a_tool_and_then_answers(serve, ask, store, study_id):
    server = serve(f"thought: Does it still rise?\n{LOOK}", STOP)

    assert ask(server, price=(1.0, 2.0)).action == "stop"

    first, second = server.requests
    assert [tool["function"]["name"] for tool in first["tools"]] == ["curve"]
    assert first["max_completion_tokens"] == 32_000 and first["stream"] is True
    assert "at most 12 turns" in first["messages"][0]["content"]
    said, heard = second["messages"][2:]
    assert said["tool_calls"][0]["function"] == {"name": "curve", "arguments": '{"arm": "a"}'}
    assert (heard["role"], heard["content"]) == ("tool", "a: 0.1, 0.2, 0.4")
    assert heard["tool_call_id"] == said["tool_calls"][0]["id"]
    assert "Does it still rise?" not in json.dumps(second)

    calls = store.list_llm_calls(study_id)
    assert [call.attempt for call in calls] == [1, 2]
    assert json.loads(calls[0].prompt) == first["messages"]
    # Of the second request the record has what was new.
    assert json.loads(calls[1].prompt) == [heard]
    recorded = json.loads(calls[0].response or "")
    assert recorded["reasoning"] == "Does it still rise?" and recorded["tool_calls"] == said["tool_calls"]
    assert calls[1].response == STOP
    assert {call.prompt_hash for call in calls} == {digest("decide")}
    assert store.sum_budget(study_id)[BudgetKind.LLM_TOKENS] == sum(c.input_tokens + c.output_tokens for c in calls)
    [event] = store.list_events(study_id)
    assert event.kind == "llm.answered" and "decide: m answered in 2 request(s), 1 tool calls (curve)" in event.message
    assert f"${sum(call.cost_usd for call in calls):.4f}" in event.message


def test_digest_of_a_prompt_is_that_of_its_file():
    text = Path(__file__).parents[2].joinpath("prompts", "decide.md").read_bytes()
    assert digest("decide") == sha256(text).hexdigest()


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ('tool: curve {"arm": "none"}', "refused: there is no arm none"),
        ('tool: curve {"curve": "a"}', "curve: there is no such field"),
        ('tool: sql {"text": "select 1"}', "refused: there is no tool 'sql'; there are: curve"),
        ('tool: curve {"arm": "broken"}', "the tool failed: RuntimeError: the disk is gone"),
    ],
)
def test_call_that_cannot_be_carried_out_is_told_to_the_model(serve, ask, call, told):
    server = serve(call, STOP)

    assert ask(server).action == "stop"
    assert told in server.requests[1]["messages"][-1]["content"]


@pytest.mark.parametrize("bound", [{"turns": 2}, {"tokens": 600}])
def test_model_that_only_looks_is_told_to_answer_and_may_call_no_more(serve, ask, bound):
    server = serve(LOOK, LOOK, STOP)

    assert ask(server, **bound).action == "stop"
    last = server.requests[-1]
    assert "last turn with tools" in last["messages"][-1]["content"]
    assert last["tool_choice"] == "none" and "tool_choice" not in server.requests[0]


def test_calls_after_the_last_turn_are_an_answer_that_cannot_be_used(serve, ask):
    server = serve(LOOK)

    with pytest.raises(LanguageModelUnavailable, match="3 answers that cannot be used: there is no JSON object"):
        ask(server, turns=1)
    assert len(server.requests) == 4


def test_model_whose_server_takes_no_tools_answers_without_them(serve, ask, store, study_id):
    server = serve(STOP)
    server.unknown = {"tools"}

    assert ask(server, times=2).action == "stop"

    # What the server refused is not tried again with the next question.
    assert ["tools" in body for body in server.requests] == [True, False, False]
    assert "turns" not in server.requests[1]["messages"][0]["content"]
    assert "llm.no_tools" in [event.kind for event in store.list_events(study_id)]
    assert len(store.list_llm_calls(study_id)) == 3


@pytest.mark.parametrize("field", ["max_completion_tokens", "stream_options"])
def test_field_that_a_server_does_not_know_is_left_out_from_then_on(serve, ask, store, study_id, field):
    server = serve(STOP)
    server.unknown = {field}

    ask(server, times=2)

    assert [field in body for body in server.requests] == [True, False, False]
    assert "max_completion_tokens" in server.requests[-1] or server.requests[-1]["max_tokens"] == 32_000
    refused, *answered = store.list_llm_calls(study_id)
    assert field in (refused.error or "") and all(call.error is None for call in answered)
    assert all(call.input_tokens > 0 and call.output_tokens > 0 for call in answered)


@pytest.mark.parametrize(
    ("status", "error"),
    [(400, LanguageModelUnavailable), (401, LanguageModelRefused), (403, LanguageModelRefused),
     (404, LanguageModelRefused)],
)  # fmt: skip
def test_a_refusal_is_not_waited_for_and_says_why(serve, ask, status, error):
    server = serve(STOP, failures=[status])

    with pytest.raises(error, match=f"refused: HTTP {status}"):
        ask(server)
    assert len(server.requests) == 1


def test_failures_on_the_way_are_retried_with_growing_pauses_and_recorded(serve, ask, store, study_id):
    pauses: list[float] = []

    assert ask(serve(STOP, failures=[429, 500, 503]), patience_s=3600.0, pause=pauses.append).action == "stop"

    assert all(most / 2 <= pause <= most for pause, most in zip(pauses, (2.0, 4.0, 8.0), strict=True))
    calls = store.list_llm_calls(study_id)
    assert [call.attempt for call in calls] == [1, 2, 3, 4]
    assert [call.response is None for call in calls] == [True, True, True, False]
    with pytest.raises(LanguageModelUnavailable, match=r"given no usable answer .* Connection error"):
        ask("http://127.0.0.1:9/v1")
    assert store.sum_llm_usage(study_id).failed_calls == 4


def test_the_key_reaches_the_model_server_and_nothing_else(serve, ask, store, tmp_path, caplog):
    caplog.set_level("DEBUG", logger="researcher")
    server = serve(STOP, failures=[401])
    with pytest.raises(LanguageModelRefused) as refused:
        ask(server)
    ask(server)
    assert server.keys == [f"Bearer {KEY}"] * 2
    store.close()
    files = [path for path in tmp_path.iterdir() if path.name.startswith("research.db")]
    assert files and all(KEY.encode() not in path.read_bytes() for path in files)
    assert refused.value.__cause__ is None
    assert KEY not in str(refused.value) + caplog.text + repr(ChatSettings(model="m", base_url=None, api_key=KEY))


def test_no_call_is_made_that_could_exceed_the_budget(serve, ask):
    server = serve(STOP)
    with pytest.raises(BudgetExceeded, match="--max-llm-tokens"):
        ask(server, budget=Budget(max_llm_tokens=5000))
    with pytest.raises(BudgetExceeded, match="--max-llm-usd"):
        ask(server, budget=Budget(max_llm_usd=0.01), price=(5.0, 20.0))
    with pytest.raises(PlannerError, match="--llm-price"):
        ask(server, budget=Budget(max_llm_usd=1.0))
    assert server.requests == []


def test_tokens_are_estimated_where_a_server_reports_none(serve, ask, store, study_id):
    ask(serve(STOP, with_usage=False))
    [call] = store.list_llm_calls(study_id)
    assert 100 < call.input_tokens < 5000 and call.output_tokens > 5


def test_the_model_is_told_what_was_wrong_and_its_second_answer_counts(serve, ask, store, study_id):
    server = serve("I would stop.", STOP)

    assert ask(server).action == "stop"

    retold = server.requests[1]["messages"]
    assert [message["role"] for message in retold] == ["system", "user", "assistant", "user"]
    assert "cannot be used: there is no JSON object" in retold[3]["content"]
    first, second = store.list_llm_calls(study_id)
    assert (first.error, first.response) == ("unusable answer: there is no JSON object in the answer", "I would stop.")
    assert (first.attempt, second.attempt, second.error) == (1, 2, None)


def test_model_may_think_for_longer_than_any_silence_while_bytes_come(serve, ask):
    server = serve(f"thought: {'Hm. ' * 200}\n{STOP}")
    server.pauses = [0.4] * 5

    assert ask(server, silence_s=1.5).action == "stop"


def test_silence_ends_a_call_and_the_deadline_ends_a_question(serve, ask, store, study_id):
    server = serve(STOP)
    server.pauses = [3.0]
    with pytest.raises(LanguageModelUnavailable, match="no answer"):
        ask(server, silence_s=0.2)
    server.pauses = [0.2] * 10
    with pytest.raises(LanguageModelUnavailable, match="--llm-deadline"):
        ask(server, deadline_s=0.1)
    assert [call.response for call in store.list_llm_calls(study_id)] == [None, None]


def test_answer_that_breaks_off_is_asked_again_and_what_was_looked_at_is_kept(serve, ask, store, study_id):
    server = serve(LOOK, STOP, failures=[None, CUT])

    assert ask(server, patience_s=60.0).action == "stop"

    assert [call.response is None for call in store.list_llm_calls(study_id)] == [False, True, False]
    assert server.requests[1]["messages"] == server.requests[2]["messages"]


def test_settings_of_a_study_reach_its_chat(serve, store, study_id, monkeypatch):
    server = serve(LOOK, STOP)
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    settings = read_settings({"planner": "llm", "llm_deadline": 5, "llm_price": (1, 2)})
    log, ledger = StudyLog(store, study_id), BudgetLedger(store, study_id, settings.budget())
    chat = build_chat(settings, "m", log, ledger, BackgroundTasks(1), TOOLBOX)

    assert chat.ask("decide", ASKED, lambda text: parse_answer(text, DecideAnswer)).action == "stop"
    assert [event.kind for event in store.list_events(study_id)] == ["llm.answered"]
    assert store.list_llm_calls(study_id)[0].cost_usd > 0
    with pytest.raises(TopicInvalid, match="--llm-deadline"):
        read_settings({"planner": "llm", "llm_deadline": 0})


def test_question_without_tools_names_none(serve, ask):
    server = serve(STOP)

    ask(server, Toolbox(()))
    assert "tools" not in server.requests[0] and "turns" not in server.requests[0]["messages"][0]["content"]


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_the_planted_bug_is_caught_by_check_and_repaired(store, study_id, start_server, tmp_path):
    server, sandbox = start_server(), choose_sandbox(unsafe_no_sandbox=False)

    def check(program, planned):
        return check_program(
            program, planned.job, workdir=tmp_path, sandbox=sandbox, preflight_url=server.url, environment="reverse"
        )

    with ReplyServer() as replies:
        ledger = BudgetLedger(store, study_id, Budget())
        settings = ChatSettings(model="m", base_url=replies.url, api_key=KEY)
        planner = LLMPlanner(Chat(settings, store=store, study_id=study_id, ledger=ledger))
        charter = planner.frame(FrameRequest("Which rate?", question=Question(fixed={"engine": "fake"})))
        first, second, _ = planner.plan(charter, History()).arms
        changed = replace(first, factors={**first.factors, "program": "changed"})
        written = planner.write_program(charter, changed, None)
        problems = check(written, first)
        assert not written.trusted and [problem.stage for problem in problems] == ["preflight"]
        assert "'dict' object has no attribute 'content'" in problems[0].message
        assert str(tmp_path) not in problems[0].message

        mended = planner.repair_program(charter, first, written, problems)
        assert check(mended, first) == ()
        assert "'dict' object has no attribute 'content'" in replies.requests[-1]["messages"][1]["content"]

        calls = len(replies.requests)
        heir = planner.write_program(charter, second, written)
        assert heir.code == written.code
        assert planner.repair_program(charter, second, heir, problems).code == mended.code
        assert len(replies.requests) == calls
