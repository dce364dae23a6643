"""`swarm env play`: one task, by hand or by a served model, with every message and the grade."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from swarm import SwarmClient, TrainJob
from swarm.cli import app
from swarm.environments.scaffold import write_scaffold


def play(*words: str, typed: str = "") -> Any:
    return CliRunner().invoke(app, ["env", "play", *words], input=typed)


def solution_of(name: str, *words: str) -> str:
    done = play(name, *words, typed="/solution\n")
    assert done.exit_code == 0, done.output
    return done.stderr.splitlines()[-1].strip()


def test_a_right_reply_is_solved_and_every_message_is_shown() -> None:
    solution = solution_of("reverse")
    done = play("reverse", typed=solution + "\n")
    assert done.exit_code == 0, done.output
    question, reply, grade = done.stdout.splitlines()
    assert question.split() == ["user", "Reverse:", solution[::-1]]
    assert reply.split() == ["assistant", solution]
    assert grade.split(maxsplit=1) == ["grade", "1, solved"]


@pytest.mark.parametrize("typed", ["", "\n", "/quit\n"], ids=["end of input", "an empty line", "quit"])
def test_an_attempt_that_a_person_ends_is_graded_as_it_is(typed: str) -> None:
    done = play("reverse", "--json", typed=typed)
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert figures["grade"] == {"score": 0.0, "is_success": False, "details": {}}
    assert [message["role"] for message in figures["transcript"]] == ["user"]


def test_several_turns_are_played_until_the_environment_ends_them() -> None:
    numbers = "".join(f"{number}\n" for number in (13, 13, 13, 13, 13))
    figures = json.loads(play("guess", "--json", typed=numbers).stdout)
    roles = [message["role"] for message in figures["transcript"]]
    assert roles == ["user", "assistant", "user", "assistant", "user", "assistant", "user", "assistant"]
    assert figures["grade"]["score"] == 0


def test_a_tool_is_called_by_a_line_and_wrong_calls_are_told() -> None:
    lines = ["/call", "/call abacus {}", "/call calculator 3*4", '/call calculator {"expression": "3*4"}', "12"]
    done = play("calc", "--json", typed="\n".join(lines) + "\n")
    assert done.exit_code == 0, done.output
    _, call, result, answer = json.loads(done.stdout)["transcript"]
    assert call["tool_calls"][0]["function"] == {"name": "calculator", "arguments": '{"expression": "3*4"}'}
    assert result["tool_call_id"] == call["tool_calls"][0]["id"]
    assert (result["content"], answer["content"]) == ("12", "12")
    assert '/call calculator {"expression": ...}' in done.stderr
    assert "there is no tool 'abacus': there is calculator" in done.stderr
    assert "the arguments of a call are a JSON object" in done.stderr
    assert 'calls calculator {"expression": "3*4"}' in done.stderr


def test_several_lines_and_lines_that_begin_with_a_slash_can_be_replied() -> None:
    done = play("reverse", "--json", typed="/etc\n<<\n/etc\n\n/quit\n.\n")
    assert "no command /etc" in done.stderr
    assert json.loads(done.stdout)["transcript"][-1]["content"] == "/etc\n\n/quit"


def test_what_a_terminal_would_take_for_a_command_is_shown_as_its_code() -> None:
    done = play("reverse", typed="\x1b[2Jred\n")
    assert "\\x1b[2Jred" in done.stdout and "\x1b" not in done.stdout


def test_tasks_are_chosen_by_split_number_seed_and_id() -> None:
    first, second, held_out, other = (
        json.loads(play("reverse", "--json", *words).stdout)["task"]
        for words in ([], ["--task", "1"], ["--split", "test"], ["--seed", "1"])
    )
    assert len({task["task_id"] for task in (first, second, held_out, other)}) == 4
    assert held_out["metadata"]["split"] == "test"
    again = json.loads(play("reverse", "--json", "--task-id", second["task_id"]).stdout)
    assert again["task"] == second


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--task", "9999"], 3, "there is no task 9999 in longer/train: it has 2"),
        (["--task-id", "nobody"], 3, "there is no task 'nobody' among the 2"),
        (["--split", "exam"], 2, "unknown split 'exam': use train, validation, test"),
        (["--program", "agent.py"], 2, "a program plays only with a model: add --url"),
        (["--url", "http://127.0.0.1:1"], 5, "127.0.0.1:1"),
    ],
)
def test_what_cannot_be_played_is_one_line(tmp_path: Path, words: list[str], code: int, message: str) -> None:
    write_scaffold(tmp_path / "longer")
    done = play(str(tmp_path / "longer"), *words)
    assert done.exit_code == code and done.stdout == ""
    assert message in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr


def test_a_served_model_plays_one_eval_episode(start_server: Any) -> None:
    url = start_server(TrainJob(engine="fake")).url
    done = play("guess", "--url", url, "--json")
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    said = [message["content"] for message in figures["transcript"] if message["role"] == "assistant"]
    with SwarmClient(url) as client:
        [view] = client.episodes()
        detail = client.episode(view.episode_id)
    assert (view.episode_type, view.state, view.task_id) == ("eval", "completed", figures["task"]["task_id"])
    assert [turn.reply["content"] for turn in detail.turns] == said
    assert view.reward == figures["grade"]["score"]


def test_a_program_plays_in_place_of_the_plain_agent(start_server: Any, tmp_path: Path) -> None:
    right = solution_of("reverse")
    (tmp_path / "knows.py").write_text(f"def agent(task, model, session):\n    return {right!r}\n")
    (tmp_path / "fails.py").write_text("def agent(task, model, session):\n    return {}[task.task_id]\n")
    url = start_server(TrainJob(engine="fake")).url
    done = play("reverse", "--url", url, "--program", str(tmp_path / "knows.py"))
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[1:] == [f"assistant  {right}", "grade      1, solved"]
    failed = play("reverse", "--url", url, "--program", str(tmp_path / "fails.py"))
    assert failed.exit_code == 1 and "the program fails raised KeyError" in failed.stderr
    with SwarmClient(url) as client:
        assert {view.state for view in client.episodes()} == {"completed", "aborted"}


def test_a_server_without_a_model_says_so_at_once(start_server: Any) -> None:
    for words in (["play", "reverse"], ["check", "reverse"]):
        done = CliRunner().invoke(app, ["env", *words, "--url", start_server().url])
        assert done.exit_code == 75, done.output
        assert "serves no model: it is OFFLINE" in done.stderr
