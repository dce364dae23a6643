"""A program that is started again meets nothing of its dead predecessor, and leaves the episodes of others alone."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import httpx
import pytest

from swarm import SwarmClient, SwarmTeam, Task, TrainJob, WorkflowOutput
from swarm.environments import load_environment
from swarm.processes.child import own_name
from swarm.program import train
from swarm.program.attempts import ModelKey, model_of
from swarm.program.order import DEAD_CLIENT, give_up_dead, stream
from swarm.tasks import Split

JOB = TrainJob(
    engine="fake", batch_size=3, num_repeat=2, total_steps=4, group_timeout_s=3600, stall_timeout_s=3600, seed=3
)
COMMANDER, ROLLOUT = "commander-0123456789", "rollout-0123456789"


@pytest.fixture
def server(start_server: Any) -> Iterator[SwarmClient]:
    with SwarmClient(start_server(JOB).url, client_id=own_name()) as client:
        client.auto_sync_train_config_and_start_engine(JOB)
        yield client


@pytest.fixture(scope="module")
def dead_name() -> str:
    """What a program of this host called itself that is gone."""
    code = "from swarm.processes.child import own_name; print(own_name())"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_the_episodes_of_a_dead_program_are_given_up_at_once_and_no_others(server: SwarmClient, dead_name: str) -> None:
    names = (dead_name, own_name(), "elsewhere:1:2", "vm-17")
    begun: dict[str, str] = {}
    clients = [SwarmClient(server.url, client_id=name) for name in names]
    for name, client in zip(names, clients, strict=True):
        # As many tasks as a batch has room for.
        begun[name], _ = client.begin_episode(task_id="own" if name in names[:2] else name)
    # An eval episode holds no place.
    held_out, _ = clients[0].begin_episode("eval")
    give_up_dead(server)
    gone = server.episode(begun[dead_name]).episode
    assert (gone.state, gone.outcome) == ("aborted", DEAD_CLIENT)
    running = {view.episode_id for view in server.episodes(state="running")}
    assert running == {held_out, *(begun[name] for name in names[1:])}
    for client in clients:
        client.close()


def test_what_a_dead_program_had_prepared_on_several_servers_counts_on_none(start_server: Any, dead_name: str) -> None:
    urls = [start_server(JOB).url for _ in range(2)]
    clients = [SwarmClient(url, client_id=dead_name) for url in urls]
    for client in clients:
        client.auto_sync_train_config_and_start_engine(JOB)
    task = Task("q", "t")
    begun = SwarmTeam({"a": clients[0], "b": clients[1]}).begin_all(task)
    for client, name, coordinator in zip(clients, "ab", (None, urls[0]), strict=True):
        client.prepare_episode(
            task, begun[name][0], WorkflowOutput(1.0), transaction_id="t" * 32, coordinator=coordinator
        )
    for client in clients:
        give_up_dead(client)
    states = [client.episode(begun[name][0]).episode.state for client, name in zip(clients, "ab", strict=True)]
    assert states == ["aborted", "aborted"]
    for client in clients:
        client.close()


def test_a_token_that_may_not_read_what_runs_leaves_it(start_server: Any, dead_name: str) -> None:
    url = start_server(JOB, token=COMMANDER, rollout_token=ROLLOUT).url
    with SwarmClient(url, COMMANDER, client_id=dead_name) as dead, SwarmClient(url, ROLLOUT) as client:
        dead.auto_sync_train_config_and_start_engine(JOB)
        begun, _ = dead.begin_episode(task_id="t")
        give_up_dead(client)
        assert client.task_counts() == []
        assert dead.episode(begun).episode.state == "running"


def test_a_run_that_was_cut_off_trains_what_is_missing_and_a_longer_one_goes_on(
    server: SwarmClient, dead_name: str
) -> None:
    reverse = load_environment("reverse")
    wanted = [item.task for item in islice(stream(reverse, Split.TRAIN, JOB.seed), 15)]
    with SwarmClient(server.url, client_id=dead_name) as dead, httpx.Client(timeout=60) as http:
        # The second task is whole, of the third one attempt has ended and one was cut off.
        for task in (wanted[1], wanted[1], wanted[2]):
            with dead.open_episode(task) as episode:
                key = episode.credentials
                model_of({"": ModelKey(key.base_url, key.api_key, key.model, 4)}, http).chat(
                    [{"role": "user", "content": task.main_query}]
                )
                episode.output = WorkflowOutput(0.5)
        dead.begin_episode(task_id=wanted[2].task_id, data_source=wanted[2].data_source)
        assert train(server, reverse, JOB, max_workers=2).steps == 4
        longer = JOB.model_copy(update={"total_steps": 5})
        server.auto_sync_train_config_and_start_engine(longer)
        assert train(server, reverse, longer, max_workers=8).steps == 5
    assert [point.metrics["batch/episodes"] for point in server.metrics()] == [6.0] * 5
    trained = Counter(view.task_id for view in server.episodes(state="trained"))
    assert trained == {task.task_id: 2 for task in wanted}
