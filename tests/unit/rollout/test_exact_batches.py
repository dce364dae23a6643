"""Every batch is what the job says, whoever the clients are: admission and pool under simulated clients."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pytest
from batch_support import Clock, make_episode
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.batch import BatchPolicy, BatchPool, ClosedBatch, Place
from swarm.job import TrainJob
from swarm.rollout.admission import Admission
from swarm.run.lifecycle import EngineLifecycle
from swarm.schemas import EngineState
from swarm.types import EpisodeType, FinishedEpisode, WeightVersion

pytestmark = pytest.mark.anyio

FOREVER_S = 1e9
QUIET_ROUNDS = 12
"""So many turns of the event loop in which nothing moves mean that everybody waits."""


@dataclass
class Chances:
    """How an attempt ends, else in a reward: it fails and is made again, it fails for good and its client says so, or
    its client goes on without a word."""

    again: float = 0.0
    final: float = 0.0
    silent: float = 0.0


@dataclass
class World:
    """One server and its clients.

    Time jumps to what is due once nobody can move, so a run that waits for ever fails. `closed` are the batches that
    were trained, `lost` counts repeats by task that never came.
    """

    job: TrainJob
    chances: Chances
    dice: random.Random
    names_tasks: bool = True
    clock: Clock = field(default_factory=Clock)
    lost: Counter[str] = field(default_factory=Counter[str])
    closed: list[ClosedBatch] = field(default_factory=list[ClosedBatch])
    finished: dict[str, FinishedEpisode] = field(default_factory=dict[str, FinishedEpisode])
    running: dict[int, tuple[str, str, Place]] = field(default_factory=dict[int, tuple[str, str, Place]])
    clients: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])
    moves: int = 0
    version: int = 0
    orphans: set[int] = field(default_factory=set[int])

    async def open(self) -> None:
        self.lifecycle = EngineLifecycle(_keep_no_record)
        policy = BatchPolicy.of(self.job)
        self.pool = BatchPool(policy, weight_version=self.version, clock=self.clock)
        self.admission = Admission(lambda _: self.job, self.lifecycle, self.pool, 100_000)
        self.lifecycle.publish(WeightVersion(self.version, self.version, 0.0))
        await self.lifecycle.move(EngineState.BOOTING)
        await self.lifecycle.move(EngineState.ROLLING)

    async def restart(self) -> None:
        """The server dies and comes back: what ended waits again, what ran still runs, clients ask anew."""
        await self.open()
        self.pool.restore(self.finished.values())
        for number, (source, task, _) in self.running.items():
            place = self.admission.take(EpisodeType.TRAIN, source, task if self.names_tasks else None)
            assert place is not None
            self.running[number] = source, task, place

    def join(self, attempts: Iterator[tuple[str, str]], workers: int) -> None:
        self.clients += [asyncio.create_task(self._work(attempts)) for _ in range(workers)]

    async def kill(self, workers: int) -> None:
        """So many workers end in the midst of what they do; the server gives their episodes up."""
        doomed = self.dice.sample(self.clients, min(workers, len(self.clients)))
        for client in doomed:
            client.cancel()
            self.clients.remove(client)
        await asyncio.gather(*doomed, return_exceptions=True)

    async def abandon(self) -> None:
        """All clients end, and the server does not know it yet: their episodes are orphans, which run on."""
        self.orphans = set(self.running)
        for client in self.clients:
            client.cancel()
        await asyncio.gather(*self.clients, return_exceptions=True)
        self.clients.clear()

    async def train(self, batches: int) -> None:
        """Until so many batches are trained, or nobody is left to make another."""
        for _ in range(batches):
            if not await self._until_ready():
                return
            is_async = self.pool.policy.max_staleness > 0
            await self.lifecycle.move(EngineState.DRAINING)
            if not is_async:
                assert await self.admission.drained(FOREVER_S)
            closed = self.pool.close_batch(f"b{self.version}", self.version + 1)
            for gone in (*closed.batch.episodes, *closed.dropped):
                del self.finished[gone.episode_id]
            self.admission.release()
            self.closed.append(closed)
            await self.lifecycle.move(EngineState.TRAINING)
            for _ in range(self.dice.randrange(6) if is_async else 0):
                await asyncio.sleep(0)
            self.version += 1
            self.lifecycle.publish(WeightVersion(self.version, self.version, 0.0))
            self.pool.publish(self.version)
            await self.lifecycle.move(EngineState.ROLLING)
            self.admission.release()

    async def _until_ready(self) -> bool:
        quiet, seen = 0, -1
        while not self.pool.is_ready(()):
            quiet, seen = (quiet + 1, seen) if self.moves == seen and not self.orphans else (0, self.moves)
            await asyncio.sleep(0)
            if quiet < QUIET_ROUNDS:
                continue
            if all(client.done() for client in self.clients) and not len(self.pool):
                return False
            due = self.pool.next_due()
            if due is None:
                assert all(client.done() for client in self.clients), f"stuck: {self.pool.progress()}"
                return False
            self.clock.now, quiet = due + 1e-6, 0
            if self.pool.expire(lambda key: self.admission.awaits(*key)):
                self.admission.release()
        return True

    async def _work(self, attempts: Iterator[tuple[str, str]]) -> None:
        for source, task in attempts:
            while await self._attempt(source, task):
                await asyncio.sleep(0)

    async def _attempt(self, source: str, task: str) -> bool:
        """Returns whether it is to be made again."""
        named = task if self.names_tasks else None
        while True:
            admission = self.admission
            place = await admission.enter(EpisodeType.TRAIN, source, named, FOREVER_S)
            assert place is not None
            if admission is self.admission:
                break
        self.moves += 1
        number = self.moves
        self.running[number] = source, task, place
        versions = {self.version}
        try:
            for _ in range(self.dice.randrange(5)):
                await asyncio.sleep(0)
                versions.add(self.version)
        except asyncio.CancelledError:
            if number not in self.orphans:
                self.lose(number)
            raise
        return self._end(number, versions)

    def _end(self, number: int, versions: set[int]) -> bool:
        draw, chances = self.dice.random(), self.chances
        if draw < chances.again:
            self.lose(number)
            return True
        if draw < chances.again + chances.final + chances.silent:
            self.lost[self.running[number][1]] += 1
            self.lose(number, is_final=draw < chances.again + chances.final)
            return False
        source, task, place = self.running.pop(number)
        reward = float(self.dice.random() < 0.5)
        episode = make_episode(f"e{number}", task, tuple(sorted(versions)), reward, source=source)
        self.finished[episode.episode_id] = episode
        self.pool.add(episode, place)
        self.moves += 1
        self.admission.leave(EpisodeType.TRAIN)
        return False

    def lose(self, number: int, *, is_final: bool = False) -> None:
        _, _, place = self.running.pop(number)
        self.moves += 1
        self.pool.lose(place, is_final=is_final)
        self.admission.leave(EpisodeType.TRAIN)


async def _keep_no_record(state: EngineState, reason: str | None) -> None:
    return None


def attempts_of(tasks: int, num_repeat: int, name: str = "t", source: str = "default") -> Iterator[tuple[str, str]]:
    """Each task so often in a row, as the client library runs them."""
    return iter([(source, f"{name}{task}") for task in range(tasks) for _ in range(num_repeat)])


JOB = TrainJob(engine="fake", batch_size=8, num_repeat=4)


@pytest.mark.parametrize("names_tasks", [True, False])
@pytest.mark.parametrize("workers", [1, 64])
async def test_twelve_batches_of_tasks_make_twelve_exact_batches_however_many_workers_there_are(
    workers: int, names_tasks: bool
) -> None:
    world = World(JOB, Chances(), random.Random(workers), names_tasks)
    await world.open()
    world.join(attempts_of(12 * 8, 4), workers)
    await world.train(12)
    assert len(world.closed) == 12
    for closed in world.closed:
        assert [len(group.episodes) for group in closed.batch.groups] == [4] * 8
        assert closed.dropped == ()
    tasks = [group.task_id for closed in world.closed for group in closed.batch.groups]
    # Who names no task is in the batch that its begin happened to fall into.
    assert len(set(tasks)) == 96 or not names_tasks


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    workers=st.sampled_from([1, 3, 16, 64, 200]),
    max_staleness=st.sampled_from([0, 0, 1, 3]),
    rule=st.sampled_from(["enough_tasks", "enough_non_constant_tasks"]),
    chances=st.sampled_from([Chances(again=0.1), Chances(final=0.1), Chances(silent=0.1), Chances(0.05, 0.05, 0.05)]),
    interruptions=st.lists(st.sampled_from(["kill", "restart"]), max_size=4),
)
async def test_batches_are_exact_whatever_fails(
    seed: int, workers: int, max_staleness: int, rule: str, chances: Chances, interruptions: list[str]
) -> None:
    settings = {"batch_size": 5, "num_repeat": 4, "max_staleness": max_staleness, "stop_rule": rule}
    world = World(TrainJob.model_validate({"engine": "fake", **settings}), chances, random.Random(seed))
    await world.open()
    world.join(attempts_of(1_000, 4), workers)
    killed = False
    for number, interruption in enumerate([*interruptions, "none"]):
        await world.train(3)
        if interruption == "kill":
            killed = True
            await world.kill(max(1, workers // 2))
            world.join(attempts_of(1_000, 4, name=f"again{number}-"), workers)
        elif interruption == "restart":
            await world.restart()
            world.clients.clear()
            world.join(attempts_of(1_000, 4, name=f"after{number}-"), workers)
            killed = True
    assert len(world.closed) >= 3
    for closed in world.closed:
        check_groups(world, closed, is_whole=not killed)
    await world.kill(1_000)


def check_groups(world: World, closed: ClosedBatch, *, is_whole: bool) -> None:
    """Exactly so many groups, none larger than `num_repeat`, and each smaller one lacks only what was lost."""
    job = world.job
    assert len(closed.batch.groups) == job.batch_size
    assert closed.missing_groups == 0
    short = [group for group in closed.batch.groups if len(group.episodes) < job.num_repeat]
    assert closed.short_groups == len(short)
    assert all(len(group.episodes) <= job.num_repeat for group in closed.batch.groups)
    if is_whole and not job.max_staleness:
        for group in short:
            assert len(group.episodes) + world.lost[group.task_id] >= job.num_repeat


@pytest.mark.parametrize("max_staleness", [0, 2])
async def test_no_task_is_in_two_batches_even_if_attempts_fail_and_are_made_again(max_staleness: int) -> None:
    job = JOB.model_copy(update={"max_staleness": max_staleness})
    world = World(job, Chances(again=0.2), random.Random(7))
    await world.open()
    world.join(attempts_of(200, 4), 64)
    await world.train(12)
    tasks = Counter(group.task_id for closed in world.closed for group in closed.batch.groups)
    assert set(tasks.values()) == {1}
    await world.kill(1_000)


async def test_a_client_whose_tasks_run_out_ends_the_batch_with_the_groups_that_there_are() -> None:
    world = World(JOB, Chances(), random.Random(0))
    await world.open()
    world.join(attempts_of(11, 4), 16)
    await world.train(2)
    assert [len(closed.batch.groups) for closed in world.closed] == [8, 3]
    assert world.closed[1].missing_groups == 5
    assert world.clock.now == pytest.approx(JOB.stall_timeout_s, rel=1e-3)


async def test_a_group_given_up_half_way_without_a_word_is_trained_on_its_survivors_after_its_time() -> None:
    world = World(JOB, Chances(silent=0.15), random.Random(3))
    await world.open()
    world.join(attempts_of(8, 4), 200)
    await world.train(1)
    [closed] = world.closed
    assert 0 < closed.short_groups == len(world.lost)
    assert world.clock.now == pytest.approx(JOB.group_timeout_s, rel=1e-3)


@settings(deadline=None, max_examples=20)
@given(
    seed=st.integers(0, 2**32),
    workers=st.sampled_from([1, 16, 64, 200]),
    rule=st.sampled_from(["enough_tasks", "enough_non_constant_tasks"]),
    share=st.sampled_from([0.1, 0.4, 0.7]),
)
async def test_attempts_that_their_client_gives_up_for_good_cost_no_time(
    seed: int, workers: int, rule: str, share: float
) -> None:
    job = JOB.model_copy(update={"stop_rule": rule})
    world = World(job, Chances(final=share), random.Random(seed))
    await world.open()
    world.join(attempts_of(3_000, 4), workers)
    await world.train(6)
    assert (len(world.closed), world.clock.now) == (6, 0.0)
    assert any(closed.short_groups for closed in world.closed)
    await world.kill(1_000)


async def test_fewer_tasks_than_a_batch_has_groups_are_run_several_times_in_it() -> None:
    world = World(JOB, Chances(), random.Random(0))
    await world.open()
    epochs = [attempt for _ in range(6) for attempt in attempts_of(4, 4)]
    world.join(iter(epochs), 1)
    await world.train(3)
    for closed in world.closed:
        assert Counter(group.task_id for group in closed.batch.groups) == dict.fromkeys(["t0", "t1", "t2", "t3"], 2)
        assert {len(group.episodes) for group in closed.batch.groups} == {4}


async def test_a_client_that_runs_the_repeats_of_a_task_far_apart_is_served_all_the_same() -> None:
    world = World(JOB, Chances(), random.Random(0))
    await world.open()
    world.join(iter([("default", f"t{task}") for _ in range(40) for task in range(20)]), 4)
    await world.train(3)
    assert [len(closed.batch.groups) for closed in world.closed] == [8, 8, 8]
    assert all(len(group.episodes) == 4 for closed in world.closed for group in closed.batch.groups)
    await world.kill(1_000)


@settings(deadline=None, max_examples=15)
@given(
    seed=st.integers(0, 2**32),
    max_staleness=st.sampled_from([0, 2]),
    rule=st.sampled_from(["enough_tasks", "enough_non_constant_tasks"]),
    chances=st.sampled_from([Chances(), Chances(again=0.2), Chances(silent=0.1)]),
)
async def test_a_mixture_is_kept_whoever_is_faster_and_whatever_is_lost(
    seed: int, max_staleness: int, rule: str, chances: Chances
) -> None:
    mixture = {"math": 0.4, "code": 0.3, "shell": 0.3}
    settings = {"batch_size": 5, "num_repeat": 3, "max_staleness": max_staleness, "stop_rule": rule}
    job = TrainJob.model_validate({"engine": "fake", "mixture": mixture, **settings})
    world = World(job, chances, random.Random(seed))
    await world.open()
    for source, workers in zip(mixture, (25, 5, 1), strict=True):
        world.join(attempts_of(1_000, 3, name=source, source=source), workers)
    await world.train(5)
    assert len(world.closed) == 5
    trained: Counter[str] = Counter()
    for number, closed in enumerate(world.closed, start=1):
        trained.update(group.episodes[0].data_source for group in closed.batch.groups)
        assert trained.total() == 5 * number
        assert all(abs(trained[name] - 5 * number * share) < 1 for name, share in mixture.items())
    await world.kill(1_000)


async def test_a_mixture_whose_source_has_run_out_goes_on_without_it() -> None:
    job = JOB.model_copy(update={"mixture": {"math": 0.5, "code": 0.5}})
    world = World(job, Chances(), random.Random(0))
    await world.open()
    world.join(attempts_of(100, 4, source="math"), 16)
    world.join(attempts_of(4, 4, source="code"), 16)
    await world.train(2)
    assert [len(closed.batch.groups) for closed in world.closed] == [8, 4]
    await world.kill(1_000)


async def test_a_mixture_waits_for_a_source_whose_clients_take_long_to_start() -> None:
    job = JOB.model_copy(update={"mixture": {"math": 0.5, "code": 0.5}})
    world = World(job, Chances(), random.Random(0))
    await world.open()
    world.join(attempts_of(100, 4, source="math"), 16)
    for _ in range(200):
        await asyncio.sleep(0)
    world.clock.now = 10 * job.stall_timeout_s
    assert not world.pool.is_ready(())
    world.join(attempts_of(100, 4, source="code"), 16)
    await world.train(1)
    sources = Counter(group.episodes[0].data_source for group in world.closed[0].batch.groups)
    assert sources == {"math": 4, "code": 4}
    await world.kill(1_000)


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 2**32),
    workers=st.sampled_from([3, 8, 16, 64]),
    rounds=st.integers(0, 60),
    patience=st.integers(0, 60),
)
async def test_episodes_of_a_dead_program_that_run_on_beside_the_same_tasks_of_its_successor_cost_no_time(
    seed: int, workers: int, rounds: int, patience: int
) -> None:
    """The successor makes up what each group lacks of ended episodes, while those of the dead one hold their places."""

    dice = random.Random(seed)
    world = World(JOB, Chances(), dice)
    await world.open()
    world.join(attempts_of(4 * 8, 4), workers)
    training = asyncio.create_task(world.train(4))
    for _ in range(rounds):
        await asyncio.sleep(0)
    await world.abandon()
    done = Counter(task for closed in world.closed for task in tasks_of(closed.batch.episodes))
    done.update(tasks_of(world.finished.values()))
    lacking = [("default", f"t{task}") for task in range(4 * 8) for _ in range(4 - done[f"t{task}"])]
    world.join(iter(sorted(lacking, key=lambda attempt: not done[attempt[1]])), workers)
    for _ in range(patience):
        await asyncio.sleep(0)
    while world.orphans:
        world.lose(world.orphans.pop())
        for _ in range(dice.randrange(3)):
            await asyncio.sleep(0)
    await training
    assert world.clock.now == 0.0
    assert [[len(group.episodes) for group in closed.batch.groups] for closed in world.closed] == [[4] * 8] * 4
    assert not any(closed.dropped for closed in world.closed)
    assert Counter(task for closed in world.closed for task in tasks_of(closed.batch.episodes)) == Counter(
        {f"t{task}": 4 for task in range(4 * 8)}
    )


def tasks_of(episodes: Iterable[FinishedEpisode]) -> list[str]:
    return [episode.task_id for episode in episodes]
