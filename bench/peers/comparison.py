"""Runs both sides one after the other, seed by seed, and sums up what they report.

Place in the flow: called by `run` of this package. It starts a server for each run of the service's side and reads the
memory of its processes; TRL's side is a process of TRL's own interpreter. It knows neither library.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

import psutil

from bench.control_plane import start_server
from bench.peers import TRL_PYTHON
from bench.peers.report import RunReport, peak_mb, summarize
from bench.peers.workload import CASES, RunPlan
from bench.results import Result
from swarm.errors import EngineFailure
from swarm.processes.cores import usable_cores

BENCHMARK: Final = "peers"
SEEDS: Final = (0, 1, 2)
ROOT: Final = Path(__file__).parents[2]
RUN_LIMIT_S: Final = 1200.0
UNITS: Final[Mapping[str, str]] = {
    "steps": "steps",
    "step_s": "s",
    "rollout_s": "s",
    "train_s": "s",
    "tokens_per_second": "tokens/s",
    "steps_to_goal": "steps",
    "goal_s": "s",
    "last_reward": "",
}
"""Every other figure is in MB."""
COMPARED: Final = ("step_s", "goal_s", "tokens_per_second", "last_reward", "peak_rss")


@dataclass(frozen=True, slots=True)
class Side:
    """A trainer, with its number of torch threads."""

    name: str
    threads: int
    train: Callable[[RunPlan], RunReport]

    def __str__(self) -> str:
        return f"{self.name}, {self.threads} thread{'s' if self.threads > 1 else ''}"


def compare(seconds: float) -> list[Result]:
    """Compare the sides on every case.

    The first run of a case trains for `seconds`, within the bounds of the case. All others make as many steps as that
    one. Raises EngineFailure where TRL is missing or a side fails.
    """
    if not os.environ.get(TRL_PYTHON):
        raise EngineFailure(f"{TRL_PYTHON} is not set: run scripts/install_trl.sh and set it to that python")
    return [result for case in CASES for result in _compare(case, seconds, sides_of(usable_cores()))]


def sides_of(cores: int) -> list[Side]:
    """Return both sides with one thread each, then both with as many threads as there are cores."""
    return [
        Side(name, threads, train)
        for threads in sorted({1, cores})
        for name, train in (("trl", train_with_trl), ("service", train_with_service))
    ]


def _compare(case: str, seconds: float, sides: Sequence[Side]) -> list[Result]:
    figures: dict[str, list[dict[str, float]]] = {str(side): [] for side in sides}
    steps = 0
    for seed in SEEDS:
        for side in sides:
            plan = RunPlan(case, seed, side.threads, steps or CASES[case].most_steps)
            report = side.train(plan if steps else replace(plan, seconds=seconds))
            steps = steps or len(report.steps)
            check_steps(report, steps, side, plan)
            figures[str(side)].append(summarize(report, CASES[case].goal))
    return results_of(case, steps, figures)


def check_steps(report: RunReport, steps: int, side: Side, plan: RunPlan) -> None:
    """Raise EngineFailure if a run has another number of steps than the one before.

    Figures over different numbers of steps would not compare.
    """
    if len(report.steps) != steps:
        raise EngineFailure(
            f"{plan.case}, seed {plan.seed}, {side}: reported {len(report.steps)} steps in place of {steps}"
        )


def results_of(case: str, steps: int, figures: Mapping[str, Sequence[Mapping[str, float]]]) -> list[Result]:
    """Return the medians over the seeds for each side, and the ratio of the service to TRL with as many threads.

    A figure that a side has for some seeds only, such as a goal that it did not reach, is not shown.
    """
    medians = {side: _medians(rows) for side, rows in figures.items()}
    results = [
        Result(BENCHMARK, f"{case}, {side}", name, value, UNITS.get(name, "MB"))
        for side, values in medians.items()
        for name, value in {"steps": float(steps), **values}.items()
    ]
    for ours, values in medians.items():
        theirs = ours.replace("service", "trl")
        if theirs == ours:
            continue
        results += [
            Result(BENCHMARK, f"{case}, {ours} / {theirs}", name, values[name] / medians[theirs][name], "x")
            for name in COMPARED
            if medians[theirs].get(name) and name in values
        ]
    return results


def _medians(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: median(row[name] for row in rows) for name in rows[0] if all(name in row for row in rows)}


def train_with_trl(plan: RunPlan) -> RunReport:
    """Train with TRL in a process of its own interpreter. Raises EngineFailure."""
    return _run([os.environ[TRL_PYTHON], "-m", "bench.peers.trl_side", _told(plan)], plan)


def train_with_service(plan: RunPlan) -> RunReport:
    """Train on a new server with an empty record. Raises EngineFailure.

    The server uses the number of threads that suits it, up to the number in the plan.
    """
    with (
        _environment({"SWARM_MAX_TORCH_THREADS": str(plan.threads)}),
        tempfile.TemporaryDirectory(prefix="bench-peers-") as directory,
        start_server(Path(directory)) as (url, pid),
    ):
        report = _run([sys.executable, "-m", "bench.peers.service_side", url, _told(plan)], plan)
        memory = {**report.memory_mb, "server": peak_mb(pid)}
        memory["worker"] = sum(peak_mb(child.pid) for child in psutil.Process(pid).children(recursive=True))
    return replace(report, memory_mb=memory)


def _told(plan: RunPlan) -> str:
    return json.dumps(asdict(plan))


def _run(command: Sequence[str], plan: RunPlan) -> RunReport:
    threads = {"OMP_NUM_THREADS": str(plan.threads), "PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=RUN_LIMIT_S, cwd=ROOT, env={**os.environ, **threads}
        )
    except subprocess.TimeoutExpired as error:
        raise EngineFailure(f"{plan.case}, seed {plan.seed}: not done within {RUN_LIMIT_S:.0f} s") from error
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise EngineFailure(f"{plan.case}, seed {plan.seed}: {said[-1] if said else 'it said nothing'}")
    return RunReport.from_json(done.stdout.splitlines()[-1])


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process, which the server inherits, for the length of the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
