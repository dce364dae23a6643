"""Simulated studies: the real plan, design, analyze and decide nodes on a real store, with drawn scores."""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from numpy.random import Generator, default_rng

from bench.judge.shapes import BASE, Shape, failing, normal
from experiments_db import ExperimentStore, Verdict, open_store
from researcher.analysis import JudgedContrast
from researcher.charter import Charter
from researcher.loop.deps import Deps, ResearchState, first_state
from researcher.loop.nodes.analyze import analyze
from researcher.loop.nodes.decide import decide
from researcher.loop.nodes.design import design
from researcher.loop.nodes.launch import is_piloted, open_trials
from researcher.loop.nodes.plan import plan
from researcher.plan import Stage
from researcher.planner.base import Planner
from researcher.record.budget import BudgetLedger
from researcher.record.log import StudyLog, to_json
from researcher.record.runs import MAX_ON_ONE_SERVER, Trial, run_key
from researcher.servers.server import LeaseHolder
from researcher.servers.server_pool import ServerPool

DIVERGED = {"kind": "not_finite", "sentence": "diverged", "is_retried": False}
LOST_TO_THE_SYSTEM = {"kind": "failure", "sentence": "the environment went away", "is_retried": True}
STUDIES_PER_STORE = 50
"""The plan node reads the findings of all studies of a store, so a store of many makes each slower."""
MEMORY_DISK = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Truth:
    """The model from which the scores of runs are drawn.

    It has the mean score and the standard deviation between seeds, of the arms named and of all others. `correlation`
    is the part of the variance that the runs of one seed share. `failures` is the share of runs that diverge.
    """

    means: Mapping[str, float] = field(default_factory=dict[str, float])
    deviations: Mapping[str, float] = field(default_factory=dict[str, float])
    failures: Mapping[str, float] = field(default_factory=dict[str, float])
    mean: float = 0.5
    deviation: float = 0.05
    correlation: float = 0.0
    shapes: Mapping[str, Shape] = field(default_factory=dict[str, Shape])


@dataclass(frozen=True, slots=True)
class Played:
    """The end of a simulated study.

    It has the arms that were ever kept, the verdicts of the last analysis, the runs per arm of the first plan with a
    claim, the number of all runs, and the judged contrasts.
    """

    kept: frozenset[str]
    verdicts: Mapping[str, str]
    seeds: int
    runs: int
    contrasts: tuple[JudgedContrast, ...]


def play_studies(
    charter: Charter, make_planner: Callable[[], Planner], truth: Truth, studies: int, seed: int
) -> list[Played]:
    """Play simulated studies, the same ones for the same `seed`. Raises what a node raises."""
    random = default_rng(seed)
    played: list[Played] = []
    parent = MEMORY_DISK if MEMORY_DISK.is_dir() else None
    with tempfile.TemporaryDirectory(dir=parent, prefix="judge-") as folder:
        for first in range(0, studies, STUDIES_PER_STORE):
            path = Path(folder) / f"{first}.db"
            with open_store(path) as store, closing(sqlite3.connect(path, isolation_level=None)) as database:
                for _ in range(min(STUDIES_PER_STORE, studies - first)):
                    played.append(play_study(store, database, charter, make_planner(), truth, random))
            path.unlink()
    return played


def play_study(
    store: ExperimentStore,
    database: sqlite3.Connection,
    charter: Charter,
    planner: Planner,
    truth: Truth,
    random: Generator,
) -> Played:
    study = store.create_study(charter.topic, planner=planner.name).id
    store.freeze_charter(study, to_json(charter))
    home = Path(store.location).parent
    deps = Deps(
        log=StudyLog(store, study),
        planner=planner,
        pool=ServerPool(urls=(), local=1, home=home, holder=LeaseHolder("simulation")),
        ledger=BudgetLedger(store, study, charter.budget),
        home=home,
    )
    shared: dict[int, float] = {}
    state = plan(deps, first_state(study))
    while not state["is_halted"]:
        _make_ready(database, study)
        _train(deps, state, database, charter, truth, random, shared)
        state = decide(deps, analyze(deps, state))
        if not state["is_halted"]:
            state = plan(deps, state)
    return _result(deps)


def _train(
    deps: Deps,
    state: ResearchState,
    database: sqlite3.Connection,
    charter: Charter,
    truth: Truth,
    random: Generator,
    shared: dict[int, float],
) -> None:
    """Store every run that the plan asks for, those of the pilot first."""
    design(deps, state)
    while trials := list(open_trials(deps, state)):
        with database:
            database.execute("begin immediate")
            for trial in trials:
                common = shared.setdefault(trial.seed, random.normal())
                _store_run(database, trial, charter, truth, random, common)
        if is_piloted(deps, state):
            design(deps, state)


def _make_ready(database: sqlite3.Connection, study: str) -> None:
    with database:
        database.execute("begin immediate")
        database.execute("update experiments set status = 'ready' where study_id = ?", (study,))


def _store_run(
    database: sqlite3.Connection, trial: Trial, charter: Charter, truth: Truth, random: Generator, common: float
) -> None:
    arm = trial.experiment.name
    shape = truth.shapes.get(arm) or _shape_of(truth, arm, common)
    drawn = shape(random, (1,))
    is_missing, is_failed = bool(drawn.missing[0]), bool(drawn.failed[0])
    lost = MAX_ON_ONE_SERVER if is_missing else int(drawn.trainings[0]) - 1
    for attempt in range(1, lost + 1):
        _store_attempt(database, trial, attempt, LOST_TO_THE_SYSTEM)
    if is_missing:
        return
    run_id = _store_attempt(database, trial, lost + 1, DIVERGED if is_failed else None)
    if trial.rung and charter.search is not None:
        charter = replace(charter, eval_episodes=charter.search.episodes)
    _store_score(database, run_id, "base", charter, BASE, random)
    if not is_failed:
        _store_score(database, run_id, "final", charter, float(drawn.scores[0]), random)


def _shape_of(truth: Truth, arm: str, common: float) -> Shape:
    """Return a normal shape with a part that the runs of a seed have in common."""
    deviation = truth.deviations.get(arm, truth.deviation)
    mean = truth.means.get(arm, truth.mean) + deviation * truth.correlation**0.5 * common
    return failing(normal(mean, deviation * (1 - truth.correlation) ** 0.5), truth.failures.get(arm, 0.0))


def _store_attempt(
    database: sqlite3.Connection, trial: Trial, attempt: int, diagnosis: Mapping[str, Any] | None
) -> str:
    """Store one run that is over and return its id.

    The run ended as `diagnosis` says, or well without one.
    """
    arm, study = trial.experiment.name, trial.experiment.study_id
    # An exploring arm has a run for each of its rungs.
    run_id = f"{trial.experiment.id}/{trial.seed}/{trial.rung}/{attempt}"[-30:]
    is_well = diagnosis is None
    database.execute(
        "insert into runs (id, study_id, experiment_id, seed, attempt, idempotency_key, status, external_ids, job,"
        " environment, exit_reason, diagnosis, created_at, started_at, updated_at, rung) values (?, ?, ?,"
        " ?, ?, ?, ?, '{}', '{}', '{}', ?, ?, 0, 0, 0, ?)",
        (
            *(run_id, study, trial.experiment.id, trial.seed, attempt),
            run_key(study, arm, trial.seed, attempt, trial.rung),
            *("finished" if is_well else "failed", "done" if is_well else diagnosis["sentence"]),
            None if is_well else json.dumps(diagnosis),
            trial.rung,
        ),
    )
    return run_id


def _store_score(
    database: sqlite3.Connection, run_id: str, phase: str, charter: Charter, true_score: float, random: Generator
) -> None:
    """Store a score over the charter's number of episodes, each won with the probability of the true score."""
    episodes = charter.eval_episodes
    chance = min(max(true_score, 0.0), 1.0)
    successes = int(random.binomial(episodes, chance))
    mean = successes / episodes
    stderr = (mean * (1 - mean) / (episodes - 1)) ** 0.5
    database.execute(
        "insert into evaluations (run_id, phase, split, metric, weight_version, episodes, successes, mean, stderr,"
        " evaluator_hash, details, created_at) values (?, ?, ?, ?, 1, ?, ?, ?, ?, 'simulated', '{}', 0)",
        (run_id, phase, charter.search_split, charter.metric, episodes, successes, mean, stderr),
    )


def _result(deps: Deps) -> Played:
    names = {item.id: item.name for item in deps.store.list_experiments(deps.study_id)}
    findings = deps.store.list_findings(study_id=deps.study_id, verdict=Verdict.KEEP)
    history = deps.log.history()
    return Played(
        kept=frozenset(names[finding.experiment_id] for finding in findings),
        verdicts={item.arm: item.verdict.value for item in history.analyses[-1].comparisons},
        seeds=next((len(each.seeds) for each in history.plans if each.stage is Stage.CLAIM), 0),
        runs=len(deps.store.list_runs(study_id=deps.study_id)),
        contrasts=tuple(item for analysis in history.analyses for item in analysis.contrasts),
    )
