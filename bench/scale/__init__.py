"""Scale: utilisation and staleness from 8 to 4,096 clients, synchronous and bounded-asynchronous, by simulation.

Place in the flow: a benchmark. One group of cases has more and more clients on one cluster, the other a cluster for so
many clients. bench/scale_live.py holds the simulation against a real server.
"""

from __future__ import annotations

from bench.results import Result
from bench.scale.setup import Batching, Setup, SteadyState
from bench.scale.simulation import simulate
from bench.scale.sizing import EXAMPLE, WORKLOADS, propose

BENCHMARK = "scale"
CLIENTS = (8, 32, 128, 512, 1_024, 4_096)
TASKS, NUM_REPEAT = 64, 8
STALENESS = (0, 1, 2, 4)
SIZED_CLIENTS = (64, 512, 4_096)
SIZED_STEPS = 6
"""Fewer than elsewhere: thousands of long episodes take a minute."""

UNITS = {
    "step_s": "s",
    "episodes_per_s": "episodes/s",
    "batch_episodes": "episodes",
    "trainer_utilization": "%",
    "sampler_utilization": "%",
    "staleness_mean": "versions",
    "staleness_max": "versions",
    "straggler_share": "%",
    "dropped_share": "%",
    "gateway_s": "s",
    "running": "episodes",
}
"""Units of the figures of an outcome, as they are reported: shares in percent."""


def run(seconds: float) -> list[Result]:
    """Return the outcome of each case. It takes the same computation whatever `seconds` says."""
    del seconds
    results: list[Result] = []
    for clients in CLIENTS:
        for staleness in STALENESS:
            setup = Setup(WORKLOADS["tools"], EXAMPLE, Batching(TASKS, NUM_REPEAT, staleness), clients)
            results += results_of(BENCHMARK, case_of(setup), simulate(setup))
    for name, workload in WORKLOADS.items():
        for clients in SIZED_CLIENTS:
            setup = propose(workload, clients)
            case, cluster = f"sizing {name}, {clients} clients", setup.cluster
            sizes = {"batch_size": setup.batching.batch_size, "replicas": cluster.replicas, "ranks": cluster.ranks}
            results += [Result(BENCHMARK, case, metric, size, "") for metric, size in sizes.items()]
            results += results_of(BENCHMARK, case, simulate(setup, steps=SIZED_STEPS))
    return results


def case_of(setup: Setup) -> str:
    """Return the name of a case that others differ from by clients and mode."""
    staleness = setup.batching.max_staleness
    return f"{setup.clients} clients, {f'staleness {staleness}' if staleness else 'sync'}"


def results_of(benchmark: str, case: str, outcome: SteadyState) -> list[Result]:
    """Return every figure of an outcome in its unit."""
    return [
        Result(benchmark, case, metric, getattr(outcome, metric) * (100 if unit == "%" else 1), unit)
        for metric, unit in UNITS.items()
    ]
