"""How many attempts are made at once follows from the tokens per second that a server samples."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from client_answers import status_of
from scripted_server import Canned, Heard, ScriptedServer
from waiting import wait_until

from swarm import SwarmClient
from swarm.client.pace import FIRST, TARGET_S, AttemptPace, SamplingSpeed
from swarm.types import EpisodeType

NO_USE = {
    "episode_type": "eval", "episodes": 0, "seconds": 1.0, "limited": 0, "faulty": 0, "unrewarded": {},
    "model_share": None, "calls": 0, "prompt_tokens": 0, "sampled_tokens": 0,
}  # fmt: skip


class SlowServer(ScriptedServer):
    """A server that says how fast it samples."""

    def __init__(self) -> None:
        super().__init__()
        self.status: dict[str, Any] = {}
        self.use: dict[str, Any] = {}

    def next_answer(self, heard: Heard) -> Canned:
        self.heard.append(heard)
        if heard.path.endswith("/status"):
            return Canned(body=status_of(**self.status))
        return Canned(body={**NO_USE, **self.use})

    def says(self, *, tokens_per_s: float, calls_in_flight: int, attempt_tokens: int) -> None:
        self.status = {"tokens_per_second": tokens_per_s, "calls_in_flight": calls_in_flight}
        self.use = {"episodes": 10, "sampled_tokens": 10 * attempt_tokens}


@pytest.fixture
def server() -> Iterator[SlowServer]:
    with closing(SlowServer()) as running:
        yield running


@pytest.fixture
def client(server: SlowServer) -> Iterator[SwarmClient]:
    with SwarmClient(server.url) as client:
        yield client


@pytest.mark.parametrize(
    ("tokens_per_s", "in_flight", "tokens", "running", "most", "expected"),
    [
        pytest.param(3.7, 16, 42, 16, 16, 10, id="182 s each: fewer"),
        pytest.param(60.0, 16, 42, 16, 64, 64, id="11 s each: as many as asked for"),
        pytest.param(20.0, 8, 42, 8, 64, 57, id="17 s each: between"),
        pytest.param(0.1, 16, 500, 16, 16, 1, id="one is always made"),
        pytest.param(5.0, 1, 40, 16, 16, 16, id="programs that mostly do other things are not held back"),
    ],
)
def test_attempts_are_fewer_where_each_would_take_minutes(
    tokens_per_s: float, in_flight: int, tokens: int, running: int, most: int, expected: int
) -> None:
    speed = SamplingSpeed(tokens_per_s, in_flight, tokens)
    assert speed.attempts_at_once(running, most) == expected
    assert expected in (1, most) or speed.attempt_s * expected / running <= TARGET_S


def test_a_few_attempts_begin_and_one_more_with_each_that_ends(client: SwarmClient, server: SlowServer) -> None:
    pace = AttemptPace(client, EpisodeType.EVAL, most=FIRST + 2)
    assert pace.limit == FIRST
    for limit in (FIRST + 1, FIRST + 2, FIRST + 2):
        with pace:
            pass
        assert pace.limit == limit
    assert AttemptPace(client, EpisodeType.EVAL, most=3).limit == 3
    assert server.heard == []


def test_a_slow_server_gets_fewer_attempts_and_is_named_once_with_its_speed(
    client: SwarmClient, server: SlowServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.says(tokens_per_s=2.0, calls_in_flight=4, attempt_tokens=120)
    pace = AttemptPace(client, EpisodeType.EVAL, most=4, total=30, look_s=0.05)
    begun: list[int] = []

    def attempt(number: int) -> None:
        with pace:
            begun.append(number)

    with ExitStack() as running:
        for _ in range(4):
            running.enter_context(pace)
        waiting = threading.Thread(target=attempt, args=(5,))
        waiting.start()
        wait_until(lambda: pace.limit == 2)
        assert begun == []
    waiting.join()
    assert begun == [5]
    [line] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "2.0 tokens per second" in line
    assert "4.0 minutes" in line
    assert "all 30 take about 30 minutes" in line


def test_a_server_that_samples_nothing_or_cannot_be_understood_changes_nothing(
    client: SwarmClient, server: SlowServer
) -> None:
    server.says(tokens_per_s=0.0, calls_in_flight=4, attempt_tokens=120)
    pace = AttemptPace(client, EpisodeType.EVAL, most=4, look_s=0.0)
    with pace, pace:
        assert server.heard
        server.says(tokens_per_s=1.0, calls_in_flight=4, attempt_tokens=1200)
        server.use["episodes"] = "cannot be read"
        with pace:
            assert pace.limit == 4
