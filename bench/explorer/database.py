"""A large database, as many studies and servers would leave it, written past the store within a minute.

Place in the flow: the benchmark of the explorer and its tests open the pages on it. One study has a large share of the
runs and goes on; one of its runs has a large share of the points. The others are over.
"""

from __future__ import annotations

import json
import random
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments_db import open_store
from swarm.job import build_job

METRICS = (
    "actor/entropy", "actor/grad_norm", "actor/lr", "actor/pg_loss", "actor/ppo_kl", "critic/score/mean", "eval/mean",
    "response_length/mean", "timing_s/step",
)  # fmt: skip
METRIC, SPLIT = "mean reward of held-out episodes", "validation"
TASKS = 40
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class DatabaseSize:
    """How many rows there are. `large` is the number of arms and seeds of the one large study."""

    studies: int
    large: tuple[int, int]
    arms: int = 4
    seeds: int = 5
    steps: int = 20
    long_steps: int = 22_000
    trainings: int = 300

    @property
    def runs(self) -> int:
        return (self.studies - 1) * self.arms * self.seeds + self.large[0] * self.large[1]

    @property
    def points(self) -> int:
        return len(METRICS) * ((self.runs - 1) * self.steps + self.long_steps)


FULL = DatabaseSize(studies=300, large=(20, 201))
SMALL = DatabaseSize(studies=12, large=(4, 10), long_steps=1000, trainings=12)


@dataclass(frozen=True, slots=True)
class FilledDatabase:
    """A database, with the large study, one of its runs with few points, and the run with many."""

    path: Path
    study_id: str
    run_id: str
    long_run_id: str


@dataclass(frozen=True, slots=True)
class _Study:
    id: str
    arms: tuple[str, ...]
    seeds: int
    begun_at: float
    is_over: bool

    @property
    def runs(self) -> Iterator[tuple[str, int, int]]:
        """Id, arm and seed of every run."""
        for arm in range(len(self.arms)):
            for seed in range(self.seeds):
                yield f"run-{self.id}-{arm}-{seed}", arm, seed


def fill(path: Path, size: DatabaseSize) -> FilledDatabase:
    """Make a database of this size."""
    with open_store(path):
        pass
    chance, now = random.Random(0), time.time()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA synchronous=OFF")
        studies = [_study(number, size, now - (size.studies - number) * DAY_S) for number in range(size.studies)]
        large, long_run_id = studies[-1], f"run-{studies[-1].id}-0-0"
        for study in studies:
            _add_study(connection, study, chance)
            for run_id, _, _ in study.runs:
                steps = size.long_steps if run_id == long_run_id else size.steps
                _add_points(connection, "metric_points", run_id, steps, study.begun_at)
        for number in range(size.trainings):
            _add_training(connection, number, now - (size.trainings - number) * DAY_S, size.steps)
    return FilledDatabase(path, large.id, f"run-{large.id}-1-1", long_run_id)


def _study(number: int, size: DatabaseSize, begun_at: float) -> _Study:
    is_large = number == size.studies - 1
    arms, seeds = size.large if is_large else (size.arms, size.seeds)
    names = tuple(f"lr={0.001 * (arm + 1):g}" for arm in range(arms))
    return _Study(f"st-{number:04}", names, seeds, begun_at, is_over=not is_large)


def _insert(connection: sqlite3.Connection, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
    given = list(rows)
    if given:
        names = ", ".join(given[0])
        places = ", ".join(f":{name}" for name in given[0])
        connection.executemany(f"INSERT INTO {table} ({names}) VALUES ({places})", given)


def _add_study(connection: sqlite3.Connection, study: _Study, chance: random.Random) -> None:
    at = {"created_at": study.begun_at, "updated_at": study.begun_at + 3600}
    status = "finished" if study.is_over else "running"
    settings = {"max_runs": len(study.arms) * study.seeds, "max_hours": 24}
    row = {
        "id": study.id, "topic": f"Which learning rate trains word reversal best? Study {study.id}", "planner": "rules",
        "status": status, "settings": json.dumps(settings), "finished_at": at["updated_at"] if study.is_over else None,
        "revision": 1000, **at,
    }  # fmt: skip
    _insert(connection, "studies", [row])
    charter = {
        "topic": row["topic"], "question": "How does lr change what is learned?", "metric": METRIC,
        "search_split": SPLIT, "direction": "maximize", "test_split": "test", "baseline": study.arms[0],
        "rule": {"alpha": 0.05},
    }  # fmt: skip
    charter_row = {"study_id": study.id, "document": json.dumps(charter), "content_hash": "c" * 64}
    _insert(connection, "charters", [charter_row | {"created_at": study.begun_at}])
    _insert(connection, "experiments", (_arm(study, arm) | at for arm in range(len(study.arms))))
    _add_runs(connection, study, chance)
    _add_analysis(connection, study)
    _add_history(connection, study)
    if not study.is_over:
        # A process works on it, for a year.
        lease = {"resource": f"study:{study.id}", "owner": "bench", "token": 1, "ttl_s": 365 * DAY_S}
        _insert(connection, "leases", [lease | {"acquired_at": study.begun_at, "heartbeat_at": time.time()}])


def _arm(study: _Study, arm: int) -> dict[str, Any]:
    lr = 0.001 * (arm + 1)
    return {
        "id": f"ex-{study.id}-{arm}", "study_id": study.id, "name": study.arms[arm], "iteration": 0,
        "is_baseline": arm == 0, "factors": json.dumps({"lr": lr}), "job": json.dumps({"lr": lr, "batch_size": 16}),
        "program_code": "def attempt(client, task):\n    ...\n" * 60, "author": "package", "status": "ready",
        "purpose": "asked for", "revision": 1000,
    }  # fmt: skip


def _add_runs(connection: sqlite3.Connection, study: _Study, chance: random.Random) -> None:
    job = json.dumps(build_job({"engine": "fake", "total_steps": 20}).model_dump(mode="json"))
    runs, scores, charges = list[dict[str, Any]](), list[dict[str, Any]](), list[dict[str, Any]]()
    for run_id, arm, seed in study.runs:
        begun_at = study.begun_at + 60 * seed + arm
        is_begun = study.is_over or seed < 0.9 * study.seeds or seed < 3
        times = {"started_at": begun_at, "finished_at": begun_at + 60} if is_begun else {}
        runs.append(
            {
                "id": run_id, "study_id": study.id, "experiment_id": f"ex-{study.id}-{arm}", "seed": seed, "rung": 0,
                "attempt": 1, "idempotency_key": run_id, "status": "finished" if is_begun else "running",
                "server_url": "http://127.0.0.1:9", "external_ids": "{}", "job": job, "environment": '{"swarm": "1"}',
                "exit_reason": "all 20 steps done" if is_begun else None, "created_at": begun_at,
                "updated_at": begun_at, "started_at": begun_at, "finished_at": None, "revision": 1000, **times,
            }
        )  # fmt: skip
        charge = {"study_id": study.id, "key": run_id, "run_id": run_id, "created_at": begun_at}
        charges += [charge | {"kind": "runs", "amount": 1}, charge | {"kind": "working_s", "amount": 60.0}]
        if is_begun:
            scores += [
                _score(run_id, phase, mean, chance) for phase, mean in (("base", 0.3), ("final", 0.5 + 0.01 * arm))
            ]
    _insert(connection, "runs", runs)
    _insert(connection, "evaluations", scores)
    _insert(connection, "budget_entries", charges)


def _score(run_id: str, phase: str, mean: float, chance: random.Random) -> dict[str, Any]:
    solved = [chance.random() < mean for _ in range(TASKS)]
    details = {
        "tasks": [f"reverse/{SPLIT}/{index}" for index in range(TASKS)],
        "rewards": [float(won) for won in solved],
    }
    share = sum(solved) / TASKS
    return {
        "run_id": run_id, "phase": phase, "split": SPLIT, "metric": METRIC, "weight_version": 20, "episodes": TASKS,
        "successes": sum(solved), "mean": share, "stderr": 0.08, "evaluator_hash": "e" * 64,
        "details": json.dumps(details), "created_at": 1.0,
    }  # fmt: skip


def _add_analysis(connection: sqlite3.Connection, study: _Study) -> None:
    """Store what the analysis of all runs says, and a finding for each arm."""
    statement = "SELECT run_id, mean FROM evaluations WHERE run_id = ? AND phase = ?"
    found: dict[int, dict[str, dict[str, float]]] = {}
    for run_id, arm, seed in study.runs:
        for phase in ("base", "final"):
            for _, mean in connection.execute(statement, (run_id, phase)):
                found.setdefault(arm, {}).setdefault(phase, {})[str(seed)] = mean
    arms, findings = list[dict[str, Any]](), list[dict[str, Any]]()
    for arm, scores in found.items():
        run_ids = [f"run-{study.id}-{arm}-{seed}" for seed in scores["final"]]
        mean = sum(scores["final"].values()) / len(run_ids)
        arms.append(
            {
                "arm": study.arms[arm], "mean": mean, "ci_low": mean - 0.02, "ci_high": mean + 0.02,
                "scores": scores["final"], "base_scores": scores["base"], "run_ids": run_ids, "failures": {},
            }
        )  # fmt: skip
        findings.append(_finding(study, arm, run_ids))
    document = {"arms": arms, "comparisons": [], "ranking": list(study.arms), "failed": {}}
    at = {"iteration": 0, "created_at": study.begun_at + 3000, "study_id": study.id}
    _insert(connection, "analyses", [{"document": json.dumps(document), **at}])
    _insert(connection, "findings", findings[1:])


def _finding(study: _Study, arm: int, run_ids: list[str]) -> dict[str, Any]:
    return {
        "id": f"fi-{study.id}-{arm}", "study_id": study.id, "comparison": f"0/{arm}", "iteration": 0,
        "experiment_id": f"ex-{study.id}-{arm}", "baseline_id": f"ex-{study.id}-0", "metric": METRIC, "split": SPLIT,
        "effect": 0.01 * arm, "ci_low": 0.01 * arm - 0.02, "ci_high": 0.01 * arm + 0.02, "confidence": 0.95,
        "p_value": 0.01, "p_adjusted": 0.02, "verdict": "keep", "method": "Welch's t over seeds",
        "run_ids": json.dumps(run_ids), "summary": "better", "details": json.dumps({"seeds": list(range(study.seeds))}),
        "recipe": "{}", "created_at": study.begun_at + 3000,
    }  # fmt: skip


def _add_history(connection: sqlite3.Connection, study: _Study) -> None:
    """Store events of every run, decisions and a few notes."""
    of_study = {"study_id": study.id, "created_at": study.begun_at}
    events = (
        of_study
        | {"run_id": run_id, "severity": "info", "kind": f"run.{what}", "message": f"{run_id} {what}", "payload": "{}"}
        for run_id, _, _ in study.runs
        for what in ("started", "finished")
    )
    _insert(connection, "events", events)
    decision = {"iteration": 0, "action": "stop", "reason": "All is said.", "finding_ids": "[]", "details": "{}"}
    _insert(connection, "decisions", [of_study | decision])
    note = {"iteration": 0, "kind": "lesson", "author": "rules"}
    _insert(connection, "notebook", (of_study | note | {"key": str(n), "text": f"Lesson {n}"} for n in range(10)))


def _add_points(connection: sqlite3.Connection, table: str, owner: str, steps: int, begun_at: float) -> None:
    scale = 1.0 / max(1, steps)
    rows = (
        (owner, name, step, 0.3 + 0.5 * step * scale + 0.01 * (step * 31 % 17), begun_at + step)
        for name in METRICS
        for step in range(1, steps + 1)
    )
    connection.executemany(f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?)", rows)


def _add_training(connection: sqlite3.Connection, number: int, begun_at: float, steps: int) -> None:
    training = f"training-{number:04}"
    row = {
        "id": training, "key": training, "project": "reverse", "experiment": f"trial-{number}", "model": "nano",
        "engine": "fake", "settings": json.dumps({"lr": 0.001 * (number % 7 + 1), "total_steps": steps}),
        "changes": "{}", "home": f"/runs/{number}", "launch_key": None, "status": "COMPLETE", "reason": None,
        "step": steps, "tags": '["many"]', "note": "", "begun_at": begun_at, "updated_at": begun_at + steps,
    }  # fmt: skip
    _insert(connection, "trainings", [row])
    _add_points(connection, "training_points", training, steps, begun_at)
