"""The checks of a study's rows, and of its programs and jobs on disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

import swarm
from experiments_db import (
    Artifact,
    BudgetKind,
    DetailedEvaluation,
    Experiment,
    ExperimentStore,
    Run,
    RunStatus,
    StudySeal,
    hash_json,
)
from researcher.errors import StudyNotFound
from researcher.evaluation.scoring import evaluator_hash
from researcher.execution.environments import StudyEnvironments
from researcher.phases import FINAL, PLAIN_AGENT, TEST, TRAIN_DIGEST
from researcher.player import agent_for_all, plays_its_own
from researcher.record.log import charter_from_json, plan_from_json
from researcher.record.runs import cost_of, job_of_run, list_all_trials
from researcher.record.seal import Progress
from researcher.study.ending import FILES_CHANGED, ROWS_CHANGED
from researcher.verification.files import StudyFiles
from researcher.verification.result import TOLERANCE, RecordCheck, differences
from swarm.environments import Environment
from swarm.errors import SwarmError
from swarm.job import build_job

AUTOMATIC = (None, "auto")
"""The values of a job's settings that the server resolves."""


class StudyRecord:
    """The rows of one study that several checks read, each table read once.

    Raises StudyNotFound for a study without a charter, RecordNotFound for no study.
    """

    def __init__(
        self, store: ExperimentStore, study_id: str, home: Path, on_progress: Progress = lambda line: None
    ) -> None:
        self.store, self.id = store, study_id
        self.files = StudyFiles(home, study_id, on_progress)
        self.study = store.get_study(study_id)
        stored = store.find_charter(study_id)
        if stored is None:
            raise StudyNotFound(f"study {study_id} has no charter yet, so there is nothing to verify")
        self.stored_charter = stored
        self.charter = charter_from_json(stored.document)

    @cached_property
    def experiments(self) -> dict[str, Experiment]:
        return {item.id: item for item in self.store.list_experiments(self.id)}

    @cached_property
    def runs(self) -> dict[str, Run]:
        return {run.id: run for run in self.store.list_runs(study_id=self.id)}

    @cached_property
    def evaluations(self) -> list[DetailedEvaluation]:
        return self.store.list_evaluations(study_id=self.id)

    @cached_property
    def seal(self) -> StudySeal | None:
        return self.store.find_seal(self.id)

    def arm_of(self, run_id: str) -> Experiment:
        return self.experiments[self.runs[run_id].experiment_id]

    def read_files(self, check: RecordCheck, artifacts: Sequence[Artifact]) -> Iterator[tuple[Artifact, bytes]]:
        """Yield the files below the home; one that is gone is a mismatch, and one that lies elsewhere is not kept."""
        for artifact in artifacts:
            place = self.files.place(artifact.path)
            if place is None:
                check.leave_out(f"{artifact.path} lies outside of the study's folder")
            elif (problem := self.files.find_problem(place)) is not None:
                check.mismatches.append(problem)
            else:
                yield artifact, place.read_bytes()


def check_rows(record: StudyRecord) -> Iterator[RecordCheck]:
    """Compare the rows of each table with those at the end of the study, even if it has continued since."""
    for what, kind in (("rows", ROWS_CHANGED), ("files", FILES_CHANGED)):
        if earlier := record.store.list_events(record.id, kind=kind, limit=None):
            yield RecordCheck(f"{what} at an earlier end", len(earlier), [event.message for event in earlier])
    ended = record.store.find_digest(record.id)
    if ended is None:
        status = record.study.status
        lost = [f"the study is {status}, and the digest of its rows is gone"] if status.is_end else []
        yield RecordCheck("rows", len(lost), lost, [] if lost else ["they are compared once the study has ended"])
        return
    now = record.store.compute_digest(record.id)
    changed = ended.compare(now)
    for name, table in now.tables.items():
        if table.rows or name in changed:
            yield RecordCheck(
                f"rows of {name}", table.rows, [f"rows of {name}: {changed[name]}"] if name in changed else []
            )
    if (sealed := record.seal) is not None:
        last = record.store.compute_later_digest(record.id, events=sealed.rows.tables["events"].rows)
        later = sealed.rows.compare(last)
        rows = sum(table.rows for table in last.tables.values())
        yield RecordCheck(
            "rows at the end", rows, [f"rows of {name} at the end: {what}" for name, what in later.items()]
        )


def check_charter(record: StudyRecord) -> Iterator[RecordCheck]:
    found, frozen = hash_json(record.stored_charter.document), record.stored_charter.content_hash
    wrong = [f"the charter hashes to {found[:12]}, it was frozen as {frozen[:12]}"]
    yield RecordCheck("charter", 1, [] if found == frozen else wrong)


def check_plans(record: StudyRecord) -> Iterator[RecordCheck]:
    """Check that each arm is the one in the first plan that named it."""
    experiments = {item.name: item for item in record.experiments.values()}
    check = RecordCheck("planned arms", 0)
    planned: set[str] = set()
    for stored in record.store.list_plans(record.id):
        for arm in plan_from_json(stored.document).arms:
            found = experiments.get(arm.name)
            if found is None:
                check.mismatches.append(f"arm {arm.name} of plan {stored.iteration + 1} is not on record")
            elif arm.name not in planned:
                check.mismatches += differences(dict(found.job), dict(arm.job), f"arm {arm.name}: job")
                check.mismatches += differences(dict(found.factors), dict(arm.factors), f"arm {arm.name}: factors")
            planned.add(arm.name)
    check.mismatches += [f"arm {name} is in no plan" for name in experiments if name not in planned]
    check.checked = len(planned)
    yield check


def check_runs(record: StudyRecord) -> Iterator[RecordCheck]:
    """Check that finished runs have their scores and that each launched trial was charged once."""
    scored = {item.run_id for item in record.evaluations if item.phase == FINAL}
    check = RecordCheck("runs", len(record.runs))
    check.mismatches += [
        f"{run.id} is finished and has no score on the {record.charter.search_split} split"
        for run in record.runs.values()
        if run.status is RunStatus.FINISHED and run.id not in scored
    ]
    trials = list_all_trials(record.store, record.id)
    begun = [each for each in trials if any(run.status is not RunStatus.PLANNED or run.server_url for run in each.runs)]
    # A trial is charged once it is claimed, just before its launch is on record.
    least, most = (sum(cost_of(each.runs[-1], each.experiment) for each in items) for items in (begun, trials))
    charged = record.store.sum_budget(record.id)[BudgetKind.RUNS]
    if not least - TOLERANCE <= charged <= most + TOLERANCE:
        check.mismatches.append(f"{charged:g} runs are charged to the budget, {least:g} were launched")
    yield check


def check_programs(record: StudyRecord) -> Iterator[RecordCheck]:
    """Check that the files beside each run and in the folder of its arm are the arm's program, byte for byte."""
    artifacts = record.store.list_artifacts(record.id, kind="program")
    check = RecordCheck("programs", len(artifacts))
    # A file that belongs to no run lies in the folder of its arm.
    arms = {
        item.id: record.arm_of(item.run_id) if item.run_id else record.experiments[Path(item.path).parent.name]
        for item in artifacts
    }
    for item in artifacts:
        if item.sha256 != sha256(arms[item.id].program_code.encode()).hexdigest():
            check.mismatches.append(f"{item.run_id or arms[item.id].name} has another program than its arm")
    for item, found in record.read_files(check, artifacts):
        if found != arms[item.id].program_code.encode():
            check.mismatches.append(f"{record.files.name_of(item)} is not the program that ran")
    yield check


def check_jobs(record: StudyRecord) -> Iterator[RecordCheck]:
    """Check that each run had the settings of its arm, and its own seed."""
    check = RecordCheck("jobs", len(record.runs))
    for run in record.runs.values():
        check.mismatches += _compare_job(run, record.arm_of(run.id))
    for item, found in record.read_files(check, record.store.list_artifacts(record.id, kind="job")):
        if item.run_id:
            given = job_of_run(record.runs[item.run_id], record.arm_of(item.run_id))
            check.mismatches += differences(_read_yaml(found), given, record.files.name_of(item))
    yield check


def check_environments(record: StudyRecord) -> Iterator[RecordCheck]:
    """Check data and grader, which share one hash, and how scores were measured on them."""
    charter = record.charter
    with closing(StudyEnvironments()) as environments:
        try:
            environment = environments.open(charter.environment)
        except SwarmError as error:
            yield RecordCheck("environments", 0, notes=[f"{charter.environment} cannot be opened: {error.message}"])
            check = RecordCheck("measurements", len(record.evaluations), list(_unlike(record)))
            check.notes.append("tasks were not looked at")
            yield check
            return
        yield _compare_digests(record, environment, environments)
        yield _check_measurements(record, environment)


def check_test_split(record: StudyRecord) -> Iterator[RecordCheck]:
    """Check that the test split was scored only after it was opened, and only for the arms it was opened for."""
    charter, split = record.stored_charter, record.charter.test_split
    scores = [item for item in record.evaluations if item.split == split]
    check = RecordCheck("test split", len(scores))
    for item in scores:
        name = record.arm_of(item.run_id).name
        is_before = charter.test_opened_at is None or item.created_at < charter.test_opened_at
        if is_before or item.phase not in (TEST, PLAIN_AGENT[TEST]):
            check.mismatches.append(f"{item.run_id} was scored on the {split} split before it was opened")
        elif name not in (charter.test_opened_for or ""):
            check.mismatches.append(f"{item.run_id} of {name} was scored, opened was it to {charter.test_opened_for}")
    yield check


def _compare_job(run: Run, experiment: Experiment) -> Iterator[str]:
    if run.job.get("seed") != run.seed:
        yield f"{run.id}: its job has seed {run.job.get('seed')}, the run {run.seed}"
    known = build_job(dict(experiment.job)).model_dump(mode="json")
    for name in experiment.job:
        if known[name] not in AUTOMATIC and name in run.job:
            yield from differences(run.job[name], known[name], f"{run.id}: {name}")


def _compare_digests(record: StudyRecord, judged: Environment, environments: StudyEnvironments) -> RecordCheck:
    check, frozen = RecordCheck("environments", 1), record.charter.environment_digest
    if judged.digest != frozen:
        check.mismatches.append(f"{judged.name} is {judged.digest[:12]} now and was {frozen[:12]} in the charter")
    for experiment in record.experiments.values():
        if experiment.train_environment is None:
            continue
        runs = [run for run in record.runs.values() if run.experiment_id == experiment.id]
        digests = {run.external_ids.get(TRAIN_DIGEST) for run in runs} - {None}
        try:
            found = environments.open(experiment.train_environment).digest
        except SwarmError as error:
            check.notes.append(f"{experiment.train_environment} cannot be opened: {error.message}")
            continue
        check.checked += 1
        if digests - {found}:
            check.mismatches.append(f"{experiment.train_environment} was changed since {experiment.name} trained on it")
    return check


def _check_measurements(record: StudyRecord, environment: Environment) -> RecordCheck:
    """Check that every score was measured on the charter's tasks, in the way that this version measures."""
    check = RecordCheck("measurements", len(record.evaluations), list(_unlike(record)))
    others = 0
    shared = agent_for_all(record.experiments.values())
    hashes: dict[Way, str] = {}
    for item in record.evaluations:
        if record.runs[item.run_id].environment.get("swarm") != swarm.__version__:
            others += 1
            continue
        way = _way_of(record, item)
        if way not in hashes:
            split, explores, is_shared = way
            player = shared if is_shared else None
            hashes[way] = evaluator_hash(record.charter, environment, split, explores=explores, shared=player)
        if item.evaluator_hash != hashes[way]:
            text = f"{item.run_id}: its {item.phase} score was measured on other tasks, or in another way"
            check.mismatches.append(text)
    if others:
        check.notes.append(f"{others} were measured by another version: their tasks were not looked at")
    return check


Way = tuple[str, bool, bool]
"""The way of measuring a score: the split, whether the run explores, and whether one agent plays for all arms."""


def _way_of(record: StudyRecord, item: DetailedEvaluation) -> Way:
    return item.split, bool(record.runs[item.run_id].rung), not plays_its_own(record.charter, item.phase)


def _unlike(record: StudyRecord) -> Iterator[str]:
    first: dict[Way, str] = {}
    for item in record.evaluations:
        if first.setdefault(_way_of(record, item), item.evaluator_hash) != item.evaluator_hash:
            yield f"{item.run_id}: its {item.phase} score was measured in another way than the first on {item.split}"


def _read_yaml(content: bytes) -> Any:
    try:
        return yaml.safe_load(content)
    except (yaml.YAMLError, UnicodeDecodeError):
        return None
