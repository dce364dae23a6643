"""The programs of the library do what their names say, and pass the checks that foreign code must pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from researcher.execution.preflight import check_program
from researcher.plan import ArmProgram
from researcher.programs import list_programs, load_program_code
from swarm.environments import Grade, load_environment
from swarm.program import load_program
from swarm.program.attempts import open_session
from swarm.tasks import Split
from swarm.types import Task

PROGRAMS = {program.name: program for program in list_programs()}
CALL = {"id": "call-1", "type": "function", "function": {"name": "calculator", "arguments": '{"expression": "1+1"}'}}


class ScriptedReplies:
    """The model of an attempt that says what a script says, and keeps what it was asked."""

    def __init__(self, *replies: Any) -> None:
        self._replies = list(replies)
        self.asked: list[list[Any]] = []

    def chat(self, messages: Any, *, tools: Any = ()) -> Any:
        self.asked.append(list(messages))
        reply = self._replies.pop(0)
        return {"role": "assistant", **({"content": reply} if isinstance(reply, str) else reply)}


def program_of(name: str, folder: Path):
    path = folder / "program.py"
    path.write_text(load_program_code(name))
    return load_program(path)


def session_of(family: str):
    environment = load_environment(family)
    task = next(iter(environment.tasks(Split.TRAIN)))
    return task.task, open_session(environment, task)


def test_the_library_has_a_sentence_about_each_program():
    assert set(PROGRAMS) == {"answer-check-answer", "best-of-n", "easy-first", "scratchpad", "shaped-by-details"}
    assert all(program.description.count(".") == 1 for program in PROGRAMS.values())
    assert [name for name, program in PROGRAMS.items() if not program.has_agent] == ["easy-first", "shaped-by-details"]


def test_a_name_that_the_library_does_not_have_is_an_error():
    with pytest.raises(KeyError):
        load_program_code("no-such-program")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_passes_the_checks_of_foreign_code(name, tmp_path):
    program = ArmProgram(name, load_program_code(name), trusted=False)
    problems = check_program(
        program, {"model": "nano"}, workdir=tmp_path, sandbox=None, preflight_url=None, environment="reverse"
    )
    assert problems == ()


@pytest.mark.parametrize(
    ("name", "replies", "reply"),
    [
        ("answer-check-answer", ("first", "second"), "second"),
        ("answer-check-answer", ("first", ""), "first"),
        ("best-of-n", ("one", "Two.", " two", "three"), "Two."),
        ("best-of-n", ("a", "b", "c", "d"), "a"),
    ],
    ids=["the checked one", "no empty second one", "the most frequent one", "the first of equally frequent ones"],
)
def test_the_answer_that_a_program_chooses_is_its_only_reply(name, replies, reply, tmp_path):
    task, session = session_of("reverse")
    program_of(name, tmp_path).agent(task, ScriptedReplies(*replies), session)
    assert [message["content"] for message in session.transcript[1:]] == [reply]


def test_thoughts_stay_out_of_the_session(tmp_path):
    task, session = session_of("reverse")
    model = ScriptedReplies("I reverse it letter by letter", "answer")
    program_of("scratchpad", tmp_path).agent(task, model, session)
    assert [message["content"] for message in session.transcript] == [task.main_query, "answer"]
    assert "I reverse it letter by letter" in [message["content"] for message in model.asked[1]]


@pytest.mark.parametrize(
    ("name", "replies"),
    [
        ("answer-check-answer", [{"content": None, "tool_calls": [CALL]}, "2", "2"]),
        ("best-of-n", [*[{"content": None, "tool_calls": [CALL]}] * 4, "2", "3", "2", "4"]),
        ("scratchpad", ["hm", {"content": None, "tool_calls": [CALL]}, "so", "2"]),
    ],
)
def test_tools_can_be_called(name, replies, tmp_path):
    task, session = session_of("calc")
    program_of(name, tmp_path).agent(task, ScriptedReplies(*replies), session)
    roles = [message["role"] for message in session.transcript]
    assert roles == ["user", "assistant", "tool", "assistant"]
    assert session.transcript[-1]["content"] == "2" and session.is_over


@pytest.mark.parametrize("name", ["answer-check-answer", "best-of-n", "scratchpad"])
def test_a_session_of_several_turns_is_played_to_its_end(name, tmp_path):
    task, session = session_of("guess")
    model = ScriptedReplies(*["13"] * 40)
    program_of(name, tmp_path).agent(task, model, session)
    assert session.is_over


@pytest.mark.parametrize(
    ("details", "reward"),
    [({}, 0.5), ({"passed": 0.5}, 0.6), ({"passed": 1, "length": 300, "note": "x", "late": True}, 0.7)],
)
def test_only_details_that_are_shares_are_rewarded(details, reward, tmp_path):
    program = program_of("shaped-by-details", tmp_path)
    assert program.reward(Task("", "1"), [], Grade(0.5, False, details)) == pytest.approx(reward)


def test_short_questions_come_first_and_all_of_them_by_the_middle(tmp_path):
    schedule = program_of("easy-first", tmp_path).schedule
    tasks = [Task("x" * length, str(length)) for length in (5, 1, 8, 3, 7, 2, 6, 4)]
    assert [task.task_id for task in schedule(tasks, 0.0)] == ["1", "2"]
    assert [task.task_id for task in schedule(tasks, 0.25)] == ["5", "1", "3", "2", "4"]
    assert schedule(tasks, 0.5) == schedule(tasks, 1.0) == tasks
    assert schedule(tasks[:1], 0.0) == tasks[:1]
