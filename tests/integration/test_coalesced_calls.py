"""Calls of many threads or tasks leave in few requests, and each caller knows nothing of it."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from faulty_proxy import Attempt, Fault, FaultyProxy
from tests_support import WAIT_S, wait_for_state

from swarm.client import AsyncConnectionStack, AsyncSwarmClient, ConnectionStack, SwarmClient
from swarm.client.coalescing import departures
from swarm.client.plans import exchange
from swarm.errors import IdempotencyMismatch, NotFound, SwarmError
from swarm.job import TrainJob
from swarm.types import EpisodeType, Task, WorkflowOutput

JOB = TrainJob(engine="fake", batch_size=1000)
TASK = Task("2+2?", "sum")
BEGIN, BEGIN_MANY, END_MANY = "/episodes/begin", "/episodes/begin_many", "/episodes/end_many"
CALLERS = 8
LIMIT_S = 120


class Gate(ConnectionStack):
    """Notes the path of each request, and keeps the first that it `stops` until it is open."""

    def __init__(self, stops: str) -> None:
        super().__init__()
        self.paths: list[str] = []
        self.arrived, self.is_open = threading.Event(), threading.Event()
        self.interrupts: list[BaseException] = []
        self._stops = stops

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.paths.append(request.url.path.removeprefix("/v1/swarm"))
        if self.paths[-1].endswith(self._stops) and not self.arrived.is_set():
            self.arrived.set()
            assert self.is_open.wait(LIMIT_S)
        if self.paths[-1].endswith("_many") and self.interrupts:
            raise self.interrupts.pop()
        return super().handle_request(request)

    def sent(self, path: str) -> int:
        return sum(each.endswith(path) for each in self.paths)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """What is collected waits for the gate, however busy the machine is."""
    if "stage" in request.fixturenames:
        monkeypatch.setattr(departures, "SLOW_S", 1000.0)


@pytest.fixture
def stage(start_server: Any) -> Iterator[Callable[..., tuple[SwarmClient, Gate]]]:
    clients: list[SwarmClient] = []

    def open_client(stops: str, **settings: Any) -> tuple[SwarmClient, Gate]:
        server = start_server(JOB, **settings)
        with httpx.Client(base_url=server.url, timeout=60) as http:
            wait_for_state(http, "ROLLING")
        gate = Gate(stops)
        clients.append(SwarmClient(server.url, transport=gate))
        return clients[-1], gate

    yield open_client
    for client in clients:
        client.close()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def waiting(client: SwarmClient | AsyncSwarmClient) -> int:
    return sum(len(each.waiting) for each in client._coalescer._departures.values())


def call_together(
    pool: ThreadPoolExecutor, client: SwarmClient, gate: Gate, *work: Callable[[], Any]
) -> list[Future[Any]]:
    """The first is on its way when the others come, each of them behind the one before."""
    futures = [pool.submit(work[0])]
    assert gate.arrived.wait(LIMIT_S)
    for count, each in enumerate(work[1:], start=1):
        futures.append(pool.submit(each))
        wait_until(lambda expected=count: waiting(client) == expected)
    gate.is_open.set()
    return futures


def begin_eval(client: SwarmClient) -> str:
    return client.begin_episode(EpisodeType.EVAL, wait_timeout=LIMIT_S)[0]


def test_calls_that_come_while_one_is_on_its_way_leave_together(stage: Any) -> None:
    client, gate = stage(BEGIN)
    with ThreadPoolExecutor(CALLERS) as pool:
        begun = call_together(pool, client, gate, *[lambda: begin_eval(client)] * CALLERS)
        ids = [future.result(LIMIT_S) for future in begun]
    assert len(set(ids)) == CALLERS
    assert (gate.sent(BEGIN), gate.sent(BEGIN_MANY)) == (1, 1)
    assert {client.episode(each).episode.state for each in ids} == {"running"}


def test_a_call_that_is_alone_leaves_at_once_and_by_its_own_route(stage: Any) -> None:
    client, gate = stage("no such path")
    for _ in range(3):
        client.end_episode(TASK, begin_eval(client), WorkflowOutput(1.0))
    assert gate.sent("_many") == 0


def test_each_caller_gets_its_own_answer_or_error(stage: Any) -> None:
    client, gate = stage("/end")
    first, ended, good = (begin_eval(client) for _ in range(3))
    with httpx.Client(base_url=client.url) as http:
        http.post(f"/v1/swarm/episodes/{ended}/end", json={"task_id": "sum", "reward": 0.0}).raise_for_status()

    def end(episode_id: str) -> Callable[[], Any]:
        return lambda: client.end_episode(TASK, episode_id, WorkflowOutput(1.0))

    with ThreadPoolExecutor(4) as pool:
        futures = call_together(pool, client, gate, end(first), end("none"), end(ended), end(good))
        assert futures[0].result(LIMIT_S).state == "completed"
        with pytest.raises(NotFound):
            futures[1].result(LIMIT_S)
        with pytest.raises(IdempotencyMismatch):
            futures[2].result(LIMIT_S)
        assert futures[3].result(LIMIT_S).state == "completed"
    assert gate.sent(END_MANY) == 1


def test_an_entry_that_spoils_a_whole_request_spoils_only_its_own_call(stage: Any) -> None:
    client, gate = stage("/end")
    first, deep, good = (begin_eval(client) for _ in range(3))
    nested: Any = []
    for _ in range(250):
        nested = [nested]
    outputs = [WorkflowOutput(1.0), WorkflowOutput(1.0, metadata={"deep": nested}), WorkflowOutput(1.0)]
    work = [
        lambda episode_id=episode_id, output=output: client.end_episode(TASK, episode_id, output)
        for episode_id, output in zip((first, deep, good), outputs, strict=True)
    ]
    with ThreadPoolExecutor(3) as pool:
        one, spoilt, other = call_together(pool, client, gate, *work)
        assert one.result(LIMIT_S).state == other.result(LIMIT_S).state == "completed"
        with pytest.raises(SwarmError):
            spoilt.result(LIMIT_S)


def test_a_begin_that_is_held_holds_none_that_left_with_it(stage: Any) -> None:
    client, gate = stage(BEGIN, max_running_episodes=3)
    with ThreadPoolExecutor(5) as pool:
        futures = call_together(pool, client, gate, *[lambda: begin_eval(client)] * 5)
        running = [future.result(LIMIT_S) for future in futures[:3]]
        assert not any(future.done() for future in futures[3:])
        for ended, future in zip(running, futures[3:], strict=False):
            client.end_episode(TASK, ended, WorkflowOutput(1.0))
            assert future.result(LIMIT_S)
    assert gate.sent(BEGIN_MANY) == 1


def test_an_interrupt_in_the_thread_that_sends_for_all_loses_no_call_of_the_others(stage: Any) -> None:
    client, gate = stage(BEGIN)
    gate.interrupts.append(KeyboardInterrupt())
    with ThreadPoolExecutor(CALLERS) as pool:
        futures = call_together(pool, client, gate, *[lambda: begin_eval(client)] * CALLERS)
        wait_until(lambda: all(future.done() for future in futures))
    errors = [future.exception() for future in futures]
    assert Counter(type(error) for error in errors) == {type(None): CALLERS - 1, KeyboardInterrupt: 1}
    assert len(client.episodes(state="running")) == CALLERS - 1


class AsyncGate(AsyncConnectionStack):
    """The same for tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: list[str] = []
        self.is_open = asyncio.Event()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.paths.append(request.url.path)
        if len(self.paths) == 1:
            await self.is_open.wait()
        return await super().handle_async_request(request)


def test_a_task_that_is_cancelled_takes_no_place_and_none_of_the_others_with_it(
    start_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(departures, "SLOW_S", 1000.0)
    server = start_server(JOB, max_running_episodes=2)
    with httpx.Client(base_url=server.url, timeout=60) as http:
        wait_for_state(http, "ROLLING")

    async def scenario() -> None:
        gate = AsyncGate()
        async with AsyncSwarmClient(server.url, transport=gate) as client:
            tasks: list[asyncio.Task[Any]] = []
            for count in range(5):
                tasks.append(asyncio.create_task(client.begin_episode("eval", wait_timeout=LIMIT_S)))
                await asyncio.sleep(0)
                assert waiting(client) == count
            tasks[1].cancel()
            await asyncio.wait({tasks[1]})
            gate.is_open.set()
            first, second = [(await task)[0] for task in (tasks[0], tasks[2])]
            # Both of the others are held in the same request.
            assert gate.paths[-1].endswith(BEGIN_MANY)
            tasks[3].cancel()
            await asyncio.wait({tasks[3]})
            await client.end_episode(TASK, first, WorkflowOutput(1.0))
            last = (await asyncio.wait_for(tasks[4], LIMIT_S))[0]
            while {row.episode_id for row in await client.episodes(state="running")} != {second, last}:
                await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(scenario(), WAIT_S))


def choose_by(seed: int) -> Callable[[Attempt], Fault]:
    generator = random.Random(seed)
    faults = [Fault.NONE] * 3 + [Fault.LOSE_REQUEST, Fault.LOSE_REPLY, Fault.CUT_REPLY, Fault.BREAK_OFF]
    return lambda attempt: generator.choice(faults)


def test_every_episode_is_begun_and_ended_once_whatever_answers_are_lost(
    start_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Many answers in a row are lost, after which a client waits for seconds before it asks again.
    monkeypatch.setattr(exchange, "MAX_PAUSE_S", exchange.FIRST_PAUSE_S)
    server = start_server(JOB)
    with httpx.Client(base_url=server.url, timeout=60) as http:
        wait_for_state(http, "ROLLING")
    met: set[str] = set()

    def choose(attempt: Attempt) -> Fault:
        met.add(attempt.target)
        return by_seed(attempt)

    by_seed = choose_by(7)
    with FaultyProxy(server.url, choose).running() as proxy:
        rewards = dict(run_in_threads(proxy.url) + asyncio.run(run_in_tasks(proxy.url)))
    assert {target.rpartition("/")[2] for target in met} >= {"begin_many", "end_many"}
    with SwarmClient(server.url) as client:
        rows = client.episodes(limit=10_000)
        assert {row.episode_id: (row.state, row.reward) for row in rows} == {
            episode_id: ("completed", reward) for episode_id, reward in rewards.items()
        }


EPISODES = 60


def run_in_threads(url: str) -> list[tuple[str, float]]:
    with SwarmClient(url, timeout=LIMIT_S) as client, ThreadPoolExecutor(12) as pool:

        def run(number: int) -> tuple[str, float]:
            episode_id, _ = client.begin_episode("eval", lease_s=None, wait_timeout=LIMIT_S)
            client.end_episode(TASK, episode_id, WorkflowOutput(float(number)), wait_timeout=LIMIT_S)
            return episode_id, float(number)

        return list(pool.map(run, range(EPISODES)))


async def run_in_tasks(url: str) -> list[tuple[str, float]]:
    async with AsyncSwarmClient(url, timeout=LIMIT_S) as client:

        async def run(number: int) -> tuple[str, float]:
            episode_id, _ = await client.begin_episode("eval", lease_s=None, wait_timeout=LIMIT_S)
            await client.end_episode(TASK, episode_id, WorkflowOutput(float(number)), wait_timeout=LIMIT_S)
            return episode_id, float(number)

        return await asyncio.gather(*(run(number) for number in range(EPISODES)))
