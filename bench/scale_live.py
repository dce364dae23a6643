"""Scale, measured: real clients over HTTP, a real server, and a sampler and trainer that only take time.

Place in the flow: a benchmark, which holds the simulation of bench/scale against the same cases on a real server.
Clients and server share the machine, so each case is slow enough that neither is busy for much of the time.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import httpx
import psutil

from bench.control_plane import CALL_LIMIT_S, START_LIMIT_S, start_server
from bench.results import Result
from bench.scale import case_of, results_of
from bench.scale.setup import Batching, Cluster, Setup, SteadyState, Workload
from bench.scale.simulation import simulate
from swarm import AsyncConnectionStack, AsyncSwarmClient, EngineFailure, Task, WorkflowOutput
from swarm.client.episode import Credentials
from swarm.schemas import MetricPointView

BENCHMARK = "scale_live"
WORKLOAD = Workload(turns=3, turn_tokens=12, read_tokens=8, tool_s=0.3, length_sigma=0.5)
CLUSTER = Cluster(
    replicas=2,
    token_s=0.015,
    token_per_request_s=0.0003,
    max_num_seqs=64,
    ranks=1,
    rank_tokens_per_s=4_000,
    step_overhead_s=0.2,
    publish_s=0.1,
)
"""Speeds before they are slowed for the machine. A token stands for forty, or the event loop would be measured."""
CLIENTS = (8, 32, 128, 256)
STALENESS = (0, 2)
TASKS, NUM_REPEAT = 4, 4
CLIENTS_PER_TASK = 8
"""Larger cases have larger batches, of TASKS at least: a step is two rounds at most, or half of one."""
STEPS, WARM_UP = 6, 2
CALLS_PER_S = 40.0
LEAST_SLOWING = 2.0
"""What clients and server on two shared cores take with little queueing, and tokens no faster than 30 ms each."""
LOOK_S = 0.2
STEP_LIMIT_S = 120.0
WAIT_S = 600.0


@dataclass(frozen=True, slots=True)
class LiveMeasurement:
    """`cpu_s_per_call` is what the server's process worked per model call, its share of begins and ends included."""

    outcome: SteadyState
    cpu_s_per_call: float


@dataclass(frozen=True, slots=True)
class _Sighting:
    """The totals up to a time. `call_s` and `episode_s` sum over calls and ended episodes."""

    calls: int = 0
    call_s: float = 0.0
    episode_s: float = 0.0
    cpu_s: float = 0.0


@dataclass(slots=True)
class _Load:
    """Clients that run episodes until they are cancelled."""

    setup: Setup
    client: AsyncSwarmClient
    http: httpx.AsyncClient
    chance: random.Random
    so_far: _Sighting = field(default_factory=_Sighting)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    async def keep_running(self) -> None:
        sigma = self.setup.workload.length_sigma
        while True:
            episode_id, credentials = await self.client.begin_episode(
                discard_episode_timeout=WAIT_S, wait_timeout=WAIT_S
            )
            began, number = time.perf_counter(), next(self._numbers)
            await self._run_turns(credentials, self.chance.lognormvariate(-(sigma**2) / 2, sigma))
            task = Task("Reverse: ABC", f"task-{number // self.setup.batching.num_repeat}")
            await self.client.end_episode(task, episode_id, WorkflowOutput(reward=float(number % 2)))
            self._add(episode_s=time.perf_counter() - began)

    async def _run_turns(self, credentials: Credentials, length: float) -> None:
        workload = self.setup.workload
        for turn in range(workload.turns):
            await asyncio.sleep(workload.tool_s * length)
            called = time.perf_counter()
            answer = await self.http.post(
                f"{credentials.base_url}/chat/completions",
                headers={"Authorization": f"Bearer {credentials.api_key}"},
                json={
                    "model": credentials.model,
                    "messages": [{"role": "user", "content": f"Turn {turn}"}],
                    # Rounded up or down by chance, so that the mean is kept.
                    "max_tokens": max(1, int(workload.turn_tokens * length + self.chance.random())),
                },
            )
            answer.raise_for_status()
            self._add(calls=1, call_s=time.perf_counter() - called)

    def _add(self, *, calls: int = 0, call_s: float = 0.0, episode_s: float = 0.0) -> None:
        past = self.so_far
        self.so_far = replace(
            past, calls=past.calls + calls, call_s=past.call_s + call_s, episode_s=past.episode_s + episode_s
        )


def run(seconds: float) -> list[Result]:
    """Return the outcome of each case, which takes `seconds` or longer, and by how much the simulation misses it.

    Raises EngineFailure if a server does not start or a step takes too long, and what a failing call raises.
    """
    results: list[Result] = []
    for clients in CLIENTS:
        for staleness in STALENESS:
            setup = _build(clients, staleness)
            steps = max(STEPS, math.ceil(seconds / simulate(setup).step_s))
            live = measure(setup, steps=steps, warm_up=WARM_UP)
            case, simulated = case_of(setup), simulate(calibrated(setup, live))
            results += results_of(BENCHMARK, case, live.outcome)
            results += results_of(BENCHMARK, f"{case}, simulated", simulated)
            error = 100 * (simulated.step_s / live.outcome.step_s - 1)
            results.append(Result(BENCHMARK, case, "simulation_error_step_s", error, "%"))
    return results


def calibrated(setup: Setup, live: LiveMeasurement) -> Setup:
    """Return the case with the measured time of the server's process for a call."""
    return replace(setup, cluster=replace(setup.cluster, gateway_call_s=live.cpu_s_per_call))


def _build(clients: int, max_staleness: int) -> Setup:
    """Return a case that is slow enough for its clients to make at most CALLS_PER_S calls per second together."""
    batching = Batching(max(TASKS, clients // CLIENTS_PER_TASK), NUM_REPEAT, max_staleness)
    setup = Setup(WORKLOAD, CLUSTER, batching, clients)
    running_alone = min(clients, batching.room) * WORKLOAD.turns / setup.unloaded_s
    calls_per_s = min(running_alone, CLUSTER.peak_tokens_per_s / WORKLOAD.turn_tokens)
    return _slow_down(setup, max(LEAST_SLOWING, calls_per_s / CALLS_PER_S))


def _slow_down(setup: Setup, factor: float) -> Setup:
    """Return the same case with everything but the gateway slower by this factor."""
    cluster = setup.cluster
    return replace(
        setup,
        workload=replace(setup.workload, tool_s=setup.workload.tool_s * factor),
        cluster=replace(
            cluster,
            token_s=cluster.token_s * factor,
            token_per_request_s=cluster.token_per_request_s * factor,
            rank_tokens_per_s=cluster.rank_tokens_per_s / factor,
            step_overhead_s=cluster.step_overhead_s * factor,
            publish_s=cluster.publish_s * factor,
        ),
    )


def measure(setup: Setup, *, steps: int, warm_up: int, seed: int = 0) -> LiveMeasurement:
    """Measure a setup and return the outcome over `steps` batches after `warm_up` ones.

    Raises EngineFailure if the server does not start or a step takes too long, and what a failing call raises.
    """
    return asyncio.run(_measure(setup, steps, warm_up, seed))


async def _measure(setup: Setup, steps: int, warm_up: int, seed: int) -> LiveMeasurement:
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-scale-"))
        program = ("bench.scale.server", json.dumps(asdict(_on_sampled_tokens(setup))))
        url, pid = stack.enter_context(start_server(Path(directory), program))
        client = await stack.enter_async_context(AsyncSwarmClient(url, client_id="bench", timeout=CALL_LIMIT_S))
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=WAIT_S, transport=AsyncConnectionStack()))
        await client.auto_sync_train_config_and_start_engine(setup.batching.job(), boot_timeout=START_LIMIT_S)
        load = _Load(setup, client, http, random.Random(seed))
        clients = [asyncio.create_task(load.keep_running()) for _ in range(setup.clients)]
        try:
            return await _watch(setup, load, clients, psutil.Process(pid), steps, warm_up)
        finally:
            for each in clients:
                each.cancel()
            await asyncio.gather(*clients, return_exceptions=True)


def _on_sampled_tokens(setup: Setup) -> Cluster:
    """Return the trainer's cluster with its speed counted in sampled tokens, the only ones that it sees."""
    share = setup.workload.sampled_tokens / setup.workload.trained_tokens
    return replace(setup.cluster, rank_tokens_per_s=setup.cluster.rank_tokens_per_s * share)


async def _watch(
    setup: Setup,
    load: _Load,
    clients: Sequence[asyncio.Task[None]],
    server: psutil.Process,
    steps: int,
    warm_up: int,
) -> LiveMeasurement:
    await _until_step(load.client, warm_up, clients)
    before = _sight(load, server)
    await _until_step(load.client, warm_up + steps, clients)
    after = _sight(load, server)
    points = await load.client.metrics()
    outcome = _outcome(setup, points[warm_up - 1 : warm_up + steps], before, after)
    return LiveMeasurement(outcome, (after.cpu_s - before.cpu_s) / (after.calls - before.calls))


async def _until_step(client: AsyncSwarmClient, step: int, clients: Sequence[asyncio.Task[None]]) -> None:
    """Wait for a step, each at most STEP_LIMIT_S seconds. Raises what a client raised, or EngineFailure."""
    done, deadline = 0, time.monotonic() + STEP_LIMIT_S
    while done < step:
        for each in clients:
            if each.done():
                each.result()
        status = await client.status()
        if status.step > done:
            done, deadline = status.step, time.monotonic() + STEP_LIMIT_S
        if time.monotonic() > deadline:
            raise EngineFailure(f"no step within {STEP_LIMIT_S:.0f} s: the server is {status.state}")
        await asyncio.sleep(LOOK_S)


def _sight(load: _Load, server: psutil.Process) -> _Sighting:
    used = server.cpu_times()
    return replace(load.so_far, cpu_s=used.user + used.system)


def _outcome(setup: Setup, points: Sequence[MetricPointView], before: _Sighting, after: _Sighting) -> SteadyState:
    """Return the means over the steps after the first point, which ends the warm-up."""
    first, last, measured = points[0], points[-1], points[1:]
    seconds, steps = last.at - first.at, len(measured)

    def total(name: str) -> float:
        return sum(point.metrics[name] for point in measured)

    def grown(name: str) -> float:
        return last.metrics[name] - first.metrics[name]

    episodes, dropped = total("batch/episodes"), total("batch/dropped_episodes")
    episode_s = after.episode_s - before.episode_s
    rolling_s = seconds - total("scale/train_s") - steps * setup.cluster.publish_s
    lost_s = max(0.0, rolling_s - episode_s / min(setup.clients, setup.batching.episodes))
    stale = sum(point.metrics["scale/staleness_mean"] * point.metrics["batch/episodes"] for point in measured)
    call_s = (after.call_s - before.call_s) / (after.calls - before.calls)
    return SteadyState(
        step_s=seconds / steps,
        episodes_per_s=episodes / seconds,
        batch_episodes=episodes / steps,
        trainer_utilization=total("scale/train_s") / seconds,
        sampler_utilization=grown("scale/tokens") / seconds / setup.cluster.peak_tokens_per_s,
        staleness_mean=stale / episodes,
        staleness_max=max(point.metrics["scale/staleness_max"] for point in measured),
        straggler_share=0.0 if setup.batching.max_staleness else lost_s / seconds,
        dropped_share=dropped / (dropped + episodes),
        gateway_s=max(0.0, call_s - grown("scale/busy_s") / grown("scale/calls")),
        running=episode_s / seconds,
    )
