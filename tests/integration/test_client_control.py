"""The client's control calls against a real server: policy, agreement, checkpoints, and what a dead client costs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from tests_support import ask
from waiting import wait_until

from swarm import SwarmClient, Task, TrainJob, WorkflowOutput
from swarm.errors import BadRequest

JOB = TrainJob(engine="fake", batch_size=2, num_repeat=2, drain_timeout_s=600)


@pytest.fixture
def client(start_server: Any) -> Iterator[SwarmClient]:
    with SwarmClient(start_server(JOB).url, client_id="test") as client:
        client.wait_until_step(0, timeout=30)
        wait_until(lambda: client.status().state == "ROLLING")
        yield client


def run_episode(client: SwarmClient, task: Task, reward: float, **output: Any) -> str:
    with client.open_episode(task) as episode:
        ask(episode.credentials, task.main_query)
        episode.output = WorkflowOutput(reward, **output)
    return episode.episode_id


def run_batch(client: SwarmClient, name: str, tasks: int = 2, repeats: int = 2, data_source: str = "default") -> None:
    for task, repeat in itertools.product(range(tasks), range(repeats)):
        run_episode(client, Task("q", f"{name}-{task}", data_source=data_source), float(repeat))


def test_policy_changes_with_the_next_batch(client: SwarmClient) -> None:
    changed = client.update_batch_policy(batch_size=1)
    assert changed.active.batch_size == 2
    assert changed.next is not None
    assert changed.next.batch_size == 1
    run_batch(client, "first")
    client.wait_until_step(1, timeout=60)
    wait_until(lambda: client.batch_policy().active.batch_size == 1)
    run_batch(client, "second", tasks=1)
    assert client.wait_until_step(2, timeout=60).step == 2
    with pytest.raises(BadRequest, match="sum to 1"):
        client.set_mixture({"math": 0.5})
    client.set_mixture({"math": 1.0})
    run_batch(client, "third", tasks=1)
    client.wait_until_step(3, timeout=60)
    with pytest.raises(BadRequest, match="talk"):
        client.begin_episode(data_source="talk", wait_timeout=1)
    run_batch(client, "fourth", tasks=1, data_source="math")
    assert client.wait_until_step(4, timeout=60).step == 4


def test_a_checkpoint_is_loaded_and_the_curve_starts_from_there(client: SwarmClient) -> None:
    run_batch(client, "a")
    client.wait_until_step(1, timeout=60)
    wait_until(lambda: client.status().state == "ROLLING")
    assert client.save_checkpoint().step == 1
    run_batch(client, "b")
    client.wait_until_step(2, timeout=60)
    wait_until(lambda: client.status().state == "ROLLING")
    client.load_checkpoint(1)
    wait_until(lambda: client.status().state == "ROLLING")
    assert client.status().step == 1
    assert "weights.rewound" in [event.kind for event in client.past_events()]


def test_training_waits_for_nobody_who_is_dead(client: SwarmClient) -> None:
    """A client that is closed with open episodes costs one lease, not the drain timeout of the batch."""
    with SwarmClient(client.url, client_id="leaver") as leaver:
        leaver.begin_episode(lease_s=1.0)
    run_batch(client, "t")
    assert client.wait_until_step(1, timeout=60).step == 1


def test_the_batch_trains_as_soon_as_every_living_client_agrees(start_server: Any) -> None:
    job = JOB.model_copy(update={"stop_rule": "all_clients_agree", "batch_size": 100})
    url = start_server(job).url
    with SwarmClient(url, client_id="a") as first, SwarmClient(url, client_id="b") as second:
        wait_until(lambda: first.status().state == "ROLLING")
        for client in (first, second):
            run_batch(client, client.client_id, tasks=1)
        agreed = first.agree_to_train()
        assert (agreed.agreed, agreed.will_close) == (["a"], False)
        agreed = second.agree_to_train()
        assert (agreed.agreed, agreed.will_close) == (["a", "b"], True)
        assert first.wait_until_step(1, timeout=60).step == 1
