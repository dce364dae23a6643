"""A write that fails in the middle of a node: the node is repeated, and neither a run nor a server is forgotten."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from store_samples import record_score
from waiting import locked

from experiments_db import (
    BudgetKind,
    ExperimentStatus,
    RunStatus,
    StoreUnavailable,
    engine,
    open_store,
)
from researcher.errors import RunLost
from researcher.execution.early_stopping import EarlyStopping, StoppingLimits
from researcher.loop.checkpoint_scores import CheckpointScore, score_checkpoints
from researcher.loop.deps import ActiveRun, Deps, Phase, first_state
from researcher.loop.nodes.check import check
from researcher.loop.nodes.evaluate import evaluate
from researcher.loop.nodes.launch import launch
from researcher.loop.nodes.monitor import monitor
from researcher.loop.nodes.plan import plan
from researcher.phases import BASE, FINAL
from researcher.planner.rules import RulesPlanner
from researcher.record.budget import BudgetLedger
from researcher.record.log import StudyLog, to_json
from researcher.servers.server import LeaseHolder
from researcher.servers.server_pool import ServerPool
from researcher.study.settings import read_settings
from researcher.study.topics import read_request
from swarm.environments import load_environment
from swarm.errors import CheckpointError, ServerUnreachable
from swarm.processes.child import Child, child_environment

TOPIC = "learning rate 1e-4, 1e-3 or 1e-2 for word reversal"
NOWHERE = "http://127.0.0.1:1"
PATIENCE_S = 60


@pytest.fixture
def deps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deps]:
    """A study whose arms are planned. Its two servers count as answering until somebody reports otherwise."""
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_S", 0.1)
    planner = RulesPlanner()
    with open_store(tmp_path / "research.db") as store, closing(load_environment("reverse")) as environment:
        charter = planner.frame(read_request(TOPIC, read_settings({"seeds": 1})))
        charter = replace(charter, environment_digest=environment.digest)
        study = store.create_study(TOPIC, planner="rules").id
        store.freeze_charter(study, to_json(charter))
        deps = Deps(
            log=StudyLog(store, study),
            planner=planner,
            pool=ServerPool(urls=(NOWHERE, "http://127.0.0.1:2"), local=0, home=tmp_path, holder=LeaseHolder("s")),
            ledger=BudgetLedger(store, study, charter.budget),
            home=tmp_path,
        )
        plan(deps, first_state(study))
        yield deps
        deps.background.join()
        deps.environments.close()


def make_ready(deps: Deps) -> None:
    for experiment in deps.store.list_experiments(deps.study_id):
        deps.store.revise_experiment(experiment.id, status=ExperimentStatus.READY)


def take_up(deps: Deps, phase: Phase) -> ActiveRun:
    """A run of the first arm in this phase, without any work for it."""
    arm = deps.store.list_experiments(deps.study_id)[0]
    run = deps.store.claim_run(arm.id, 0, f"{arm.id}/0", job=arm.job)
    moves = {Phase.PREPARING: 1, Phase.MEASURING: 3}.get(phase, 2)
    for status in (RunStatus.LAUNCHING, RunStatus.RUNNING, RunStatus.EVALUATING)[:moves]:
        deps.store.update_run(run.id, status=status)
    slot = deps.pool.take()
    assert slot is not None
    active = ActiveRun(run.id, "the run", arm, 3, slot, EarlyStopping(StoppingLimits(), "fake", 3), phase)
    deps.active_runs.add(active)
    return active


def settle(deps: Deps, active: ActiveRun, outcome: Child | Exception | None) -> None:
    """Have the background work for the run end with this result or error."""

    def work() -> Child | None:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    deps.background.submit(active.run_id, work)
    deps.background.wait(PATIENCE_S)


@pytest.mark.parametrize(
    ("phase", "error", "status"),
    [
        (Phase.PREPARING, CheckpointError("no space left on device"), RunStatus.FAILED),
        (Phase.ENDING, RunLost("another took its place"), RunStatus.STOPPED),
        (Phase.MEASURING, CheckpointError("no space left on device"), RunStatus.FAILED),
    ],
)
def test_error_of_a_run_that_cannot_be_stored_is_stored_in_a_later_round(
    deps: Deps, phase: Phase, error: Exception, status: RunStatus
) -> None:
    state, node = first_state(deps.study_id), evaluate if phase is Phase.MEASURING else monitor
    active = take_up(deps, phase)
    settle(deps, active, error)

    with locked(deps.store.location), pytest.raises(StoreUnavailable):
        node(deps, state)
    assert list(deps.active_runs) == [active]
    node(deps, state)

    run = deps.store.get_run(active.run_id)
    assert (run.status, run.exit_reason) == (status, str(error))
    assert not deps.active_runs and active.slot.is_free


def test_end_of_a_scored_run_that_cannot_be_stored_is_stored_in_a_later_round(deps: Deps) -> None:
    state, active = first_state(deps.study_id), take_up(deps, Phase.MEASURING)
    for phase in (BASE, FINAL):
        record_score(deps.store, deps.store.get_run(active.run_id), phase)
    settle(deps, active, None)

    with locked(deps.store.location), pytest.raises(StoreUnavailable):
        evaluate(deps, state)
    evaluate(deps, state)

    assert deps.store.get_run(active.run_id).status is RunStatus.FINISHED
    assert not deps.active_runs and active.slot.is_free


def test_program_whose_start_cannot_be_noted_is_kept(deps: Deps, tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = Child(["sleep", "600"], env=child_environment(), cwd=tmp_path, out=log, errors=log)
    active = take_up(deps, Phase.PREPARING)
    settle(deps, active, program)

    with locked(deps.store.location), pytest.raises(StoreUnavailable):
        monitor(deps, first_state(deps.study_id))
    monitor(deps, first_state(deps.study_id))
    program.stop()

    assert (active.phase, active.child) == (Phase.TRAINING, program)


class LedgerAtAnOutage(BudgetLedger):
    """The database is locked while the first charge for a run is written."""

    has_been = False

    def charge(self, kind: BudgetKind, amount: float, key: str, *, run_id: str | None = None) -> None:
        if self.has_been or kind is not BudgetKind.RUNS:
            super().charge(kind, amount, key, run_id=run_id)
            return
        self.has_been = True
        with locked(self._store.location):
            super().charge(kind, amount, key, run_id=run_id)


@pytest.mark.parametrize("is_claimed", [False, True])
def test_launch_that_cannot_be_stored_is_made_again(deps: Deps, is_claimed: bool) -> None:
    make_ready(deps)
    state = first_state(deps.study_id)
    if is_claimed:
        deps = replace(deps, ledger=LedgerAtAnOutage(deps.store, deps.study_id, deps.ledger.budget))
        with pytest.raises(StoreUnavailable):
            launch(deps, state)
    else:
        with locked(deps.store.location), pytest.raises(StoreUnavailable):
            launch(deps, state)
    assert all(slot.is_free for slot in deps.pool.slots) and not deps.active_runs
    launch(deps, state)

    (run,) = deps.store.list_runs(study_id=deps.study_id)
    assert (run.attempt, run.status) == (1, RunStatus.LAUNCHING)
    assert [active.run_id for active in deps.active_runs] == [run.id]


def test_server_for_a_check_is_free_again_if_an_event_cannot_be_stored(deps: Deps) -> None:
    deps.pool.report_outage(deps.pool.slots[1], ServerUnreachable("it is away"))

    with locked(deps.store.location), pytest.raises(StoreUnavailable):
        check(deps, first_state(deps.study_id))

    assert all(slot.is_free for slot in deps.pool.slots)


class WatchedLog(StudyLog):
    """`has_failed` is set once an event could not be stored."""

    has_failed = threading.Event()

    def warn(self, kind: str, message: str, *, run_id: str | None = None) -> None:
        try:
            super().warn(kind, message, run_id=run_id)
        except StoreUnavailable:
            self.has_failed.set()
            raise


def test_servers_that_score_checkpoints_are_free_again_if_an_event_cannot_be_stored(deps: Deps) -> None:
    log = WatchedLog(deps.store, deps.study_id)
    deps = replace(deps, log=log)
    run = deps.store.get_run(take_up(deps, Phase.MEASURING).run_id)
    scored: list[str] = []

    def measure_in_an_outage(_: object, url: str) -> None:
        with locked(deps.store.location):
            deps.pool.report_outage(deps.pool.slots[0], ServerUnreachable("it is away"))
            log.has_failed.wait(PATIENCE_S)
        scored.append(url)

    with pytest.raises(StoreUnavailable):
        score_checkpoints(deps, [CheckpointScore("any", "score", run, measure_in_an_outage)])

    assert len(scored) == 1 and deps.pool.slots[1].is_free
    score_checkpoints(deps, [CheckpointScore("any", "score", run, lambda _, url: scored.append(url))])
    assert len(scored) == 2
