"""`researcher verify` finds nothing in studies as they were stored, and each of many changes made to one."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from simulated_study import SimulatedStudy, Simulation
from typer.testing import CliRunner

from experiments_db import ExperimentStore, RunStatus, StudyStatus, open_store
from researcher.cli import app
from researcher.errors import StudyNotFound
from researcher.study.ending import reopen
from researcher.verification.result import Verification
from researcher.verification.verify import verify_study

SIMULATIONS = [
    Simulation(chance=number, seeds=2 + number % 3, rounds=1 + number % 2, failed=(("lr=0.0003", 0),) * (number % 2))
    for number in range(20)
]
QUICK = 2
OF_SERVERS = {"checkpoints", "ledgers", "rewards in ledgers", "costs of scores"}
"""What is compared with the files of servers, of which a simulated study has none."""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedStudy]:
    study = Simulation(seeds=2, rounds=2).carry_out(tmp_path_factory.mktemp("verified"))
    # From here on each look at the study opens the database anew.
    study.store.close()
    yield study


def _verify(study: SimulatedStudy) -> Verification:
    with open_store(study.database, read_only=True) as store:
        return verify_study(store, study.study_id, study.home)


@contextmanager
def _kept(study: SimulatedStudy) -> Iterator[None]:
    """Whatever a test changes of the study, in its database or its folder, is put back."""
    kept = study.home.with_name(f"{study.home.name}-kept")
    shutil.copytree(study.home, kept)
    try:
        yield
    finally:
        shutil.rmtree(study.home)
        shutil.move(kept, study.home)


@pytest.mark.parametrize(
    "simulation",
    [
        *SIMULATIONS[:QUICK],
        *(pytest.param(each, marks=pytest.mark.slow) for each in SIMULATIONS[QUICK:]),
    ],
    ids=range(20),
)
def test_nothing_is_found_in_a_study_as_it_was_stored(simulation: Simulation, tmp_path: Path) -> None:
    study = simulation.carry_out(tmp_path)
    study.store.close()

    result = _verify(study)

    assert result.mismatches == 0
    assert {check.kind for check in result.checks if check.notes} == OF_SERVERS
    assert {"scores", "analyses", "findings", "hypotheses", "report"} <= {check.kind for check in result.checks}
    assert {check.kind for check in result.checks if not check.checked} == OF_SERVERS


@dataclass(frozen=True)
class Change:
    """`kind` is the check that finds it by recomputing, None where the digest alone can."""

    kind: str | None
    make: Callable[[SimulatedStudy], object]


def _sql(statement: str, *values: object) -> Callable[[SimulatedStudy], object]:
    def make(study: SimulatedStudy) -> None:
        with closing(sqlite3.connect(study.database)) as database, database:
            assert database.execute(statement, values).rowcount > 0

    return make


def _document(table: str, change: Callable[[dict], object], where: str = "1", column: str = "document") -> Callable:
    """A change of the first JSON document of a table."""

    def make(study: SimulatedStudy) -> None:
        with closing(sqlite3.connect(study.database)) as database, database:
            rowid = "rowid" if table != "metric_points" else "run_id"
            row, text = database.execute(f"SELECT {rowid}, {column} FROM {table} WHERE {where}").fetchone()
            document = json.loads(text)
            change(document)
            database.execute(f"UPDATE {table} SET {column} = ? WHERE {rowid} = ?", (json.dumps(document), row))

    return make


def _file(pattern: str, old: str, new: str) -> Callable[[SimulatedStudy], object]:
    def make(study: SimulatedStudy) -> None:
        path = sorted(study.folder.glob(pattern))[0]
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return make


def _flip(details: dict) -> None:
    details["rewards"][0] = 1.0 - details["rewards"][0]


def _deny(details: dict) -> None:
    details["solved"][0] = not details["solved"][0]


FINAL = "phase = 'final'"
CHANGES = {
    "a reward": Change("scores", _document("evaluations", _flip, FINAL, "details")),
    "whether an episode solved its task": Change("scores", _document("evaluations", _deny, FINAL, "details")),
    "a score": Change("scores", _sql("UPDATE evaluations SET mean = mean + 0.01 WHERE id = 2")),
    "the rewards of a score": Change("scores", _document("evaluations", lambda it: it.clear(), FINAL, "details")),
    "the error of a score": Change("scores", _sql("UPDATE evaluations SET stderr = 0.001 WHERE id = 2")),
    "how a score was measured": Change(
        "measurements", _sql("UPDATE evaluations SET evaluator_hash = 'e' WHERE id = 4")
    ),
    "a seed": Change("jobs", _sql("UPDATE runs SET seed = 99 WHERE rowid = 3")),
    "a run's learning rate": Change("jobs", _document("runs", lambda it: it.update(lr=0.5), "1", "job")),
    "a run that failed": Change(None, _sql("UPDATE runs SET exit_reason = 'fine' WHERE status = 'failed'")),
    "a run left out": Change("analyses", _sql("UPDATE runs SET status = 'failed' WHERE rowid = 2")),
    "a program in the database": Change(
        "programs", _sql("UPDATE experiments SET program_code = 'x = 1' WHERE is_baseline")
    ),
    "a program on disk": Change("programs", _file("runs/*/program.py", "import", "import  ")),
    "a job on disk": Change("jobs", _file("runs/*/job.yaml", "lr:", "lr: 1\nold:")),
    "a log": Change("files", _file("runs/*/train.log", "step", "stop")),
    "a charter's minimum effect": Change(
        "charter", _document("charters", lambda it: it["rule"].update(min_effect=0.3))
    ),
    "the environment": Change("charter", _document("charters", lambda it: it.update(environment_digest="0"))),
    "a plan": Change("planned arms", _document("plans", lambda it: it["arms"][1]["job"].update(lr=0.004))),
    "an analysis": Change("analyses", _document("analyses", lambda it: it["comparisons"][0].update(p=0.04))),
    "a finding's effect": Change("findings", _sql("UPDATE findings SET effect = effect + 0.05 WHERE rowid = 1")),
    "a method": Change("findings", _sql("UPDATE findings SET method = 'by eye' WHERE rowid = 1")),
    "a prediction": Change("other findings", _sql("UPDATE findings SET summary = 'so' WHERE kind = 'prediction'")),
    "a recipe": Change("findings", _document("findings", lambda it: it.update(model="micro"), column="recipe")),
    "a verdict": Change("findings", _sql("UPDATE findings SET verdict = 'keep' WHERE effect < 0")),
    "a hypothesis' verdict": Change("hypotheses", _sql("UPDATE hypotheses SET verdict = 'refuted'")),
    "a finding gone": Change("findings", _sql("DELETE FROM findings WHERE rowid = 2")),
    "a point of a curve": Change("report", _sql("UPDATE metric_points SET value = 0.9 WHERE name LIKE 'batch/%'")),
    "a decision's reason": Change("report", _sql("UPDATE decisions SET reason = 'Nothing was found.'")),
    "a charge": Change("runs", _sql("DELETE FROM budget_entries WHERE kind = 'runs' AND rowid IN"
                                    " (SELECT min(rowid) FROM budget_entries WHERE kind = 'runs')")),
    "an event": Change(None, _sql("UPDATE events SET message = 'changed' WHERE kind = 'plan.made'")),
    "the test split": Change("test split", _sql("UPDATE charters SET test_opened_for = 'score lr=0.003'")),
    "a number of the report": Change("report", _file("report/report.md", "| 1 |", "| 2 |")),
    "a number of the page": Change("report", _file("report/report.html", ">1</td>", ">2</td>")),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_change_is_found_and_by_the_digest_too_if_it_is_one_of_the_database(study: SimulatedStudy, name: str) -> None:
    is_on_disk = "on disk" in name or "of the" in name or name == "a log"
    with _kept(study):
        CHANGES[name].make(study)
        found = {check.kind for check in _verify(study).checks if check.mismatches}
        with open_store(study.database, read_only=True) as store:
            ended = store.find_digest(study.study_id)
            assert ended is not None
            is_changed = bool(ended.compare(store.compute_digest(study.study_id)))

    assert found and CHANGES[name].kind in (None, *found)
    assert is_changed is not is_on_disk


def test_lost_digest_of_a_study_that_has_ended_is_a_mismatch(study: SimulatedStudy) -> None:
    with _kept(study):
        _sql("UPDATE studies SET digest = NULL")(study)
        found = {check.kind for check in _verify(study).checks if check.mismatches}

    assert {"rows", "report"} <= found


def test_digest_that_was_made_to_fit_changed_rows_is_not_that_of_the_report(study: SimulatedStudy) -> None:
    with _kept(study):
        CHANGES["an event"].make(study)
        with open_store(study.database) as store:
            store.set_study_status(study.study_id, StudyStatus.FINISHED, store.get_study(study.study_id).status_reason)
        found = {check.kind for check in _verify(study).checks if check.mismatches}

    assert found == {"report", "all files"}


def test_rows_that_were_changed_before_a_study_went_on_stay_a_mismatch(study: SimulatedStudy) -> None:
    with _kept(study):
        CHANGES["an event"].make(study)
        with open_store(study.database) as store:
            reopen(store, study.study_id, study.folder)
        while_it_runs = {check.kind: check for check in _verify(study).checks}
        with open_store(study.database) as store:
            store.set_study_status(study.study_id, StudyStatus.FINISHED)
        after_its_end = {check.kind: check for check in _verify(study).checks}

    assert while_it_runs["rows"].checked == 0
    for checks in (while_it_runs, after_its_end):
        assert [line.partition(":")[0] for line in checks["rows at an earlier end"].mismatches] == ["events"]
    assert not any(check.mismatches for kind, check in after_its_end.items() if kind.startswith("rows of"))


def _older_database(study: SimulatedStudy) -> None:
    (study.folder / "runs" / "run-later").mkdir()


def _older_files(study: SimulatedStudy) -> None:
    with open_store(study.database) as store:
        run = next(run for run in store.list_runs(study_id=study.study_id) if run.status is RunStatus.FINISHED)
    shutil.rmtree(study.folder / "runs" / run.id)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda _: None, None),
        (_older_database, "runs/run-later is of no run on record: the database is older"),
        (_older_files, "the files are older than the database"),
        (CHANGES["a log"].make, "train.log is not as it was when the study ended"),
    ],
)
def test_a_study_that_goes_on_names_files_that_do_not_fit_its_rows(
    study: SimulatedStudy, change: Callable[[SimulatedStudy], object], says: str | None
) -> None:
    with _kept(study):
        change(study)
        with open_store(study.database) as store:
            reopen(store, study.study_id, study.folder)
        checks = {check.kind: check for check in _verify(study).checks}

    found = checks.get("files at an earlier end")
    if says is None:
        assert found is None
    else:
        assert found is not None and any(says in line for line in found.mismatches), found


def test_command_prints_a_line_per_kind_and_names_what_is_wrong(study: SimulatedStudy) -> None:
    home = ["--home", str(study.home)]
    good = CliRunner().invoke(app, ["verify", study.study_id, *home])
    with _kept(study):
        CHANGES["a reward"].make(study)
        CHANGES["a program on disk"].make(study)
        bad = CliRunner().invoke(app, ["verify", *home])
        as_json = CliRunner().invoke(app, ["verify", study.study_id, "--json", *home])

    assert good.exit_code == 0, good.output
    lines = good.stdout.splitlines()
    assert any(line.split() == ["scores", "32", "0", "0"] for line in lines), good.stdout
    assert "no mismatch" in lines[-1]
    digest = json.loads(as_json.stdout)["digest"]
    assert lines[-2].split()[-1] == digest and digest in (study.folder / "report" / "report.md").read_text()
    assert bad.exit_code == as_json.exit_code == 8
    assert "final score: mean: stored" in bad.stdout and "is not the program that ran" in bad.stdout
    document = json.loads(as_json.stdout)
    assert document["mismatches"] == sum(len(check["mismatches"]) for check in document["checks"]) > 2


def test_study_without_a_charter_cannot_be_verified(tmp_path: Path) -> None:
    with open_store(tmp_path / "research.db") as store:
        study = store.create_study("t", planner="rules")
        with pytest.raises(StudyNotFound, match="no charter"):
            verify_study(store, study.id, tmp_path)


def test_verification_changes_nothing(study: SimulatedStudy) -> None:
    def everything(store: ExperimentStore) -> object:
        return store.list_findings(), store.list_analyses(study.study_id), store.list_hypotheses(study.study_id)

    with open_store(study.database) as store:
        before = everything(store)
        assert verify_study(store, study.study_id, study.home).mismatches == 0
        assert everything(store) == before
