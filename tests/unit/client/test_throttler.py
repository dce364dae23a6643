"""The throttler lets in as many as may run, as fast as they may begin, and as the batch has room for."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from client_answers import status_of
from hypothesis import given
from hypothesis import strategies as st
from server_processes import free_port
from waiting import wait_until

from swarm import AsyncSwarmClient, SwarmClient, Throttler, run_episodes_until_all_complete
from swarm.client.throttler import capacity_in_batch
from swarm.errors import BadRequest
from swarm.schemas import Status

pytestmark = pytest.mark.anyio


def status_with(
    *, state: str = "ROLLING", rule: str = "enough_tasks", target: int = 4, repeat: int = 2, step: int = 0,
    max_staleness: int = 0, clients: tuple[dict[str, Any], ...] = (), **pool: Any,
) -> dict[str, Any]:  # fmt: skip
    counts = {"episodes": 0, "tasks": 0, "running_train": 0, "sources": {}, **pool}
    return status_of(
        state=state,
        step=step,
        total_steps=9,
        clients=list(clients),
        pool={
            "stop_rule": rule, "episodes_target": target * repeat, "tasks_target": target, "running_eval": 0,
            "agreed": [], **counts,
        },
        policy={
            "stop_rule": rule, "batch_size": target, "num_repeat": repeat, "min_group": 1, "drain_timeout_s": 1.0,
            "batch_timeout_s": None, "group_timeout_s": 30.0,
            "stall_timeout_s": 300.0, "max_staleness": max_staleness, "mixture": None,
        },
    )  # fmt: skip


def room(data_source: str | None = None, pending: int = 0, ahead: float | None = None, **view: Any) -> float:
    return capacity_in_batch(Status.model_validate(status_with(**view)), data_source, ahead, pending)


class Gate:
    """Holds what was let in until it is opened; counts how many are inside."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.inside = 0
        self.most = 0
        self._lock = threading.Lock()

    @contextmanager
    def passing(self) -> Iterator[None]:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        yield
        with self._lock:
            self.inside -= 1


def test_tasks_of_a_loop_are_limited_together_with_threads() -> None:
    throttler, gate = Throttler(max_running=2), Gate()

    async def work() -> None:
        async with throttler:
            with gate.passing():
                await asyncio.sleep(0.005)

    async def many() -> None:
        await asyncio.gather(*(work() for _ in range(30)))

    def thread(_: int) -> None:
        with throttler, gate.passing():
            time.sleep(0.005)

    with ThreadPoolExecutor(4) as pool:
        threads = pool.map(thread, range(20))
        asyncio.run(asyncio.wait_for(many(), 60))
        list(threads)
    assert gate.most == 2
    assert throttler.running == 0


def test_episodes_begin_at_the_rate_without_bursts() -> None:
    throttler = Throttler(per_second=50)
    began: list[float] = []

    def work(_: int) -> None:
        with throttler:
            began.append(time.monotonic())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(20)))
    began.sort()
    assert began[-1] - began[0] >= 19 / 50 - 0.01


async def test_who_gives_up_waiting_leaves_its_place_to_the_next() -> None:
    throttler = Throttler(max_running=1)
    async with throttler:
        waiting = asyncio.create_task(throttler.__aenter__())
        following = asyncio.create_task(throttler.__aenter__())
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert not following.done()
    await asyncio.wait_for(following, 60)
    assert throttler.running == 1
    await throttler.__aexit__(None, None, None)
    assert throttler.running == 0


def test_an_exception_inside_frees_the_place() -> None:
    throttler = Throttler(max_running=1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), throttler:
            1 / 0  # noqa: B018


@pytest.mark.parametrize("limit", [{"max_running": 0}, {"per_second": -1.0}, {"ahead": 0}])
def test_a_limit_that_lets_nothing_in_is_refused(limit: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=next(iter(limit))):
        Throttler(**limit)


def test_a_fast_client_stops_when_the_batch_has_enough_and_goes_on_with_the_next(scripted: Any, canned: Any) -> None:
    source = {"episodes": 2, "tasks": 1, "tasks_target": 2, "running": 0}
    scripted.script(canned(body=status_with(sources={"math": source})))
    with SwarmClient(scripted.url, client_id="fast") as client:
        throttler, gate = Throttler(client, data_source="math"), Gate()

        def work(_: int) -> None:
            with throttler, gate.passing():
                gate.open.wait(60)

        with ThreadPoolExecutor(8) as pool:
            done = pool.map(work, range(8))
            wait_until(lambda: gate.inside == 2)
            time.sleep(0.3)
            assert gate.inside == 2
            begun = {"clients": ({"client_id": "fast", "last_seen_at": 0.0, "running": 2, "completed": 0, "lost": 0},)}
            full = {**source, "running": 2}
            scripted.script(canned(body=status_with(sources={"math": full}, **begun)))
            time.sleep(0.3)
            assert gate.inside == 2
            fresh = {**source, "episodes": 0, "tasks": 0, "running": 2}
            scripted.script(canned(body=status_with(sources={"math": fresh}, **begun)))
            wait_until(lambda: gate.inside == 4)
            gate.open.set()
            scripted.script(canned(body=status_with(step=9)))
            list(done)


def test_waiting_costs_few_calls_however_many_wait(scripted: Any, canned: Any) -> None:
    full = {"episodes": 4, "tasks": 2, "tasks_target": 2, "running": 0}
    scripted.script(canned(body=status_with(sources={"math": full})))
    with SwarmClient(scripted.url) as client:
        throttler = Throttler(client, data_source="math")

        def work(_: int) -> None:
            with throttler:
                pass

        with ThreadPoolExecutor(16) as pool:
            began = time.monotonic()
            done = pool.map(work, range(16))
            wait_until(lambda: len(scripted.heard) >= 2)
            time.sleep(1.0)
            assert len(scripted.heard) <= 12 * (time.monotonic() - began)
            scripted.script(canned(body=status_with(step=9)))
            list(done)


def test_a_server_that_is_away_stops_nobody() -> None:
    with SwarmClient(f"http://127.0.0.1:{free_port()}") as client, Throttler(client):
        pass


async def test_async_client_under_a_throttler(scripted: Any, canned: Any) -> None:
    scripted.script(canned(body=status_with(target=1, repeat=2, running_train=1)))
    async with AsyncSwarmClient(scripted.url) as client:
        throttler = Throttler(client)
        with pytest.raises(BadRequest, match="async with"), throttler:
            pass
        waiting = [asyncio.create_task(throttler.__aenter__()) for _ in range(5)]
        while not any(task.done() for task in waiting):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.4)
        admitted = sum(task.done() for task in waiting)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        # One runs elsewhere, one of ours, and the batch takes two.
        assert admitted == 1


def test_the_runner_goes_through_the_throttler() -> None:
    throttler, gate = Throttler(max_running=2), Gate()

    def work(_: int) -> None:
        with gate.passing():
            time.sleep(0.005)

    run_episodes_until_all_complete(range(20), work, max_workers=8, throttler=throttler)
    assert gate.most == 2


def test_room_is_what_the_batch_lacks_less_what_is_on_its_way() -> None:
    assert room() == 8
    assert room(episodes=3, tasks=1, running_train=2) == 3
    assert room(running_train=2, pending=3) == 3
    assert room(ahead=1.5) == 12
    assert room(max_staleness=2) == 24
    assert room(max_staleness=2, ahead=1) == 8
    assert room(episodes=8, tasks=4) == 0
    assert room(rule="enough_episodes", episodes=7) == 1
    quota = {"math": {"episodes": 1, "tasks": 0, "tasks_target": 1, "running": 1}}
    assert room("math", sources=quota) == 0
    assert room("unheard of", sources=quota) == 8


def test_scattered_episodes_do_not_starve_the_batch() -> None:
    # Eight episodes of eight tasks: none is complete, four are wanted.
    assert room(episodes=8, tasks=0) == 4
    assert room(episodes=8, tasks=0, running_train=4) == 0


def test_room_is_for_the_next_batch_while_weights_change() -> None:
    assert room(state="TRAINING", episodes=8, tasks=4) == 8
    assert room(state="TRAINING", episodes=8, tasks=4, running_train=4, pending=6) == 2


@pytest.mark.parametrize(
    "view",
    [
        {"state": "OFFLINE"},
        {"state": "FAILED"},
        {"step": 9},
        {"rule": "any_client_agrees"},
        {"rule": "all_clients_agree"},
    ],
)
def test_where_the_server_answers_for_itself_nobody_waits(view: dict[str, Any]) -> None:
    assert room(episodes=99, tasks=99, **view) == float("inf")


@given(
    target=st.integers(1, 20), repeat=st.integers(1, 8), episodes=st.integers(0, 200), running=st.integers(0, 200),
    pending=st.integers(0, 200), done=st.integers(0, 20),
)  # fmt: skip
def test_an_incomplete_batch_with_nothing_on_its_way_always_has_room(
    target: int, repeat: int, episodes: int, running: int, pending: int, done: int
) -> None:
    tasks = min(done, target, episodes // repeat)
    found = room(target=target, repeat=repeat, episodes=episodes, tasks=tasks, running_train=running, pending=pending)
    if tasks < target and not running and not pending:
        assert found >= 1
    assert found + running + pending <= target * repeat
