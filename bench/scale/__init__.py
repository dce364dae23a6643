"""Scale: utilisation and staleness from 8 to 4,096 clients, synchronous and bounded-asynchronous.

Place in the flow: a benchmark. A table over clients comes from the simulation, with the error that the formulas make on
it; a sizing table from the formulas, checked by the simulation. With `live`, small cases run on a real server too, and
both are held against what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich.table import Table

from bench.results import Result
from bench.scale.live import measure, slowed
from bench.scale.model import Rollout, predict
from bench.scale.setup import Batching, Cluster, Outcome, Setup, Workload
from bench.scale.simulation import simulate
from bench.scale.sizing import EXAMPLE, WORKLOADS, propose

BENCHMARK = "scale"
CLIENTS = (8, 32, 128, 512, 1_024, 4_096)
TASKS, NUM_REPEAT = 64, 8
STALENESS = (0, 1, 2, 4)
STEPS, WARM_UP = 12, 4
SIZED_CLIENTS = (64, 512, 4_096)
SIZED_STEPS = 6
CHECKED_CLIENTS = 512
"""Up to so many, the sizing is simulated as well; more long episodes would take minutes."""

LIVE_WORKLOAD = Workload(turns=3, turn_tokens=12, read_tokens=8, tool_s=0.3, length_sigma=0.5)
LIVE_CLUSTER = Cluster(
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
LIVE_CLIENTS = (8, 32, 128, 256)
LIVE_STALENESS = (0, 2)
LIVE_TASKS, LIVE_REPEAT = 4, 4
CLIENTS_PER_LIVE_TASK = 8
"""Larger cases have larger batches, of LIVE_TASKS at least: a step is two rounds at most, or half of one."""
LIVE_STEPS, LIVE_WARM_UP = 6, 2
LIVE_CALLS_PER_S = 40.0
LEAST_SLOWING = 2.0
"""What clients and server on two shared cores take with little queueing, and tokens no faster than 30 ms each."""
CHECKED = ("step_s", "trainer_utilization", "sampler_utilization", "staleness_mean")

COLUMNS = {
    "sizing": ("replicas", "ranks", "batch_size", "step_s", "episodes_per_s", "trainer_utilization", "gateway_s"),
    "live": ("step_s", "model_step_s", "simulation_step_s", "trainer_utilization", "staleness_mean"),
}
"""What is shown of cases whose names begin so; all is kept."""

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
PERCENT = "%"


def run(seconds: float, *, live: bool = False) -> list[Result]:
    """The table over clients, the sizing table and, if `live`, what a real server did, each case for `seconds`.

    Raises EngineFailure if a server does not start or a step takes too long, and what a failing call raises.
    """
    results = [
        result for clients in CLIENTS for staleness in STALENESS for result in _simulated(_example(clients, staleness))
    ]
    for name, workload in WORKLOADS.items():
        for clients in SIZED_CLIENTS:
            results += _sized(name, propose(workload, clients))
    if live:
        for clients in LIVE_CLIENTS:
            for staleness in LIVE_STALENESS:
                results += _measured(_small(clients, staleness), seconds)
    return results


def batching(tasks: int, num_repeat: int, max_staleness: int) -> Batching:
    """How a case of the tables fills its batches."""
    return Batching(tasks, num_repeat, max_staleness)


def tables(rows: Sequence[dict[str, Any]]) -> list[Table]:
    """Clients down, modes across, a table per figure; then the other cases, one per line."""
    figures = {(row["case"], row["metric"]): row["value"] for row in rows}
    shown = [_pivot(figures, metric) for metric in ("trainer_utilization", "sampler_utilization", "episodes_per_s")]
    shown += [_pivot(figures, metric) for metric in ("staleness_mean", "staleness_max", "dropped_share")]
    for kind, columns in COLUMNS.items():
        if cases := [case for case in dict.fromkeys(row["case"] for row in rows) if case.startswith(kind)]:
            shown.append(_lines(figures, kind, cases, columns))
    return shown


def _pivot(figures: dict[tuple[str, str], float], metric: str) -> Table:
    table = Table("clients", title=f"simulated {metric.replace('_', ' ')}, {UNITS[metric]}", title_justify="left")
    for staleness in STALENESS:
        table.add_column(_mode(staleness), justify="right")
    for clients in CLIENTS:
        values = (figures[_case(clients, staleness), metric] for staleness in STALENESS)
        table.add_row(f"{clients:,}", *map(_short, values))
    return table


def _lines(figures: dict[tuple[str, str], float], kind: str, cases: Sequence[str], columns: Sequence[str]) -> Table:
    table = Table(title=kind, title_justify="left")
    table.add_column("case", no_wrap=True)
    for column in columns:
        table.add_column(column.replace("_", " ").replace("utilization", "use"), justify="right")
    for case in cases:
        values = (figures.get((case, column)) for column in columns)
        table.add_row(case.removeprefix(f"{kind} "), *("" if value is None else _short(value) for value in values))
    return table


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"


def _mode(max_staleness: int) -> str:
    return f"staleness {max_staleness}" if max_staleness else "sync"


def _case(clients: int, max_staleness: int) -> str:
    return f"{clients} clients, {_mode(max_staleness)}"


def _example(clients: int, max_staleness: int) -> Setup:
    return Setup(WORKLOADS["tools"], EXAMPLE, batching(TASKS, NUM_REPEAT, max_staleness), clients)


def _simulated(setup: Setup) -> list[Result]:
    case = _case(setup.clients, setup.batching.max_staleness)
    simulated = simulate(setup, steps=STEPS, warm_up=WARM_UP)
    return [*_results(case, simulated), _model_error(case, predict(setup), simulated)]


def _sized(name: str, setup: Setup) -> list[Result]:
    case, predicted = f"sizing {name}, {setup.clients} clients", predict(setup)
    parts = {"replicas": setup.cluster.replicas, "ranks": setup.cluster.ranks, "batch_size": setup.batching.batch_size}
    results = [Result(BENCHMARK, case, part, float(number), "") for part, number in parts.items()]
    results += _results(case, predicted)
    if setup.clients <= CHECKED_CLIENTS:
        results.append(_model_error(case, predicted, simulate(setup, steps=SIZED_STEPS, warm_up=WARM_UP)))
    return results


def _model_error(case: str, predicted: Outcome, simulated: Outcome) -> Result:
    error = 100 * (predicted.episodes_per_s / simulated.episodes_per_s - 1)
    return Result(BENCHMARK, case, "model_error_episodes_per_s", error, "%")


def _small(clients: int, max_staleness: int) -> Setup:
    """Slow enough for this machine: its clients together make at most LIVE_CALLS_PER_S calls per second."""
    tasks = max(LIVE_TASKS, clients // CLIENTS_PER_LIVE_TASK)
    setup = Setup(LIVE_WORKLOAD, LIVE_CLUSTER, batching(tasks, LIVE_REPEAT, max_staleness), clients)
    running = min(float(clients), setup.batching.room())
    calls_per_s = Rollout(setup).rate(running) * setup.workload.turns
    return slowed(setup, max(LEAST_SLOWING, calls_per_s / LIVE_CALLS_PER_S))


def _measured(setup: Setup, seconds: float) -> list[Result]:
    """What was measured, and by how much formulas and simulation miss it, the server's own time given."""
    case = f"live {_case(setup.clients, setup.batching.max_staleness)}"
    steps = max(LIVE_STEPS, math.ceil(seconds / predict(setup).step_s))
    live = measure(setup, steps=steps, warm_up=LIVE_WARM_UP)
    told = replace(setup, cluster=replace(setup.cluster, gateway_call_s=live.cpu_s_per_call))
    model, simulation = predict(told), simulate(told, steps=STEPS, warm_up=WARM_UP)
    results = [*_results(case, live.outcome)]
    results.append(Result(BENCHMARK, case, "server_cpu_per_call", 1_000 * live.cpu_s_per_call, "ms"))
    for name, other in (("model", model), ("simulation", simulation)):
        for metric in CHECKED:
            results.append(Result(BENCHMARK, case, f"{name}_{metric}", *_reported(other, metric)))
        error = 100 * (other.step_s / live.outcome.step_s - 1)
        results.append(Result(BENCHMARK, case, f"{name}_error_step_s", error, "%"))
    return results


def _results(case: str, outcome: Outcome) -> list[Result]:
    return [Result(BENCHMARK, case, metric, *_reported(outcome, metric)) for metric in UNITS]


def _reported(outcome: Outcome, metric: str) -> tuple[float, str]:
    unit = UNITS[metric]
    return float(getattr(outcome, metric)) * (100 if unit == PERCENT else 1), unit
