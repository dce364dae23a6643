"""Programs that try to choose their scores: whatever an attempt ends with, it counts, and it is made once.

Each program answers right by luck in half of its attempts and breaks the others in its own way, so that a score of the
attempts that it lets pass would be 1.
"""

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

EPISODES = 24
JOB = TrainJob(engine="fake", batch_size=4, num_repeat=2, total_steps=1000)
LUCK = """
import os, random, signal, sys, threading, time
from swarm.errors import EngineFailure, EnvironmentFailure, ServerUnreachable, TrainingComplete, Unavailable

def agent(task, model, session):
    reply = model.chat(session.messages)
    if random.random() < 0.5:
        return task.main_query.split()[-1][::-1]
    {broken}
"""
GUESSES = """
from swarm.errors import EnvironmentFailure, Unavailable

def agent(task, model, session):
    if session.reply("1") is not None:
        {broken}
"""
BEFORE_A_REPLY = {
    "raises": "raise ValueError('the measurement goes badly')",
    "raises what no handler of exceptions takes": "raise SystemExit(0)",
    "says that the server did not answer": "raise Unavailable('the model did not answer')",
    "says that the connection broke": "raise ConnectionResetError('the connection broke')",
    "says that the environment failed": "raise EnvironmentFailure('the environment is gone')",
    "says that the engine failed": "raise EngineFailure('the engine failed')",
    "says that the server is gone": "raise ServerUnreachable('no answer')",
    "says that training is over": "raise TrainingComplete('all steps are done')",
    "ends its process": "os._exit(3)",
    "kills its process": "os.kill(os.getpid(), signal.SIGKILL)",
    "hangs": "time.sleep(10_000)",
    "takes all memory": "hoard = [bytearray(2**28) for _ in range(64)]",
    "fills the disk": "[open(f'/tmp/{number}', 'wb').write(bytes(2**24)) for number in range(1000)]",
    "writes lines that are no part of the protocol": "[os.write(1, b'noise\\n') for _ in range(3000)] and os._exit(0)",
    "replies with no message": "return object()",
    "replies with a number": "return {'content': 5}",
    "replies with nested content": "return {'content': {'a': [1, 2]}}",
    "replies with tool calls that are none": "return {'tool_calls': 'calc'}",
    "replies with thousands of tool calls": "return {'tool_calls': [{'id': 'a', 'type': 'function', 'function': "
    "{'name': 'a', 'arguments': 'a'}}] * 10_001}",
    "replies with too much": "return 'x' * 3_000_000",
    "replies with nothing": "return None",
    "replies twice": "session.reply('A'); session.reply('B')",
    "asks the model for what it refuses": "model.chat([], temperature='hot')",
    "outgrows the context": "model.chat([{'role': 'user', 'content': 'word ' * 200_000}])",
}
AFTER_A_REPLY = {
    "raises": "raise ValueError('the measurement goes badly')",
    "says that the server did not answer": "raise Unavailable('the model did not answer')",
    "says that the environment failed": "raise EnvironmentFailure('the environment is gone')",
    "replies with garbage": "session.reply({'content': [1, None, {}]})",
}


@pytest.fixture(scope="module")
def server(start_shared_server: Any) -> Any:
    with SwarmClient(start_shared_server(JOB).url) as client:
        yield client


def score(server: SwarmClient, code: str, environment: str, folder: Path) -> Evaluation:
    sandbox = find_sandbox(otherwise="")
    with (
        place_program(code, folder / "run", server.url, sandbox) as place,
        ProgramProcess(place, attempt_limit_s=3.0) as program,
    ):
        return measure(server, load_environment(environment), program, episodes=EPISODES, max_workers=8, worst=0.0)


@pytest.mark.parametrize("how", BEFORE_A_REPLY)
def test_attempts_that_a_program_breaks_before_a_reply_score_the_worst(
    server: SwarmClient, tmp_path: Path, how: str
) -> None:
    result = score(server, LUCK.format(broken=BEFORE_A_REPLY[how]), "reverse", tmp_path)
    assert (result.n, result.failures, result.repeats) == (EPISODES, (), ()), result
    # One that replies with nothing is graded like any other.
    assert len(result.broken) + result.successes == EPISODES or how == "replies with nothing", result.broken
    assert result.mean == result.successes / EPISODES
    assert result.n - result.successes > 0


@pytest.mark.parametrize("how", AFTER_A_REPLY)
def test_attempts_that_a_program_breaks_after_a_reply_score_the_worst(
    server: SwarmClient, tmp_path: Path, how: str
) -> None:
    result = score(server, GUESSES.format(broken=AFTER_A_REPLY[how]), "guess", tmp_path)
    assert (result.n, result.failures, result.repeats) == (EPISODES, (), ()), result
    assert len(result.broken) == EPISODES - result.successes
