"""A trial of a program on a real server: what it records of sound, broken and strange programs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from experiments_db import open_store
from researcher.plan import ManipulationCheck, Speaker
from researcher.planner.tools.drafts import describe_trial
from researcher.program_trials import trial as program_trial
from researcher.program_trials.trial import TrialRequest, TrialResult, find_problems, run_trial
from swarm import SwarmClient
from swarm.environments import load_environment
from swarm.errors import EnvironmentFailure, EnvironmentInvalid
from swarm.sandbox import choose_sandbox

JOB = {"project_name": "research", "experiment_name": "trial", "engine": "fake", "batch_size": 4, "num_repeat": 2,
       "total_steps": 3}  # fmt: skip
SOUND = """
def agent(task, model, session):
    model.chat(session.messages)
    return model.chat([*session.messages, {"role": "user", "content": "Again, only the answer."}])

def reward(task, transcript, grade):
    return grade.score + len(transcript)

def schedule(tasks, progress):
    return tasks[:1]
"""
BROKEN = """
def agent(task, model, session):
    reply = model.chat(session.messages)
    return parse(reply["content"])

def parse(text):
    return text.split("=")[7]
"""


@pytest.fixture(scope="module")
def client(start_shared_server: Any) -> Iterator[SwarmClient]:
    with SwarmClient(start_shared_server().url) as client:
        yield client


def attempt(client: SwarmClient, code: str, folder: Path, **options: Any) -> TrialResult:
    with closing(load_environment("reverse")) as environment:
        given = {"code": code, "job": JOB, "environment": environment, "folder": folder, "sandbox": None, "attempts": 3}
        return run_trial(client, TrialRequest(**{**given, **options}), lambda: None)


def problems(result: TrialResult, code: str, folder: Path, check: ManipulationCheck | None = None) -> list[str]:
    with open_store(folder / "research.db") as store:
        trial = result.store_in(store, store.create_study("t", planner="llm").id, code, experiment_id=None)
        return [problem.message for problem in find_problems(trial, code, check)]


def test_a_sound_program_is_tried_with_all_its_functions(client: SwarmClient, tmp_path: Path) -> None:
    check = ManipulationCheck("it asks twice", speaker=Speaker.MODEL, at_least=2)
    result = attempt(client, SOUND, tmp_path, check=check)

    assert (result.broken, result.error, result.schedule_error) == (0, None, None)
    assert result.count is not None and result.count.passes == (True, True, True)
    for tried in result.attempts:
        assert [len(tried.calls), tried.messages[0]["role"], len(tried.messages)] == [2, "user", 2]
        assert tried.score is not None and tried.reward == tried.score + 2 and tried.tokens > 0
        assert tried.task_id.split("/")[1] == "train"
    assert client.status().state == "OFFLINE", "the server is left free"
    with open_store(tmp_path / "research.db") as store:
        study = store.create_study("t", planner="llm").id
        stored = result.store_in(store, study, SOUND, experiment_id=None)
        assert store.list_program_trials(study) == [stored]
    assert (stored.attempts, stored.calls, stored.passed, stored.error) == (3, 2.0, 3, None)
    assert stored.mean is not None and stored.mean_reward == stored.mean + 2
    assert find_problems(stored, SOUND, check) == ()
    described = describe_trial(stored)
    assert "3 of 3 attempts pass the manipulation check" in described and "[model call 2]" in described
    asked = result.attempts[0].calls[1]["request"][-1]
    assert f"[model call 2] {asked['role']}: {asked['content']} -> " in described, "an agent's own prompts are shown"


def test_a_broken_attempt_has_the_lines_of_the_program(client: SwarmClient, tmp_path: Path) -> None:
    result = attempt(client, BROKEN, tmp_path)
    assert result.broken == 3 and result.error is not None
    for part in ("line 4, in agent", 'return parse(reply["content"])', "line 7, in parse", "IndexError"):
        assert part in result.error
    assert all(tried.calls and tried.messages for tried in result.attempts)
    [problem] = problems(result, BROKEN, tmp_path)
    assert problem.startswith("3 of 3 attempts were broken") and "line 7, in parse" in problem


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("def agent(task, model, session):\n    return 'known'\n", "asked the model nothing in 3 attempts"),
        (
            "def reward(task, transcript, grade):\n    return 1 / 0\n",
            "reward: .*Error.*line 2, in reward",
        ),
        ("def reward(task, transcript, grade):\n    return float('nan')\n", "reward: .*must be finite"),
        ("def schedule(tasks, progress):\n    return []\n", "schedule: it chose none of 8 tasks"),
        ("def schedule(tasks, progress):\n    return tasks[99].x\n", "schedule: .*IndexError"),
    ],
)
def test_what_should_be_repaired_is_named(client: SwarmClient, tmp_path: Path, code: str, problem: str) -> None:
    [found] = problems(attempt(client, code, tmp_path), code, tmp_path)
    assert re.search(problem, found, re.DOTALL)


@pytest.mark.parametrize(
    ("reply", "is_found"),
    [
        ("corrected if corrected else reply", True),
        ("reply", False),
        ("reply if set(reply) == set(corrected) else reply[::-1]", False),
    ],
)
def test_an_agent_that_solves_tasks_with_random_letters_for_a_model_answers_in_its_place(
    client: SwarmClient, tmp_path: Path, reply: str, is_found: bool
) -> None:
    code = (
        "def agent(task, model, session):\n"
        "    reply = model.chat(session.messages)['content'] or ''\n"
        "    corrected = task.main_query.split()[-1][::-1]\n"
        f"    session.reply({reply})\n"
    )
    found = problems(attempt(client, code, tmp_path), code, tmp_path)
    assert [each for each in found if "in the model's place" in each] == found[-1:]
    assert bool(found) is is_found


def test_an_attempt_beyond_the_limits_of_the_charter_is_broken(client: SwarmClient, tmp_path: Path) -> None:
    result = attempt(client, SOUND, tmp_path, attempt_calls=1)
    assert result.broken == 3 and result.error is not None and "at its limit" in result.error


def test_a_program_that_hangs_ends_at_the_limit(
    client: SwarmClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_trial, "TRIAL_LIMIT_S", 2.0)
    result = attempt(client, "import time\ndef agent(task, model, session):\n    time.sleep(600)\n", tmp_path)
    assert result.broken == 3 and result.error is not None and "took longer than 2 s" in result.error


def test_a_foreign_program_is_tried_in_the_sandbox(client: SwarmClient, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("canary")
    code = (
        f"def agent(task, model, session):\n    model.chat(session.messages)\n    return open({str(secret)!r}).read()\n"
    )
    result = attempt(client, code, tmp_path, sandbox=choose_sandbox(unsafe_no_sandbox=False))
    assert result.broken == 3 and "canary" not in str(result) and "FileNotFoundError" in str(result.error)


def test_a_program_that_cannot_be_imported_is_told_and_the_server_left_free(
    client: SwarmClient, tmp_path: Path
) -> None:
    with pytest.raises(EnvironmentInvalid, match="boom"):
        attempt(client, "raise ValueError('boom')\n" + SOUND, tmp_path)
    assert client.status().state == "OFFLINE"


def test_an_environment_that_fails_is_not_the_programs_fault(client: SwarmClient, tmp_path: Path) -> None:
    folder = tmp_path / "failing"
    folder.mkdir()
    rows = [f'{{"question": "{part} {n}", "answer": "a", "part": "{part}"}}' for n in range(4)
            for part in ("train", "validation", "test")]  # fmt: skip
    (folder / "tasks.jsonl").write_text("\n".join(rows))
    (folder / "environment.toml").write_text('split = "part"\n')
    (folder / "grade.py").write_text("def grade(task, transcript):\n    return 1 / 0\n")
    with closing(load_environment(str(folder))) as environment, pytest.raises(EnvironmentFailure, match="grader"):
        attempt(client, SOUND, tmp_path / "work", environment=environment, attempts=1)


def test_long_transcripts_are_stored_capped(client: SwarmClient, tmp_path: Path) -> None:
    code = "def agent(task, model, session):\n    model.chat(session.messages)\n    return 'long ' * 100_000\n"
    result = attempt(client, code, tmp_path, attempts=1)
    stored = result.attempts[0].to_json()
    assert len(str(stored)) < 12_000 and "characters left out" in stored["messages"][1]["content"]
