"""remax over HTTP: one greedy episode in each group of a batch, over failures and restarts."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from server_processes import ServerProcess
from tests_support import ask, begin, chat, end, wait_for_state

from swarm import SwarmClient, Task, TrainJob, WorkflowOutput, run_episodes_until_all_complete
from swarm.errors import BadRequest

BATCHES, BATCH_SIZE, NUM_REPEAT = 4, 4, 3
JOB = TrainJob(
    engine="fake", algorithm="remax", batch_size=BATCH_SIZE, num_repeat=NUM_REPEAT, total_steps=BATCHES, seed=1
)
TASKS = [Task(f"question {number}", f"t{number}") for number in range(BATCHES * BATCH_SIZE)]


def temperatures(client: SwarmClient, episode_id: str) -> list[float]:
    return [float(turn.params["temperature"]) for turn in client.episode(episode_id).turns]


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 32])
def test_each_group_of_each_batch_has_one_greedy_episode_though_every_seventh_attempt_fails(
    start_server: Any, workers: int
) -> None:
    server, attempts = start_server(JOB), itertools.count()
    with SwarmClient(server.url) as client:

        def rollout(task: Task) -> None:
            episode_id, credentials = client.begin_episode()
            ask(credentials)
            if next(attempts) % 7 == 0:
                raise ConnectionError("the network broke down")
            client.end_episode(task, episode_id, WorkflowOutput(float(credentials.is_greedy)))

        tasks = [task for task in TASKS for _ in range(NUM_REPEAT)]
        run_episodes_until_all_complete(tasks, rollout, max_workers=workers)
        client.wait_until_step(BATCHES, timeout=60)
        groups: defaultdict[tuple[str, str], list[bool]] = defaultdict(list)
        for episode in client.episodes(limit=10_000, state="trained"):
            groups[str(episode.batch_id), str(episode.task_id)].append(episode.is_greedy)
            expected = 0.0 if episode.is_greedy else 1.0
            assert temperatures(client, episode.episode_id) == [expected]
        metrics = [point.metrics for point in client.metrics()]
    assert len(groups) == BATCHES * BATCH_SIZE
    assert all(sorted(group) == [False, False, True] for group in groups.values())
    assert [each["batch/episodes"] for each in metrics] == [BATCH_SIZE * NUM_REPEAT] * BATCHES


def test_a_call_of_a_greedy_episode_is_greedy_whatever_it_asks_for_and_its_task_is_named(start_server: Any) -> None:
    server = start_server(JOB)
    with SwarmClient(server.url) as client:
        greedy_id, greedy = client.begin_episode(task_id="t")
        other_id, other = client.begin_episode(task_id="t")
        assert (greedy.is_greedy, other.is_greedy) == (True, False)
        assert ask(greedy, temperature=0.7).headers["x-ignored-fields"] == "temperature"
        assert "x-ignored-fields" not in ask(greedy, temperature=0).headers
        assert "x-ignored-fields" not in ask(other, temperature=0.7).headers
        assert temperatures(client, greedy_id) == [0, 0]
        assert temperatures(client, other_id) == [0.7]
        assert [client.episode(each).episode.is_greedy for each in (greedy_id, other_id)] == [True, False]
        assert not client.begin_episode(episode_type="eval")[1].is_greedy
        with pytest.raises(BadRequest, match="name the task") as refused:
            client.begin_episode()
        assert refused.value.param == "task_id"


@pytest.mark.slow
def test_a_greedy_episode_outlives_its_server_and_stays_the_only_one(
    server_process: Callable[..., ServerProcess],
) -> None:
    server = server_process()
    with httpx.Client(base_url=server.url, timeout=60) as http, SwarmClient(server.url) as client:
        client.auto_sync_train_config_and_start_engine(JOB)
        greedy = begin(http, task_id="t")
        chat(http, greedy, "hello")
        server.kill()
        server.start()
        wait_for_state(http, "ROLLING")
        other = begin(http, task_id="t")
        assert (greedy["is_greedy"], other["is_greedy"]) == (True, False)
        chat(http, greedy, "hello again", temperature=0.9)
        end(http, greedy, task_id="t", reward=1.0)
        server.kill()
        server.start()
        wait_for_state(http, "ROLLING")
        assert not begin(http, task_id="t")["is_greedy"]
        assert begin(http, task_id="u")["is_greedy"]
        turns = http.get(f"/v1/swarm/episodes/{greedy['episode_id']}").json()["turns"]
    assert [turn["params"]["temperature"] for turn in turns] == [0, 0]
