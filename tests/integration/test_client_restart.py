"""kill -9 of the server under a rollout: the clients wait, go on, and nobody but the model calls in flight notices."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import httpx
import pytest
from server_processes import ServerProcess

from swarm import ConnectionStack, SwarmClient, Task, WorkflowOutput, run_episodes_until_all_complete
from swarm.schemas import EventView

JOB = {"engine": "fake", "batch_size": 4, "num_repeat": 4}
# Half of what the tasks below would fill: on-policy, what runs while a batch is complete is too much for it.
TRAINED = 8


@pytest.fixture
def server(server_process: Callable[..., ServerProcess]) -> ServerProcess:
    server = server_process()
    with SwarmClient(server.url) as client:
        client.auto_sync_train_config_and_start_engine(JOB)
    return server


def call_model(http: httpx.Client, base_url: str, api_key: str) -> None:
    reply = http.post(
        f"{base_url}/chat/completions",
        headers={"authorization": f"Bearer {api_key}"},
        json={"model": "default", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]},
    )
    reply.raise_for_status()


@pytest.mark.timeout(400)
def test_a_rollout_and_a_watcher_go_on_over_a_killed_server(server: ServerProcess) -> None:
    seen: list[EventView] = []
    with (
        SwarmClient(server.url, client_id="steady") as client,
        SwarmClient(server.url, client_id="watcher") as watcher,
        httpx.Client(timeout=30, transport=ConnectionStack()) as http,
    ):
        client.wait_until_step(0, timeout=60)
        done_steps = threading.Event()

        def watch() -> None:
            for event in watcher.events():
                seen.append(event)
                if event.kind == "batch.trained" and sum(each.kind == "batch.trained" for each in seen) >= TRAINED:
                    done_steps.set()
                    return

        def attempt(task: Task) -> None:
            with client.open_episode(task) as episode:
                call_model(http, episode.credentials.base_url, episode.credentials.api_key)
                time.sleep(0.05)
                episode.output = WorkflowOutput(reward=float(len(episode.episode_id) % 2))

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        tasks = [Task("q", f"task-{number}") for number in range(60)]
        killed = threading.Thread(target=kill_and_restart, args=(server, client))
        killed.start()
        runs = run_episodes_until_all_complete(tasks, attempt, max_workers=8, num_repeat=4)
        killed.join(timeout=60)
        assert runs.failures == ()
        assert done_steps.wait(30), [event.kind for event in seen]
        points = client.metrics()
        watching.join(timeout=60)
    ids = [event.event_id for event in seen]
    assert ids == sorted(set(ids))
    assert [point.step for point in points] == list(range(1, len(points) + 1))
    assert len(points) >= TRAINED


def kill_and_restart(server: ServerProcess, client: SwarmClient) -> None:
    client.wait_until_step(3, timeout=60)
    server.kill()
    time.sleep(1.0)
    server.start()
