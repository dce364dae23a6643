"""The formulas of bench scale: their limits, and how far they are from the simulation."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from bench.scale.model import Lengths, Rollout, predict
from bench.scale.setup import Batching, Cluster, Setup, Workload
from bench.scale.simulation import simulate
from bench.scale.sizing import NUM_REPEAT, PACE, WORKLOADS, propose

WORKLOAD = Workload(turns=3, turn_tokens=100, read_tokens=100, tool_s=2.0, length_sigma=0.5)
CLUSTER = Cluster(
    replicas=2,
    token_s=0.02,
    token_per_request_s=0.001,
    max_num_seqs=64,
    ranks=2,
    rank_tokens_per_s=5_000,
    step_overhead_s=1.0,
    publish_s=0.5,
)
SYNC = Batching(8, 4, 0)
ASYNC = Batching(8, 4, 2)
ALONE_S = 3 * (2.0 + 100 * 0.021)


def test_one_client_runs_one_unloaded_episode_after_the_other() -> None:
    setup = Setup(WORKLOAD, CLUSTER, SYNC, clients=1)
    assert setup.unloaded_s == pytest.approx(ALONE_S)
    outcome = predict(setup)
    training_s = 1.0 + 32 * 600 / 10_000
    assert outcome.step_s == pytest.approx(32 * ALONE_S + training_s + 0.5, rel=1e-3)
    assert outcome.trainer_utilization == pytest.approx(training_s / outcome.step_s)
    assert outcome.staleness_max == outcome.dropped_share == 0


def test_samplers_without_end_leave_the_longest_episode_of_the_batch() -> None:
    endless = replace(CLUSTER, replicas=100_000, token_per_request_s=0.0)
    outcome = predict(Setup(WORKLOAD, endless, SYNC, clients=32))
    alone_s = 3 * (2.0 + 100 * 0.02)
    longest = alone_s * Lengths(0.5).longest(32)
    assert outcome.step_s == pytest.approx(longest + 1.0 + 32 * 600 / 10_000 + 0.5, rel=1e-2)
    assert outcome.straggler_share == pytest.approx((longest - alone_s) / outcome.step_s, rel=2e-2)
    assert outcome.sampler_utilization < 1e-3


def test_a_trainer_without_cost_leaves_the_pace_to_the_clients() -> None:
    free = replace(CLUSTER, ranks=10**9, step_overhead_s=0.0, publish_s=0.0)
    setup = Setup(WORKLOAD, free, ASYNC, clients=8)
    assert predict(setup).episodes_per_s == pytest.approx(Rollout(setup).rate(8), rel=1e-2)


def test_a_slow_trainer_is_busy_all_the_time_but_for_the_publication() -> None:
    slow = replace(CLUSTER, rank_tokens_per_s=200)
    outcome = predict(Setup(WORKLOAD, slow, ASYNC, clients=64))
    assert outcome.trainer_utilization == pytest.approx(1 - 0.5 / outcome.step_s, abs=1e-3)
    assert outcome.batch_episodes == pytest.approx(ASYNC.episodes, rel=0.02)
    assert outcome.staleness_mean == pytest.approx(ASYNC.max_staleness, abs=0.1)


def test_equal_episodes_have_no_stragglers_beyond_their_rounds() -> None:
    equal = replace(WORKLOAD, length_sigma=0.0)
    assert predict(Setup(equal, CLUSTER, SYNC, clients=32)).straggler_share == pytest.approx(0.0, abs=5e-3)


def test_the_longest_of_many_and_remainders_match_their_closed_forms() -> None:
    lengths = Lengths(0.5)
    assert lengths.longest(1) == pytest.approx(1.0, rel=1e-3)
    # Of two: the mean of the larger of two lognormals of mean 1 is 2 Phi(sigma / sqrt 2).
    assert lengths.longest(2) == pytest.approx(1 + math.erf(0.5 / 2), rel=1e-3)
    left = 1 - lengths.remaining_below
    mean = float(((left[1:] + left[:-1]) / 2 * (lengths.at[1:] - lengths.at[:-1])).sum() + lengths.at[0])
    # Of a remainder: E[X^2] / (2 E[X]).
    assert mean == pytest.approx(math.exp(0.25) / 2, rel=1e-2)


def test_throughput_of_the_closed_network_lies_between_its_bounds() -> None:
    """Asymptotic bounds of operational analysis: by the load alone, and by the samplers' peak."""
    setup = Setup(WORKLOAD, CLUSTER, ASYNC, clients=512)
    rollout = Rollout(setup)
    loads = (1, 4, 16, 64, 256, 512)
    rates = [rollout.rate(running) for running in loads]
    assert all(more >= less * (1 - 1e-9) for less, more in pairwise(rates))
    assert rates[0] == pytest.approx(1 / ALONE_S, rel=1e-3)
    peak = CLUSTER.peak_tokens_per_s / WORKLOAD.sampled_tokens
    assert all(rate <= min(load / ALONE_S, peak) * 1.001 for rate, load in zip(rates, loads, strict=True))
    assert rates[-1] == pytest.approx(peak, rel=1e-2)


def test_the_gateway_bounds_throughput_and_makes_calls_wait() -> None:
    slow = replace(CLUSTER, gateway_call_s=0.01, gateway_token_s=1e-4)
    setup = Setup(WORKLOAD, slow, ASYNC, clients=512)
    rollout = Rollout(setup)
    most = 1 / (3 * 0.02)
    assert rollout.rate(512) <= most
    assert rollout.gateway_wait_s(0.5 * most) > rollout.gateway_wait_s(0.25 * most) > 0
    # M/D/1 at half load, lengths being equal: rho s / (2 (1 - rho)).
    equal = Rollout(replace(setup, workload=replace(WORKLOAD, length_sigma=0.0)))
    assert equal.gateway_wait_s(0.5 * most) == pytest.approx(0.02 / 2, rel=1e-3)


@settings(max_examples=30, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate])
@given(
    clients=st.integers(1, 96),
    tasks=st.integers(4, 12),
    num_repeat=st.sampled_from([2, 4, 8]),
    max_staleness=st.sampled_from([0, 1, 2, 3, 4]),
    turns=st.integers(1, 4),
    tool_s=st.floats(0.5, 8.0),
    turn_tokens=st.floats(50, 400),
    length_sigma=st.floats(0.2, 0.6),
    rank_tokens_per_s=st.floats(2_000, 50_000),
)
def test_formulas_are_near_the_simulation(
    clients: int,
    tasks: int,
    num_repeat: int,
    max_staleness: int,
    turns: int,
    tool_s: float,
    turn_tokens: float,
    length_sigma: float,
    rank_tokens_per_s: float,
) -> None:
    """Within 25 % in episodes per second. Episodes all alike are left out: they run in lock step, which is no queue."""
    workload = Workload(turns, turn_tokens, turn_tokens, tool_s, length_sigma)
    cluster = replace(CLUSTER, rank_tokens_per_s=rank_tokens_per_s)
    batching = Batching(tasks, num_repeat, max_staleness)
    setup = Setup(workload, cluster, batching, clients)
    model, simulation = predict(setup), simulate(setup, steps=10, warm_up=5)
    assert model.episodes_per_s == pytest.approx(simulation.episodes_per_s, rel=0.25)
    assert model.trainer_utilization == pytest.approx(simulation.trainer_utilization, abs=0.1)
    assert -0.3 < model.staleness_mean - simulation.staleness_mean < 0.6


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("clients", [1, 64, 512])
def test_a_proposed_cluster_keeps_pace_with_its_clients(name: str, clients: int) -> None:
    setup = propose(WORKLOADS[name], clients)
    outcome = predict(setup)
    assert outcome.trainer_utilization <= PACE
    assert outcome.running >= 0.95 * clients
    assert outcome.dropped_share < 0.03
    assert setup.batching.num_repeat == NUM_REPEAT
