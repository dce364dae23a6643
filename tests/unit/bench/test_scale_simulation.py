"""The simulation of bench scale: it loses no episode, repeats itself, and obeys the bounds of what it simulates."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from bench.scale.setup import Batching, Cluster, Setup, Workload
from bench.scale.simulation import Simulation, simulate
from bench.scale.sizing import WORKLOADS, propose
from bench.scale.stations import Gateway, SimulatedReplica, run_simulated

WORKLOAD = Workload(turns=2, turn_tokens=100, read_tokens=50, tool_s=2.0, length_sigma=0.6)
CLUSTER = Cluster(
    replicas=2,
    token_s=0.02,
    token_per_request_s=0.001,
    max_num_seqs=32,
    ranks=1,
    rank_tokens_per_s=3_000,
    step_overhead_s=1.0,
    publish_s=0.5,
    gateway_call_s=0.002,
)
SYNC = Batching(4, 4, 0)
MODES = {
    "sync": SYNC,
    "staleness 1": Batching(4, 4, 1),
    "staleness 2": Batching(4, 4, 2),
    "staleness 4": Batching(4, 4, 4),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("clients", [1, 7, 64])
def test_every_begun_episode_is_trained_dropped_waiting_or_running(mode: str, clients: int) -> None:
    async def work() -> None:
        simulation = Simulation(Setup(WORKLOAD, CLUSTER, MODES[mode], clients), seed=3)
        await simulation.run(2, 6)
        tally = simulation.tally()
        assert tally.begun == tally.trained + tally.dropped + simulation.waiting + simulation.running
        assert len(tally.staleness) == tally.trained
        assert simulation.running <= clients

    run_simulated(work())


@pytest.mark.parametrize("mode", MODES)
def test_staleness_stays_within_the_bound_of_the_job(mode: str) -> None:
    outcome = simulate(Setup(WORKLOAD, CLUSTER, MODES[mode], 48), steps=8, warm_up=2)
    assert outcome.staleness_mean <= outcome.staleness_max <= MODES[mode].max_staleness
    assert 0 <= outcome.trainer_utilization <= 1
    assert 0 < outcome.sampler_utilization <= 1


def test_the_same_seed_gives_the_same_outcome_and_another_one_does_not() -> None:
    setup = Setup(WORKLOAD, CLUSTER, MODES["staleness 2"], 16)
    assert simulate(setup, steps=4, seed=5) == simulate(setup, steps=4, seed=5) != simulate(setup, steps=4, seed=6)


def test_synchronous_batches_are_of_exactly_their_size() -> None:
    outcome = simulate(Setup(WORKLOAD, CLUSTER, SYNC, 64), steps=5)
    assert outcome.batch_episodes == SYNC.episodes
    assert outcome.dropped_share == 0


@pytest.mark.parametrize("max_staleness", [1, 2, 4])
@pytest.mark.parametrize("rank_tokens_per_s", [250, 30])
def test_batches_keep_their_size_however_slow_the_trainer_is(max_staleness: int, rank_tokens_per_s: float) -> None:
    """The server begins no more than the trainer takes in time, so that hardly an episode comes too late."""
    batching = Batching(4, 4, max_staleness)
    slow = replace(CLUSTER, rank_tokens_per_s=rank_tokens_per_s)
    setup = Setup(WORKLOAD, slow, batching, 64)
    early, late = simulate(setup, steps=5, warm_up=1), simulate(setup, steps=10, warm_up=10)
    for outcome in (early, late):
        # Never more; fewer where a group is too old to wait for its last episode.
        assert 0.95 * batching.episodes <= outcome.batch_episodes <= batching.episodes
        assert outcome.dropped_share <= 0.01
    assert late.trainer_utilization > 0.85


@pytest.mark.parametrize("max_staleness", [1, 2, 4])
def test_no_more_waits_and_runs_than_the_batches_that_may_be_begun(max_staleness: int) -> None:
    """A batch in training is one of them."""
    batching = Batching(4, 4, max_staleness)

    async def work() -> None:
        simulation = Simulation(Setup(WORKLOAD, CLUSTER, batching, 200), seed=1)
        run = asyncio.create_task(simulation.run(0, 8))
        most = 0
        while not run.done():
            await asyncio.sleep(0.1)
            most = max(most, simulation.waiting + simulation.running)
        # Beside full groups, those that lost an episode wait for their chance.
        assert batching.room - batching.episodes < most <= 1.1 * batching.room

    run_simulated(work())


def test_more_staleness_trains_more_episodes() -> None:
    rates = [
        simulate(Setup(WORKLOAD, CLUSTER, batching, 64), steps=10).episodes_per_s
        for batching in (SYNC, *(Batching(4, 4, staleness) for staleness in (1, 2, 4)))
    ]
    assert rates == sorted(rates)
    assert rates[-1] > 1.3 * rates[0]


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_proposed_cluster_keeps_pace_with_its_clients(name: str) -> None:
    outcome = simulate(propose(WORKLOADS[name], 64), steps=6)
    assert outcome.trainer_utilization < 0.95
    assert outcome.running == pytest.approx(64, abs=3)
    assert outcome.dropped_share < 0.03


def test_requests_share_a_replica_evenly_and_wait_for_a_place() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        replica = SimulatedReplica(replace(CLUSTER, token_s=1.0, token_per_request_s=1.0, max_num_seqs=2), loop)
        ends: dict[str, float] = {}

        async def ask(name: str, tokens: float) -> None:
            await replica.add(tokens)
            ends[name] = loop.time()

        await asyncio.gather(ask("short", 2), ask("long", 4), ask("late", 1))
        # Two at a time, 3 s per token each: short ends at 6; then long's last 2 tokens beside late's one, which ends
        # at 9; the last token alone takes 2 s.
        assert ends == pytest.approx({"short": 6.0, "late": 9.0, "long": 11.0})
        assert replica.tokens == pytest.approx(7.0)

    run_simulated(work())


def test_a_paused_replica_gives_nothing() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        replica = SimulatedReplica(replace(CLUSTER, token_s=1.0, token_per_request_s=0.0), loop)
        done = replica.add(4.0)
        await asyncio.sleep(1.0)
        replica.pause(True)
        await asyncio.sleep(10.0)
        assert replica.tokens == pytest.approx(1.0)
        replica.pause(False)
        await done
        assert loop.time() == pytest.approx(14.0)

    run_simulated(work())


def test_the_gateway_works_on_one_call_after_the_other() -> None:
    gateway = Gateway()
    assert [gateway.enter(0.0, 2.0), gateway.enter(1.0, 2.0), gateway.enter(10.0, 2.0)] == [2.0, 3.0, 2.0]
    assert (gateway.calls, gateway.busy_s) == (3, 7.0)


def test_simulated_seconds_pass_at_once_and_failures_come_through() -> None:
    async def fail() -> None:
        await asyncio.sleep(1e7)
        raise ValueError("after a while")

    with pytest.raises(ValueError, match="after a while"):
        run_simulated(fail())
