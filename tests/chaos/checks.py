"""Whether a study came out as if nothing had happened: what the record, the servers and a control study say.

Place in the flow: campaign.py asks once a study is over and its servers run. This module injects nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import psutil
from process_support import command_of, descendants

from chaos.deployment import Deployment
from experiments_db import BudgetKind, RunStatus, StudyStatus, open_store

VERIFY_TIMEOUT_S = 600
WAITS = (
    "llm.waiting", "server.lost", "servers.lost", "disk.low", "run.lost", "run.resumed", "run.failed", "run.orphan",
    "store.waiting", "rules.answered",
)  # fmt: skip
"""Events that say what a study waited for, or had to do again."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one study left behind. `attempts` counts runs by status; `verdicts` is arm by plan to the words for it."""

    study_id: str
    seconds: float
    is_finished: bool
    own_ends: list[str]
    kills: int
    runs_used: float
    trials: int
    scored: int
    test: int
    attempts: dict[str, int]
    verdicts: dict[str, str]
    launches: dict[str, int]
    unknown_launches: list[str]
    mismatches: int | None
    waits: dict[str, int]
    has_report: bool
    left_behind: list[str]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must be true of a study. `found` says what was found."""

    name: str
    is_passed: bool
    found: str


def look(deployment: Deployment) -> Outcome:
    """Raises SwarmError or StoreError if the servers or the record cannot be asked."""
    study_id, researcher = deployment.study_id, deployment.researcher
    launched = Counter(deployment.launches())
    with open_store(deployment.database, read_only=True) as store:
        runs = store.list_runs(study_id=study_id)
        arms = {item.id: item.name for item in store.list_experiments(study_id)}
        finished = {run.id: (run.experiment_id, run.seed) for run in runs if run.status is RunStatus.FINISHED}
        final = {item.run_id for item in store.list_evaluations(study_id=study_id, phase="final")}
        base = {item.run_id for item in store.list_evaluations(study_id=study_id, phase="base")}
        events = Counter(event.kind for event in store.list_events(study_id, limit=None))
        return Outcome(
            study_id=study_id,
            seconds=(researcher.finished_at or 0.0) - deployment.began_at,
            is_finished=store.get_study(study_id).status is StudyStatus.FINISHED,
            own_ends=[f"code {end.code}: {end.said}" for end in researcher.ends if not end.was_killed],
            kills=sum(end.was_killed for end in researcher.ends),
            runs_used=store.sum_budget(study_id).get(BudgetKind.RUNS, 0.0),
            trials=len({(run.experiment_id, run.seed) for run in runs}),
            scored=len({trial for run_id, trial in finished.items() if run_id in final and run_id in base}),
            test=len(store.list_evaluations(study_id=study_id, phase="test")),
            attempts=dict(Counter(run.status.value for run in runs)),
            verdicts={
                f"plan {finding.iteration + 1}, {arms[finding.experiment_id]}": finding.verdict.value
                for finding in store.list_findings(study_id=study_id)
            },
            launches=dict(launched),
            unknown_launches=sorted(set(launched) - {run.idempotency_key for run in runs}),
            mismatches=_verify(deployment),
            waits={kind: events[kind] for kind in WAITS if events[kind]},
            has_report=any(item.kind == "report.markdown" for item in store.list_artifacts(study_id)),
            left_behind=_left_behind(deployment),
        )


def judge(found: Outcome, runs: int) -> list[Check]:
    """What must be true of any study of so many runs, faults or none."""
    twice = [key for key, count in found.launches.items() if count > 1]
    return [
        Check(
            "finished by itself",
            found.is_finished and not found.own_ends,
            f"{found.kills} times resumed after a kill; ended by itself: {'; '.join(found.own_ends) or 'never'}",
        ),
        Check(
            "every key launched once",
            not twice and not found.unknown_launches and bool(found.launches),
            f"{len(found.launches)} keys, twice: {', '.join(twice) or 'none'}, "
            f"not on record: {', '.join(found.unknown_launches) or 'none'}",
        ),
        Check("runs within the budget", found.runs_used <= runs + 1, f"{found.runs_used:g} of {runs}"),
        Check(
            "every trial scored",
            found.trials == runs == found.scored,
            f"{found.scored} of {runs} ({found.trials} begun)",
        ),
        Check("verify", found.mismatches == 0, f"{found.mismatches} mismatches"),
        Check("report", found.has_report, "written" if found.has_report else "missing"),
        Check("no process left behind", not found.left_behind, "; ".join(found.left_behind) or "none"),
    ]


def compare(found: Outcome, control: Outcome) -> list[Check]:
    """What must be the same as in the study without faults."""
    differing = {
        arm: (control.verdicts.get(arm), found.verdicts.get(arm))
        for arm in control.verdicts.keys() | found.verdicts.keys()
        if control.verdicts.get(arm) != found.verdicts.get(arm)
    }
    return [
        Check("final test whole", found.test == control.test > 0, f"{found.test} of {control.test} scores"),
        Check(
            "verdicts as without faults",
            not differing and bool(found.verdicts),
            "; ".join(f"{arm}: {was} and {now}" for arm, (was, now) in differing.items())
            or f"{len(found.verdicts)} alike: {_count(found.verdicts)}",
        ),
    ]


def _count(verdicts: Mapping[str, str]) -> str:
    return ", ".join(f"{count} {word}" for word, count in Counter(verdicts.values()).items())


def _verify(deployment: Deployment) -> int | None:
    """How many numbers `researcher verify` found that are not what was measured; None if it could not tell."""
    command = [sys.executable, "-m", "researcher.cli", "verify", deployment.study_id, "--json"]
    done = subprocess.run(
        [*command, "--home", str(deployment.home)],
        capture_output=True,
        text=True,
        timeout=VERIFY_TIMEOUT_S,
        check=False,
    )
    try:
        return int(json.loads(done.stdout)["mismatches"])
    except (ValueError, KeyError, TypeError):
        return None


def _left_behind(deployment: Deployment) -> list[str]:
    """Processes that still work for the study, though its researcher has ended."""
    mine = {os.getpid(), *(server.pid for server in deployment.servers)}
    mine |= {child.pid for server in deployment.servers for child in descendants(server.pid)}
    commands = {process.pid: command_of(process) for process in psutil.process_iter() if process.pid not in mine}
    places = (str(deployment.folder), str(deployment.home))
    return [
        f"process {pid}: {' '.join(command)[:120]}"
        for pid, command in commands.items()
        if any(place in word for word in command for place in places)
    ]
