"""The checks of programs, jobs and logs on disk, and of the present environment.

Place in the flow: verify.py calls each of these once. A missing file is noted and is not a mismatch: folders are pruned
and moved, and the database has everything that the study rests on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

import swarm
from experiments_db import Artifact, DetailedEvaluation, Experiment, ExperimentStore, Run
from researcher.charter import Charter
from researcher.evaluation.scoring import evaluator_hash
from researcher.execution.environments import StudyEnvironments
from researcher.loop.pruning import checkpoint_of
from researcher.phases import PRUNED, TRAIN_DIGEST
from researcher.record.runs import job_of_run
from researcher.verification.result import RecordCheck, differences
from swarm.environments import Environment
from swarm.errors import SwarmError
from swarm.job import build_job

AUTOMATIC = (None, "auto")
"""The values of a job's settings that the server resolves."""


def check_programs(store: ExperimentStore, study_id: str) -> RecordCheck:
    """Check that the files beside each run and in the folder of its arm are the arm's program, byte for byte."""
    experiments = {item.id: item for item in store.list_experiments(study_id)}
    runs = {run.id: run for run in store.list_runs(study_id=study_id)}
    mismatches: list[str] = []
    files, missing = 0, 0
    for artifact in store.list_artifacts(study_id, kind="program"):
        files += 1
        # A file that belongs to no run lies in the folder of its arm.
        arm = runs[artifact.run_id].experiment_id if artifact.run_id else Path(artifact.path).parent.name
        code = experiments[arm].program_code
        if artifact.sha256 != sha256(code.encode()).hexdigest():
            mismatches.append(f"{artifact.run_id or experiments[arm].name} has another program than its arm")
        if (found := _read(artifact)) is None:
            missing += 1
        elif found != code.encode():
            mismatches.append(f"{artifact.path} is not the program that ran")
    return RecordCheck("programs", files, tuple(mismatches), _not_there(missing))


def check_jobs(store: ExperimentStore, study_id: str) -> RecordCheck:
    """Check that each run had the settings of its arm, and its own seed."""
    experiments = {item.id: item for item in store.list_experiments(study_id)}
    runs = store.list_runs(study_id=study_id)
    files = {artifact.run_id: artifact for artifact in store.list_artifacts(study_id, kind="job")}
    mismatches: list[str] = []
    missing = 0
    for run in runs:
        experiment = experiments[run.experiment_id]
        mismatches += _compare_job(run, experiment)
        if (artifact := files.get(run.id)) is None:
            continue
        if (found := _read(artifact)) is None:
            missing += 1
            continue
        given = job_of_run(run, experiment)
        mismatches += differences(_read_yaml(found), given, artifact.path)
    return RecordCheck("jobs", len(runs), tuple(mismatches), _not_there(missing))


def check_files(store: ExperimentStore, study_id: str) -> RecordCheck:
    """Check all other files with a stored hash, except those of the report, which report_check.py writes anew."""
    mismatches: list[str] = []
    files, missing = 0, 0
    for artifact in store.list_artifacts(study_id):
        if artifact.kind in ("program", "job") or artifact.kind.startswith("report."):
            continue
        files += 1
        if (found := _read(artifact)) is None:
            missing += 1
        elif sha256(found).hexdigest() != artifact.sha256:
            mismatches.append(f"{artifact.path} was changed since it was noted")
    return RecordCheck("files", files, tuple(mismatches), _not_there(missing))


def check_checkpoints(store: ExperimentStore, study_id: str) -> RecordCheck:
    """Return the finished runs whose weights the study removed after scoring.

    Weights that remain are not read: they may lie on another machine, and no number of the study depends on them.
    """
    runs = [run for run in store.list_runs(study_id=study_id) if checkpoint_of(run) is not None]
    pruned = [run.id for run in runs if str(checkpoint_of(run)) in run.external_ids.get(PRUNED, ())]
    notes = (f"those of {len(pruned)} runs were removed by the study: {', '.join(pruned)}",) if pruned else ()
    return RecordCheck("checkpoints", len(runs), notes=notes)


def check_environments(store: ExperimentStore, study_id: str, charter: Charter) -> Iterator[RecordCheck]:
    """Check data and grader, which share one hash, and how scores were measured on them."""
    evaluations = store.list_evaluations(study_id=study_id)
    with closing(StudyEnvironments()) as environments:
        try:
            environment = environments.open(charter.environment)
        except SwarmError as error:
            yield RecordCheck("environments", 0, notes=(f"{charter.environment} cannot be opened: {error.message}",))
            unlike = tuple(_unlike(evaluations, {run.id for run in store.list_runs(study_id=study_id) if run.rung}))
            yield RecordCheck("measurements", len(evaluations), unlike, ("tasks were not looked at",))
            return
        yield RecordCheck("environments", *_compare_digests(store, study_id, charter, environment, environments))
        yield _check_measurements(charter, environment, evaluations, store.list_runs(study_id=study_id))


def _compare_job(run: Run, experiment: Experiment) -> Iterator[str]:
    if run.job.get("seed") != run.seed:
        yield f"{run.id}: its job has seed {run.job.get('seed')}, the run {run.seed}"
    known = build_job(dict(experiment.job)).model_dump(mode="json")
    for name in experiment.job:
        if known[name] not in AUTOMATIC and name in run.job:
            yield from differences(run.job[name], known[name], f"{run.id}: {name}")


def _compare_digests(
    store: ExperimentStore, study_id: str, charter: Charter, judged: Environment, environments: StudyEnvironments
) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
    mismatches: list[str] = []
    notes: list[str] = []
    checked = 1
    if judged.digest != charter.environment_digest:
        mismatches.append(
            f"{judged.name} is {judged.digest[:12]} now and was {charter.environment_digest[:12]} in the charter"
        )
    for experiment in store.list_experiments(study_id):
        if experiment.train_environment is None:
            continue
        digests = {run.external_ids.get(TRAIN_DIGEST) for run in store.list_runs(experiment_id=experiment.id)} - {None}
        try:
            found = environments.open(experiment.train_environment).digest
        except SwarmError as error:
            notes.append(f"{experiment.train_environment} cannot be opened: {error.message}")
            continue
        checked += 1
        if digests - {found}:
            mismatches.append(f"{experiment.train_environment} was changed since {experiment.name} trained on it")
    return checked, tuple(mismatches), tuple(notes)


def _check_measurements(
    charter: Charter, environment: Environment, evaluations: list[DetailedEvaluation], runs: list[Run]
) -> RecordCheck:
    """Check that every score was measured on the charter's tasks, in the way that this version measures."""
    versions = {run.id: run.environment.get("swarm") for run in runs}
    exploring = {run.id for run in runs if run.rung}
    mismatches = list(_unlike(evaluations, exploring))
    others = 0
    hashes: dict[tuple[str, bool], str] = {}
    for item in evaluations:
        if versions[item.run_id] != swarm.__version__:
            others += 1
            continue
        way = item.split, item.run_id in exploring
        if way not in hashes:
            hashes[way] = evaluator_hash(charter, environment, item.split, explores=way[1])
        if item.evaluator_hash != hashes[way]:
            mismatches.append(f"{item.run_id}: its {item.phase} score was measured on other tasks, or in another way")
    notes = (f"{others} were measured by another version: their tasks were not looked at",) if others else ()
    return RecordCheck("measurements", len(evaluations), tuple(mismatches), notes)


def _unlike(evaluations: list[DetailedEvaluation], exploring: Collection[str]) -> Iterator[str]:
    first: dict[tuple[str, bool], str] = {}
    for item in evaluations:
        way = item.split, item.run_id in exploring
        if first.setdefault(way, item.evaluator_hash) != item.evaluator_hash:
            yield f"{item.run_id}: its {item.phase} score was measured in another way than the first on {item.split}"


def _read(artifact: Artifact) -> bytes | None:
    try:
        return Path(artifact.path).read_bytes()
    except OSError:
        return None


def _read_yaml(content: bytes) -> Any:
    try:
        return yaml.safe_load(content)
    except (yaml.YAMLError, UnicodeDecodeError):
        return None


def _not_there(missing: int) -> tuple[str, ...]:
    return (f"{missing} files are not there any more",) if missing else ()
