"""Agents, episodes and jobs that ask for what no engine can do: the fault is theirs, and the engine goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from swarm import SwarmClient, TrainJob
from swarm.environments import Environment
from swarm.errors import BadRequest, ProgramFailure
from swarm.program import measure, train
from swarm.program.base import load_program

JOB = TrainJob(engine="fake", batch_size=2, num_repeat=2, total_steps=2)
PROGRAM = """
def agent(task, model, session):
    return model.chat(session.messages, temperature=1e-39)
"""
TEMPERATURES = [1e-39, 5e-324, 0.0099, 1e308, float("inf"), float("nan"), -1.0, 10**400]


@pytest.fixture(scope="module")
def client(start_shared_server: Any) -> Iterator[SwarmClient]:
    with SwarmClient(start_shared_server(JOB).url) as client:
        yield client


@pytest.fixture
def program(tmp_path: Any) -> Any:
    (tmp_path / "program.py").write_text(PROGRAM)
    return load_program(tmp_path / "program.py")


def test_agent_that_asks_for_the_impossible_scores_the_worst(
    client: SwarmClient, environment: Environment, program: Any
) -> None:
    score = measure(client, environment, program, episodes=5, worst=-1.0)
    assert (score.n, score.mean, len(score.broken), score.repeats) == (5, -1.0, 5, ())
    assert "1e-39" in score.broken[0].error and "temperature" in score.broken[0].error
    assert client.status().state == "ROLLING"


def test_training_with_such_an_agent_is_ended_by_a_fault_of_the_program(
    client: SwarmClient, environment: Environment, program: Any
) -> None:
    with pytest.raises(ProgramFailure, match="temperature: 1e-39"):
        train(client, environment, JOB, program)
    assert client.status().state == "ROLLING"


@pytest.mark.parametrize("temperature", TEMPERATURES, ids=lambda value: str(value)[:9])
def test_episode_and_job_are_refused_a_temperature_that_no_engine_can_sample_at(
    client: SwarmClient, temperature: float
) -> None:
    with pytest.raises(BadRequest, match="temperature"):
        client.begin_episode("eval", temperature=temperature)
    with pytest.raises(BadRequest, match="temperature"):
        client.change_job({"temperature": temperature})
    with httpx.Client(base_url=client.url) as http:
        for method, path, body in (
            ("POST", "episodes/begin", {"temperature": temperature}),
            ("PUT", "job", {"job": {"temperature": temperature}}),
            ("POST", "launch", {"key": "k", "job": {"temperature": temperature}}),
        ):
            refused = http.request(method, f"/v1/swarm/{path}", content=json.dumps(body))
            assert refused.status_code == 400, refused.text
            assert "temperature" in refused.text
