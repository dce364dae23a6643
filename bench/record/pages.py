"""The time in which commands and pages of the explorer read a large record.

Place in the flow: __init__.py runs it. The runs, scores and points are put into the database past the store, which
would take a transaction for each; the plan is made, the runs are analyzed and the report is written by the nodes.
"""

from __future__ import annotations

import json
import random
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.record.simulation import METRICS, LongStudy, Size
from bench.results import Result
from experiments_db import ExperimentStore, open_store
from experiments_db.frames import curves_frame, metrics_frame, runs_frame
from researcher.loop.nodes.analyze import analyze
from researcher.loop.nodes.decide import decide
from researcher.loop.nodes.plan import plan
from researcher.loop.state import first_state
from researcher.record.runs import job_of
from researcher.report.write import build_report
from researcher.study.overview import SnapshotReader
from swarm.guard import REWARD
from swarm.job import build_job
from ui.reading.study_reader import StudyReader

ARMS = 20
STEPS = 50
LONG_STEPS = 10_000
"""One run among them has so many, for the page of a run."""
COMPARED = 12
EPISODES = 40
SPLIT = "validation"


@dataclass(frozen=True, slots=True)
class _Record:
    study: LongStudy
    run_ids: tuple[str, ...]
    points: int


def measure_pages(*, is_full: bool) -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="record-") as folder:
        record = _build(Path(folder), seeds=500 if is_full else 50)
        case = f"{len(record.run_ids):,} runs, {record.points:,} points"
        size = Result("record", case, "database", record.study.database.stat().st_size / 1e6, "MB")
        return [size, *(Result("record", case, name, seconds, "s") for name, seconds in _time_all(record, folder))]


def _time_all(record: _Record, folder: str) -> Iterator[tuple[str, float]]:
    study_id = record.study.study_id
    opened: list[ExperimentStore] = []
    yield "open", _timed(lambda: opened.append(open_store(record.study.database, read_only=True)))
    (store,) = opened
    with store:
        snapshots, contents = SnapshotReader(store, study_id), StudyReader(store, study_id)
        long_run = record.run_ids[0]
        asked: dict[str, Callable[[], Any]] = {
            "list": store.list_studies,
            "status, and the first look of watch": snapshots.read,
            "each further look of watch": snapshots.read,
            "page of the study, first": contents.read,
            "page of the study, again": contents.read,
            "table of runs": lambda: runs_frame(store, study_id),
            "page of a run of 10,000 steps: 4 curves": lambda: _curves(store, long_run),
            f"compare {COMPARED} runs: 1 curve": lambda: metrics_frame(
                store, record.run_ids[1 : COMPARED + 1], [REWARD]
            ),
            "200 newest events": lambda: store.list_events(study_id, newest_first=True),
            "report": lambda: build_report(store, study_id, Path(folder) / "report"),
        }
        for name, ask in asked.items():
            yield name, _timed(ask)


def _curves(store: ExperimentStore, run_id: str) -> None:
    names = store.metric_names([run_id])
    curves_frame(store, [run_id], names[:4], most=1000)


def _timed(ask: Callable[[], Any]) -> float:
    """Return seconds of the processor, because there is little waiting and this machine may be busy."""
    started = time.process_time()
    ask()
    return time.process_time() - started


def _build(home: Path, *, seeds: int) -> _Record:
    size = Size(rounds=1, arms=ARMS, seeds=seeds, steps=STEPS, episodes=EPISODES)
    study = LongStudy(home, size, lambda _: True)
    study.begin()
    with open_store(study.database, clock=study.clock) as store:
        deps = study.parts(store)
        state = plan(deps, first_state(study.study_id))
        run_ids = _add_runs(study, store)
        points = _add_points(study.database, run_ids)
        decide(deps, analyze(deps, state))
        deps.environments.close()
    return _Record(study, tuple(run_ids), points)


def _add_runs(study: LongStudy, store: ExperimentStore) -> list[str]:
    """Store the runs of all seeds of all arms, finished and scored."""
    chance, ids, runs, scores = random.Random(0), list[str](), list[tuple[Any, ...]](), list[tuple[Any, ...]]()
    for arm in store.list_experiments(study.study_id):
        resolved = build_job(job_of(study.study_id, arm, 0, 1)).model_dump(mode="json")
        job = json.dumps(resolved)
        for seed in range(study.size.seeds):
            run_id = f"run-{arm.name}-{seed}"[-32:]
            ids.append(run_id)
            runs.append(
                (run_id, study.study_id, arm.id, seed, f"{study.study_id}/{arm.name}/{seed}", job, seed, seed + 60)
            )
            for phase, mean in (("base", 0.3), ("final", 0.5)):
                solved = [chance.random() < mean for _ in range(EPISODES)]
                tasks = [f"reverse/{SPLIT}/{index}" for index in range(EPISODES)]
                details = json.dumps({"tasks": tasks, "rewards": [float(won) for won in solved], "solved": solved})
                won = sum(solved)
                scores.append((run_id, phase, SPLIT, EPISODES, won, won / EPISODES, 0.08, details))
    with closing(sqlite3.connect(study.database)) as connection, connection:
        connection.executemany(
            "insert into runs (id, study_id, experiment_id, seed, attempt, idempotency_key, status, external_ids, job,"
            " environment, created_at, updated_at, started_at, finished_at, revision, rung)"
            " values (?, ?, ?, ?, 1, ?, 'finished', '{}', ?, '{}', 1, 1, ?, ?, 1000000, 0)",
            runs,
        )
        connection.executemany(
            "insert into evaluations (run_id, phase, split, metric, weight_version, episodes, successes, mean, stderr,"
            " evaluator_hash, details, created_at) values (?, ?, ?, 'reward', 1, ?, ?, ?, ?, 'simulated', ?, 1)",
            scores,
        )
        connection.execute("update studies set revision = 1000000 where id = ?", (study.study_id,))
    return ids


def _add_points(database: Path, run_ids: list[str]) -> int:
    chance = random.Random(1)
    values = [chance.random() for _ in range(997)]

    def points() -> Iterator[tuple[Any, ...]]:
        for number, run_id in sorted(enumerate(run_ids), key=lambda pair: pair[1]):
            for name in sorted(METRICS):
                for step in range(1, (LONG_STEPS if number == 0 else STEPS) + 1):
                    yield run_id, name, step, values[(step * 31 + number) % len(values)], 1_700_000_000.0 + step

    with closing(sqlite3.connect(database)) as connection, connection:
        connection.executemany("insert into metric_points values (?, ?, ?, ?, ?)", points())
        return int(connection.execute("select count(*) from metric_points").fetchone()[0])
