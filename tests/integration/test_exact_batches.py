"""The client library against a server: every batch is what the job says, however many workers there are."""

from __future__ import annotations

import itertools
import threading
from collections import Counter, defaultdict
from typing import Any

import pytest
from tests_support import ask

from swarm import Credentials, SwarmClient, Task, TrainJob, WorkflowOutput, run_episodes_until_all_complete

BATCHES, BATCH_SIZE, NUM_REPEAT = 6, 8, 4
TASKS = [Task(f"question {number}", f"t{number}") for number in range(BATCHES * BATCH_SIZE)]


def groups_by_batch(client: SwarmClient) -> dict[str, Counter[str | None]]:
    """How many episodes of each task every trained batch has."""
    found: defaultdict[str, Counter[str | None]] = defaultdict(Counter)
    for episode in client.episodes(limit=10_000, state="trained"):
        found[str(episode.batch_id)][episode.task_id] += 1
    return found


@pytest.mark.parametrize(
    ("workers", "is_named"),
    [(64, True), pytest.param(1, False, marks=pytest.mark.slow), pytest.param(200, True, marks=pytest.mark.slow)],
)
def test_so_many_tasks_make_so_many_batches_whatever_the_number_of_workers(
    start_server: Any, workers: int, is_named: bool
) -> None:
    job = TrainJob(engine="fake", batch_size=BATCH_SIZE, num_repeat=NUM_REPEAT, total_steps=BATCHES)
    server = start_server(job)
    with SwarmClient(server.url) as client:

        def rollout(item: Any) -> None:
            task = item if is_named else TASKS[item]
            # Inside the runner the episode is of the task at hand, if that is a Task.
            episode_id, credentials = client.begin_episode()
            ask(credentials)
            client.end_episode(task, episode_id, WorkflowOutput(1.0))

        items = TASKS if is_named else list(range(len(TASKS)))
        runs = run_episodes_until_all_complete(items, rollout, max_workers=workers, num_repeat=NUM_REPEAT)
        assert runs.failures == ()
        client.wait_until_step(BATCHES, timeout=60)
        batches = groups_by_batch(client)
        assert len(batches) == BATCHES
        for groups in batches.values():
            assert len(groups) == BATCH_SIZE
            assert set(groups.values()) == {NUM_REPEAT}
        assert all(point.metrics["batch/short_groups"] == 0 for point in client.metrics())


def test_attempts_that_fail_for_good_leave_named_survivors_and_hold_nobody_up(start_server: Any) -> None:
    job = TrainJob(
        engine="fake", batch_size=BATCH_SIZE, num_repeat=NUM_REPEAT, total_steps=BATCHES, group_timeout_s=3600
    )
    server = start_server(job)
    failed: Counter[str] = Counter()
    lock, calls = threading.Lock(), itertools.count()
    with SwarmClient(server.url) as client:

        def agent(task: Task, credentials: Credentials) -> WorkflowOutput:
            ask(credentials)
            with lock:
                # At most two of four, so that every group keeps enough to compare.
                if failed[task.task_id] < int(task.task_id[1:]) % 3:
                    failed[task.task_id] += 1
                    raise ValueError("some go wrong")
                return WorkflowOutput(float(next(calls) % 2))

        run_episodes_until_all_complete(TASKS, agent, max_workers=64, num_repeat=NUM_REPEAT, client=client)
        client.wait_until_step(BATCHES, timeout=60)
        batches = groups_by_batch(client)
        points = client.metrics()
    assert len(batches) == BATCHES
    short = 0
    for groups in batches.values():
        assert len(groups) == BATCH_SIZE
        for task_id, size in groups.items():
            assert size + failed[str(task_id)] == NUM_REPEAT
            short += size < NUM_REPEAT
    assert short == sum(point.metrics["batch/short_groups"] for point in points) > BATCHES
