"""Programs that try to choose their scores: whatever an attempt ends with, it counts, and it is made once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from swarm import Evaluation, SwarmClient, TrainJob
from swarm.environments import load_environment
from swarm.program import measure
from swarm.program.hosted.process import ProgramProcess, place_program
from swarm.sandbox.sandbox import find_sandbox

pytestmark = [pytest.mark.timeout(400), pytest.mark.begins_first]

EPISODES = 12
"""About half of the tasks are answered right. A task decides how it is broken, so that a score of what a program lets
pass would be 1."""
JOB = TrainJob(engine="fake", batch_size=4, num_repeat=2, total_steps=1000)
LUCK = """
import os, signal, sys, threading, time
from swarm.errors import EngineFailure, EnvironmentFailure, RolloutPaused, ServerUnreachable, TrainingComplete
from swarm.errors import Unavailable

BREAK = {breaks!r}

def agent(task, model, session):
    reply = model.chat(session.messages)
    number = sum(map(ord, task.main_query))
    if number % 2:
        return task.main_query.split()[-1][::-1]
    names = {{**globals(), **locals()}}
    exec(BREAK[number // 2 % len(BREAK)], names)
    return names.get("answer")
"""
GUESSES = """
from swarm.errors import EnvironmentFailure, Unavailable

BREAK = {breaks!r}

def agent(task, model, session):
    if session.reply("1") is not None:
        exec(BREAK[sum(map(ord, task.task_id)) % len(BREAK)], {{**globals(), **locals()}})
"""
RAISED = [
    "raise ValueError('the measurement goes badly')",
    "raise SystemExit(0)",
    "raise Unavailable('the model did not answer')",
    "raise ConnectionResetError('the connection broke')",
    "raise EnvironmentFailure('the environment is gone')",
    "raise EngineFailure('the engine failed')",
    "raise ServerUnreachable('no answer')",
    "raise TrainingComplete('all steps are done')",
    "raise RolloutPaused('the weights change')",
]
SAID = [
    "answer = object()",
    "answer = {'content': 5}",
    "answer = {'content': {'a': [1, 2]}}",
    "answer = {'tool_calls': 'calc'}",
    "answer = {'tool_calls': [{'id': 'a', 'type': 'function', 'function': {'name': 'a', 'arguments': 'a'}}] * 10_001}",
    "answer = 'x' * 3_000_000",
    "session.reply('A'); session.reply('B')",
    "model.chat([], temperature='hot')",
    "model.chat([{'role': 'user', 'content': 'word ' * 200_000}])",
]
BEFORE_A_REPLY = {
    "raises what the system raises": RAISED,
    "says what is no reply": SAID,
    "ends its process": ["os._exit(3)", "os.kill(os.getpid(), signal.SIGKILL)"],
    "hangs": ["time.sleep(10_000)"],
    "takes all memory": ["hoard = [bytearray(2**28) for _ in range(64)]"],
    "fills the disk": ["[open(f'/tmp/{number}', 'wb').write(bytes(2**24)) for number in range(1000)]"],
    "writes lines that are no part of the protocol": [
        "[os.write(1, b'noise\\n') for _ in range(3000)] and os._exit(0)"
    ],
}
AFTER_A_REPLY = [
    "raise ValueError('the measurement goes badly')",
    "raise Unavailable('the model did not answer')",
    "raise EnvironmentFailure('the environment is gone')",
    "session.reply({'content': [1, None, {}]})",
]


@pytest.fixture(scope="module")
def server(start_shared_server: Any) -> Any:
    with SwarmClient(start_shared_server(JOB).url) as client:
        yield client


def score(server: SwarmClient, code: str, environment: str, folder: Path, episodes: int = EPISODES) -> Evaluation:
    sandbox = find_sandbox(otherwise="")
    with (
        place_program(code, folder / "run", server.url, sandbox) as place,
        ProgramProcess(place, attempt_limit_s=3.0) as program,
    ):
        return measure(server, load_environment(environment), program, episodes=episodes, max_workers=8, worst=0.0)


@pytest.mark.parametrize("how", BEFORE_A_REPLY)
def test_attempts_that_a_program_breaks_before_a_reply_score_the_worst(
    server: SwarmClient, tmp_path: Path, how: str
) -> None:
    breaks = BEFORE_A_REPLY[how]
    episodes = max(EPISODES, 5 * len(breaks))
    result = score(server, LUCK.format(breaks=breaks), "reverse", tmp_path, episodes)
    assert (result.n, result.failures, result.repeats) == (episodes, (), ()), result
    assert len(result.broken) + result.successes == episodes, result.broken
    assert result.mean == result.successes / episodes
    assert len(result.broken) >= len(breaks)


def test_attempts_that_a_program_breaks_after_a_reply_score_the_worst(server: SwarmClient, tmp_path: Path) -> None:
    result = score(server, GUESSES.format(breaks=AFTER_A_REPLY), "guess", tmp_path)
    assert (result.n, result.failures, result.repeats) == (EPISODES, (), ()), result
    assert len(result.broken) == EPISODES - result.successes >= len(AFTER_A_REPLY)
