"""Utilisation and staleness by simulation: the service's own admission, pool and states in simulated time.

Place in the flow: takes a `Setup`, gives a `SteadyState` in seconds. Real are who may begin (rollout/admission.py),
what a batch holds, keeps and drops (batch/), and the engine's states; a training step has the order of trainer/loop.py.
Simulated are clients, tools, gateway, samplers and the trainer's time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from bench.scale.setup import Setup, SteadyState
from bench.scale.stations import Gateway, SimulatedReplica, run_simulated
from swarm.batch import BatchPolicy, BatchPool, ClosedBatch, Place
from swarm.rollout.admission import Admission
from swarm.run.lifecycle import EngineLifecycle
from swarm.schemas import EngineState
from swarm.types import DEFAULT_DATA_SOURCE, EpisodeType, FinishedEpisode, Sample, WeightVersion

FOREVER_S = 1e12
INSTANT_S = 1e-6
MOST_RUNNING = 1_000_000


@dataclass(slots=True)
class Tally:
    """Counters that only grow.

    `episode_s` sums the durations of the episodes that left the pool. `lost_s` sums the time that batches waited for
    stragglers, and `gateway_s` the time of calls at the gateway. `staleness` has an entry per trained episode.
    """

    at: float = 0.0
    asked: int = 0
    begun: int = 0
    trained: int = 0
    dropped: int = 0
    train_s: float = 0.0
    lost_s: float = 0.0
    episode_s: float = 0.0
    tokens: float = 0.0
    calls: int = 0
    gateway_s: float = 0.0
    staleness: list[int] = field(default_factory=list[int])


@dataclass(frozen=True, slots=True)
class _Cost:
    """The cost of one episode."""

    trained_tokens: float
    duration_s: float


class Simulation:
    """One setup, simulated once on a loop of simulated time."""

    def __init__(self, setup: Setup, seed: int) -> None:
        job = setup.batching.job()
        self._setup = setup
        self._random = random.Random(seed)
        self._loop = asyncio.get_running_loop()
        self._pool = BatchPool(BatchPolicy.of(job), weight_version=0, clock=self._loop.time)
        self._lifecycle = EngineLifecycle(_keep_no_record)
        self._admission = Admission(lambda _: job.total_steps, self._lifecycle, self._pool, MOST_RUNNING)
        self._lifecycle.subscribe(self._admission.release)
        self._replicas = [SimulatedReplica(setup.cluster, self._loop) for _ in range(setup.cluster.replicas)]
        self._gateway = Gateway()
        self._ready = asyncio.Event()
        self._version = 0
        self._rolling_since = 0.0
        self._costs: dict[str, _Cost] = {}
        self._tally = Tally()

    @property
    def running(self) -> int:
        """The number of train episodes under way."""
        return self._admission.running(EpisodeType.TRAIN)

    @property
    def waiting(self) -> int:
        """The number of episodes in the pool."""
        return len(self._pool)

    async def run(self, warm_up: int, steps: int) -> SteadyState:
        """Return the outcome over `steps` batches after `warm_up` ones."""
        await self._lifecycle.move(EngineState.BOOTING)
        await self._lifecycle.move(EngineState.ROLLING)
        clients = [asyncio.create_task(self._run_client()) for _ in range(self._setup.clients)]
        try:
            for _ in range(warm_up):
                await self._take_batch()
            before = self.tally()
            for _ in range(steps):
                await self._take_batch()
            # Episodes that the last publication admitted begin before anything is counted.
            await asyncio.sleep(INSTANT_S)
            return _outcome(self._setup, before, self.tally(), steps)
        finally:
            for client in clients:
                client.cancel()

    def tally(self) -> Tally:
        """Return the counters of all that happened so far."""
        return replace(
            self._tally,
            at=self._loop.time(),
            tokens=sum(replica.tokens for replica in self._replicas),
            calls=self._gateway.calls,
            gateway_s=self._gateway.busy_s,
            staleness=list(self._tally.staleness),
        )

    async def _run_client(self) -> None:
        sigma = self._setup.workload.length_sigma
        while True:
            number = self._tally.asked
            self._tally.asked += 1
            task_id = f"task-{number // self._setup.batching.num_repeat}"
            place = await self._admission.enter(EpisodeType.TRAIN, DEFAULT_DATA_SOURCE, task_id, FOREVER_S)
            self._tally.begun += 1
            began, length = self._loop.time(), self._random.lognormvariate(-(sigma**2) / 2, sigma)
            versions = await self._run_episode(length)
            cost = _Cost(self._setup.workload.trained_tokens * length, self._loop.time() - began)
            self._complete(number, task_id, place, versions, cost)

    async def _run_episode(self, length: float) -> list[int]:
        """Run an episode and return the weight versions at the first and last token of each turn."""
        workload, versions = self._setup.workload, list[int]()
        for _ in range(workload.turns):
            tokens = workload.turn_tokens * length
            await asyncio.sleep(workload.tool_s * length)
            await asyncio.sleep(self._gateway.enter(self._loop.time(), self._setup.cluster.gateway_s(tokens)))
            versions.append(self._version)
            await min(self._replicas, key=lambda replica: replica.open).add(tokens)
            versions.append(self._version)
        return versions

    def _complete(self, number: int, task_id: str, place: Place | None, versions: list[int], cost: _Cost) -> None:
        """Complete an episode in the order of rollout/episodes.py."""
        episode = _finished(f"episode-{number}", task_id, versions)
        self._costs[episode.episode_id] = cost
        self._pool.add(replace(episode, reward=float(number % 2), ended_at=self._loop.time()), place)
        self._admission.leave(EpisodeType.TRAIN)
        if self._is_ready():
            self._ready.set()

    def _is_ready(self) -> bool:
        return self._pool.is_ready(())

    async def _take_batch(self) -> None:
        """Take a batch in the order of trainer/loop.py."""
        while True:
            while not self._is_ready():
                self._ready.clear()
                await self._ready.wait()
            await self._lifecycle.move(EngineState.DRAINING)
            if not self._pool.policy.max_staleness:
                await self._admission.drained(self._pool.policy.drain_timeout_s)
            closed = self._close_batch()
            if closed.batch.groups:
                break
            await self._lifecycle.move(EngineState.ROLLING)
        await self._lifecycle.move(EngineState.TRAINING)
        await self._train(closed)
        self._rolling_since = self._loop.time()
        await self._lifecycle.move(EngineState.ROLLING)

    def _close_batch(self) -> ClosedBatch:
        closed = self._pool.close_batch(f"batch-{self._version}", self._version + 1)
        self._admission.release()
        self._tally.dropped += len(closed.dropped)
        self._forget(drop.episode_id for drop in closed.dropped)
        if not self._pool.policy.max_staleness:
            self._count_stragglers(closed)
        return closed

    async def _train(self, closed: ClosedBatch) -> None:
        episodes = closed.batch.episodes
        train_s = self._setup.cluster.train_s(sum(self._costs[each.episode_id].trained_tokens for each in episodes))
        await asyncio.sleep(train_s)
        self._pause(True)
        await asyncio.sleep(self._setup.cluster.publish_s)
        # Staleness counts from the weights that the batch is trained on, so it is taken before the next version is out.
        self._tally.staleness += [self._version - _oldest_version(episode) for episode in episodes]
        self._version += 1
        self._pause(False)
        self._lifecycle.publish(WeightVersion(self._version, self._version, self._loop.time()))
        self._pool.publish(self._version)
        self._tally.train_s += train_s
        self._tally.trained += len(episodes)
        self._forget(episode.episode_id for episode in episodes)

    def _pause(self, paused: bool) -> None:
        for replica in self._replicas:
            replica.pause(paused)

    def _forget(self, episode_ids: Iterable[str]) -> None:
        for episode_id in episode_ids:
            self._tally.episode_s += self._costs.pop(episode_id).duration_s

    def _count_stragglers(self, closed: ClosedBatch) -> None:
        """Return the extra time of the rollout over the same load spread evenly over its clients."""
        durations_s = [self._costs[episode.episode_id].duration_s for episode in closed.batch.episodes]
        even_s = sum(durations_s) / max(1, min(len(durations_s), self._setup.clients))
        self._tally.lost_s += max(0.0, self._loop.time() - self._rolling_since - even_s)


def simulate(setup: Setup, *, steps: int = 12, warm_up: int = 4, seed: int = 0) -> SteadyState:
    """Return the outcome over `steps` batches after `warm_up` ones; the same for the same seed."""

    async def work() -> SteadyState:
        return await Simulation(setup, seed).run(warm_up, steps)

    return run_simulated(work())


def _outcome(setup: Setup, before: Tally, after: Tally, steps: int) -> SteadyState:
    seconds = after.at - before.at
    trained, dropped = after.trained - before.trained, after.dropped - before.dropped
    staleness = after.staleness[len(before.staleness) :]
    return SteadyState(
        step_s=seconds / steps,
        episodes_per_s=trained / seconds,
        batch_episodes=trained / steps,
        trainer_utilization=(after.train_s - before.train_s) / seconds,
        sampler_utilization=(after.tokens - before.tokens) / seconds / setup.cluster.peak_tokens_per_s,
        staleness_mean=sum(staleness) / len(staleness),
        staleness_max=float(max(staleness)),
        straggler_share=(after.lost_s - before.lost_s) / seconds,
        dropped_share=dropped / (dropped + trained),
        gateway_s=(after.gateway_s - before.gateway_s) / max(1, after.calls - before.calls),
        running=(after.episode_s - before.episode_s) / seconds,
    )


async def _keep_no_record(state: EngineState, reason: str | None) -> None:
    return None


def _finished(episode_id: str, task_id: str, versions: list[int]) -> FinishedEpisode:
    """Return a finished episode, with one token for each version that counts."""
    count = len(versions)
    sample = Sample(
        episode_id=episode_id,
        token_ids_T=(0,) * count,
        loss_mask_T=(True,) * count,
        logprobs_T=(0.0,) * count,
        weight_versions_T=tuple(versions),
        turn_indices_T=tuple(index // 2 for index in range(count)),
        temperatures_T=(1.0,) * count,
    )
    return FinishedEpisode(episode_id, task_id, "bench", 0.0, None, (sample,), 0.0)


def _oldest_version(episode: FinishedEpisode) -> int:
    return min(version for sample in episode.samples for version in sample.weight_versions_T)
