"""What must be true of a study that is over, faults or none: by its record, its servers and its processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter

import psutil
from process_support import command_of, descendants

from chaos.deployment import Deployment
from experiments_db import BudgetKind, RunStatus, StudyStatus, open_store

VERIFY_TIMEOUT_S = 600


def check(deployment: Deployment, runs: int) -> tuple[dict[str, str], int]:
    """Assert that a study of so many runs is whole; return its verdicts by plan and arm, and its test scores."""
    study_id, researcher = deployment.study_id, deployment.researcher
    assert not researcher.own_ends, "it ended by itself"
    launched = Counter(deployment.launches())
    assert set(launched.values()) == {1}, launched
    with open_store(deployment.database, read_only=True) as store:
        assert store.get_study(study_id).status is StudyStatus.FINISHED
        known = store.list_runs(study_id=study_id)
        assert set(launched) <= {run.idempotency_key for run in known}
        assert store.sum_budget(study_id)[BudgetKind.RUNS] <= runs + 1
        finished = {run.id: (run.experiment_id, run.seed) for run in known if run.status is RunStatus.FINISHED}
        for phase in ("base", "final"):
            scored = {item.run_id for item in store.list_evaluations(study_id=study_id, phase=phase)}
            assert len({trial for run, trial in finished.items() if run in scored}) == runs, phase
        assert len({(run.experiment_id, run.seed) for run in known}) == runs == len(finished)
        assert store.list_artifacts(study_id, kind="report.markdown")
        arms = {item.id: item.name for item in store.list_experiments(study_id)}
        verdicts = {
            f"plan {finding.iteration + 1}, {arms[finding.experiment_id]}": finding.verdict.value
            for finding in store.list_findings(study_id=study_id)
        }
        tested = len(store.list_evaluations(study_id=study_id, phase="test"))
    assert verdicts and tested
    _verify(deployment)
    assert not _left_behind(deployment)
    return verdicts, tested


def _verify(deployment: Deployment) -> None:
    command = [sys.executable, "-m", "researcher.cli", "verify", deployment.study_id, "--json"]
    command += ["--home", str(deployment.home)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=VERIFY_TIMEOUT_S, check=False)
    assert json.loads(done.stdout)["mismatches"] == 0, done.stdout


def _left_behind(deployment: Deployment) -> list[list[str]]:
    """Return the commands of processes that still work for the study, though its researcher has ended."""
    mine = {os.getpid(), *(server.pid for server in deployment.servers)}
    mine |= {child.pid for server in deployment.servers for child in descendants(server.pid)}
    commands = [command_of(process) for process in psutil.process_iter() if process.pid not in mine]
    places = (str(deployment.folder), str(deployment.home))
    return [command for command in commands if any(place in word for word in command for place in places)]
