"""Alterations of rows, files, copies and checkpoints: `verify` names each, or says that it is out of scope."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from experiments_db import RecordedTraining, StudyStatus, TrainingNews, TrainingPoint, open_store
from researcher.cli import app
from researcher.evaluation.authorship import Authorship
from researcher.loop.session import work_on
from researcher.record.log import StudyLog
from researcher.record.seal import seal
from researcher.study.requests import create_study
from researcher.study.settings import StudySettings
from researcher.verification import ssh_signature
from researcher.verification.ledgers import check_ledgers
from researcher.verification.record import StudyRecord
from researcher.verification.signature import check_signature, sign_record
from researcher.verification.ssh_signature import read_private, read_public
from swarm.ledger.compaction import compact

Alter = Callable[["Copy"], object]


@dataclass(frozen=True)
class Copy:
    """A copy of the home of a played study. The original stays where its rows say that it is."""

    home: Path
    study_id: str

    @property
    def folder(self) -> Path:
        return self.home / "studies" / self.study_id

    def find(self, pattern: str) -> Path:
        return sorted(self.folder.glob(pattern))[0]

    def execute(self, statement: str, *values: object) -> None:
        with closing(sqlite3.connect(self.home / "research.db")) as database, database:
            assert database.execute(statement, values).rowcount > 0

    def verify(self, *options: str) -> tuple[int, list[str]]:
        done = CliRunner().invoke(app, ["verify", "--home", str(self.home), *options])
        return done.exit_code, done.output.splitlines()

    def look(self) -> tuple[int, list[str]]:
        """The exit code of `verify`, and what it says of differences and of what it does not compare."""
        code, lines = self.verify()
        return code, [line for line in lines if line.lstrip().startswith(("MISMATCH", "note:", "not compared:"))]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    """A study of two arms on own servers with the engine without a model; a server recorded one of its runs as well."""
    home = tmp_path_factory.mktemp("original")
    with open_store(home / "research.db") as store:
        settings = StudySettings(engine="fake", steps=2, seeds=1, eval_episodes=6, max_runs=2)
        study = create_study(store, "batch size 2 or 3 for tool use", settings)
        work_on(store, study.id, home)
        run = store.list_runs(study_id=study.id)[0]
        given = {"project": "p", "experiment": "e", "model": "nano", "engine": "fake", "changes": {}, "home": "h"}
        training = store.record_training(
            RecordedTraining(
                key="k", launch_key=run.idempotency_key, settings=run.job, status="COMPLETE", reason=None, step=1,
                begun_at=1.0, **given,
            )
        )  # fmt: skip
        points = [point for point in store.list_metrics([run.id]) if point.step == 1]
        news = TrainingNews(points=tuple(TrainingPoint(training.id, p.name, p.step, p.value, 1.0) for p in points))
        store.add_to_training(training.id, news)
    yield Copy(home, study.id)


@pytest.fixture
def copy(played: Copy, tmp_path: Path) -> Copy:
    return Copy(Path(shutil.copytree(played.home, tmp_path / "copy")), played.study_id)


def sql(statement: str, *values: object) -> Alter:
    return lambda copy: copy.execute(statement, *values)


def appended(pattern: str, text: str = "#\n") -> Alter:
    def alter(copy: Copy) -> None:
        with copy.find(pattern).open("a") as file:
            file.write(text)

    return alter


def truncated(pattern: str) -> Alter:
    return lambda copy: copy.find(pattern).write_bytes(copy.find(pattern).read_bytes()[:-20])


def flipped(pattern: str) -> Alter:
    """One bit in the middle is another."""

    def alter(copy: Copy) -> None:
        content = bytearray(copy.find(pattern).read_bytes())
        content[len(content) // 2] ^= 1
        copy.find(pattern).write_bytes(content)

    return alter


def removed(pattern: str) -> Alter:
    def alter(copy: Copy) -> None:
        found = copy.find(pattern)
        shutil.rmtree(found) if found.is_dir() else found.unlink()

    return alter


def added(name: str) -> Alter:
    def alter(copy: Copy) -> None:
        (copy.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (copy.folder / name).write_text("new")

    return alter


def swapped(name: str) -> Alter:
    """Two runs have each other's file."""

    def alter(copy: Copy) -> None:
        one, other = sorted(copy.folder.glob(f"runs/*/{name}"))
        first, second = one.read_bytes(), other.read_bytes()
        assert first != second
        one.write_bytes(second)
        other.write_bytes(first)

    return alter


def linked(pattern: str) -> Alter:
    """The file lies elsewhere, and a link leads there."""

    def alter(copy: Copy) -> None:
        found = copy.find(pattern)
        found.rename(copy.home.parent / "elsewhere")
        found.symlink_to(copy.home.parent / "elsewhere")

    return alter


def in_ledger(statement: str) -> Alter:
    def alter(copy: Copy) -> None:
        with closing(sqlite3.connect(copy.find("servers/*/ledger.db"))) as ledger, ledger:
            assert ledger.execute(statement).rowcount > 0

    return alter


def all_of(*alterations: Alter) -> Alter:
    return lambda copy: [alter(copy) for alter in alterations]


def score_changed(copy: Copy) -> None:
    """A reward, its score, and all that is computed from it in the row."""
    with closing(sqlite3.connect(copy.home / "research.db")) as database, database:
        row, text = database.execute("SELECT id, details FROM evaluations WHERE phase = 'final'").fetchone()
        details: dict[str, Any] = json.loads(text)
        details["rewards"][0], details["solved"][0] = 1.0, True
        number = len(details["rewards"])
        database.execute(
            "UPDATE evaluations SET details = ?, mean = ?, successes = successes + 1 WHERE id = ?",
            (json.dumps(details), sum(details["rewards"]) / number, row),
        )


def cost_changed(copy: Copy) -> None:
    copy.execute("UPDATE runs SET training_cost = json_set(training_cost, '$.calls', 0.5)")
    forged(copy)


def forged(copy: Copy) -> None:
    """The digests, the report and the seal are made anew, by whoever can write to the database."""
    from researcher.loop.nodes.report import write_report

    with open_store(copy.home / "research.db") as store:
        reason = store.get_study(copy.study_id).status_reason
        copy.execute("DELETE FROM artifacts WHERE kind LIKE 'report.%'")
        store.set_study_status(copy.study_id, StudyStatus.FINISHED, reason)
        write_report(StudyLog(store, copy.study_id), copy.folder)
        seal(store, copy.study_id, copy.folder)


def run_deleted(copy: Copy) -> None:
    with closing(sqlite3.connect(copy.home / "research.db")) as database, database:
        [run] = database.execute("SELECT id FROM runs LIMIT 1").fetchone()
        for table in (
            "metric_points",
            "evaluations",
            "episode_samples",
            "artifacts",
            "budget_entries",
            "events",
        ):
            database.execute(f"DELETE FROM {table} WHERE run_id = ?", (run,))
        database.execute("DELETE FROM runs WHERE id = ?", (run,))
    shutil.rmtree(copy.folder / "runs" / run)


def run_added(copy: Copy) -> None:
    with closing(sqlite3.connect(copy.home / "research.db")) as database, database:
        database.row_factory = sqlite3.Row
        run = dict(database.execute("SELECT * FROM runs").fetchone())
        run |= {"id": "run-new", "seed": 99, "idempotency_key": "new"}
        places = ", ".join(f":{name}" for name in run)
        database.execute(f"INSERT INTO runs ({', '.join(run)}) VALUES ({places})", run)


REWARD = "UPDATE episodes SET reward = 1 WHERE episode_type = 'eval'"
UNCONTROLLED = removed("servers/*/ledger.db.control")
EVENT = sql("UPDATE events SET message = 'x' WHERE id = 5")
WEIGHTS = "servers/*/research/*/*/checkpoints/step-*/fake_trainer.json"

ALTERATIONS: dict[str, tuple[Alter, str]] = {
    # Rows, and the table that is named.
    "score": (sql("UPDATE evaluations SET mean = 0.9 WHERE phase = 'final'"), "final score: mean"),
    "reward": (score_changed, "reward of"),
    "run's job": (sql("UPDATE runs SET job = json_set(job, '$.lr', 0.5)"), "lr: stored 0.5"),
    "run's time": (sql("UPDATE runs SET created_at = created_at - 3600"), "rows of runs"),
    "program of an arm": (sql("UPDATE experiments SET program_code = 'x = 1'"), "another program than its arm"),
    "arm": (sql("UPDATE experiments SET job = json_set(job, '$.lr', 0.5)"), "rows of experiments"),
    "finding": (sql("UPDATE findings SET effect = 0.5"), "effect: stored 0.5"),
    "event": (sql("UPDATE events SET message = 'Nothing.' WHERE id = 5"), "rows of events"),
    "last event": (sql("UPDATE events SET message = 'x' WHERE kind = 'study.finished'"), "rows of events at the end"),
    "note": (sql("UPDATE notebook SET text = 'x'"), "rows of notebook"),
    "stored conversation": (sql("UPDATE episode_samples SET messages = '[]'"), "rows of episode_samples"),
    "charge of a run": (sql("DELETE FROM budget_entries WHERE kind = 'runs'"), "charged to the budget"),
    "charge of time": (sql("UPDATE budget_entries SET amount = 1 WHERE kind = 'wall_clock_s'"), "entries at the end"),
    "charter": (sql("UPDATE charters SET document = json_set(document, '$.topic', 'x')"), "the charter hashes to"),
    "plan": (sql("DELETE FROM plans"), "is in no plan"),
    "point of a curve": (sql("UPDATE metric_points SET value = 0.9 WHERE step = 1"), "rows of metric_points"),
    "cost": (cost_changed, "cost of training.calls"),
    "end of the study": (sql("UPDATE studies SET finished_at = 1"), "rows of studies at the end"),
    "removed checkpoint": (sql("UPDATE runs SET external_ids = '{}'"), "runs at the end"),
    "path of a file": (sql("UPDATE artifacts SET path = '/etc/hosts' WHERE rowid = 1"), "rows of artifacts"),
    "digest": (sql("UPDATE studies SET digest = NULL"), "the digest of its rows is gone"),
    "seal": (sql("UPDATE studies SET seal = NULL"), "the digests of its files are gone"),
    "run that is gone": (run_deleted, "rows of runs"),
    "run that is new": (run_added, "rows of runs"),
    "settings of a recorded training": (
        sql("UPDATE trainings SET settings = json_set(settings, '$.lr', 0.5)"), "settings.lr",
    ),
    "curve of a recorded training": (sql("UPDATE training_points SET value = 0.7"), "recorded training"),
    # Files, and the name that is given.
    "program": (appended("runs/*/program.py"), "program.py is not the program that ran"),
    "program of the folder of an arm": (truncated("arms/*/program.py"), "program.py is not the program that ran"),
    "job": (appended("runs/*/job.yaml", "lr: 0.5\n"), "job.yaml.lr: stored"),
    "log": (appended("runs/*/train.log"), "train.log has"),
    "logs of two runs": (swapped("train.log"), "train.log"),
    "jobs of two runs": (swapped("job.yaml"), "job.yaml"),
    "working file": (flipped("runs/*/work/program.py"), "work/program.py has other content"),
    "program that is gone": (removed("runs/*/program.py"), "program.py is not there any more"),
    "run's folder that is gone": (removed("runs/*"), "train.log is not there any more"),
    "file that is new": (added("runs/run-new/program.py"), "runs/run-new/program.py was added"),
    "file elsewhere": (linked("runs/*/train.log"), "outside of"),
    "report": (appended("report/report.md", "All is well.\n"), "report.md, line"),
    "page": (truncated("report/report.html"), "report.html, line"),
    "figure": (flipped("report/figures/final-scores.png"), "final-scores.png was changed"),
    "data of a figure": (flipped("report/figures/final-scores.csv"), "final-scores.csv, line"),
    "report that is gone": (removed("report/report.html"), "report.html is not there any more"),
    "figure that is new": (added("report/figures/better.png"), "better.png was added"),
    "weights": (flipped(WEIGHTS), "fake_trainer.json has other content"),
    "weights that are gone": (removed(WEIGHTS), "fake_trainer.json is not there any more"),
    "checkpoint that is gone": (removed(str(Path(WEIGHTS).parent)), "manifest.json is not there any more"),
    "manifest": (appended(str(Path(WEIGHTS).with_name("manifest.json")), " "), "is not the manifest that was written"),
    "state of the loop": (flipped("graph.db"), "graph.db has other content"),
    "ledger": (truncated("servers/*/ledger.db"), "ledger.db is damaged"),
    "ledger that is gone": (removed("servers/*/ledger.db"), "ledger.db is"),
    "reward in a ledger": (in_ledger(REWARD), "ledger.db is damaged"),
    "cost in a ledger": (all_of(in_ledger("UPDATE episodes SET calls = 9"), UNCONTROLLED), "cost of training.calls"),
    "job in a ledger": (all_of(in_ledger("UPDATE jobs SET created_at = 1"), UNCONTROLLED), "has other rows"),
    "server's log": (appended("servers/*/stdout.log"), "stdout.log has"),
    # What only a signature finds, or nothing.
    "rows with their digests": (all_of(EVENT, forged), "--sign and --key"),
    "lease": (sql("UPDATE leases SET token = 9"), "not compared: leases"),
    "event after the end": (
        sql("INSERT INTO events SELECT NULL, study_id, NULL, severity, kind, 'x', payload, 9e9 FROM events LIMIT 1"),
        "not compared: events that were added",
    ),
    "report as a PDF": (added("report/report.pdf"), "report.pdf, which is made from"),
}  # fmt: skip
UNSEEN = {"rows with their digests", "lease", "event after the end", "report as a PDF"}
TOGETHER = (
    "score", "run's time", "finding", "event", "last event", "note", "stored conversation",
    "charge of time", "point of a curve", "settings of a recorded training",
    "program of the folder of an arm", "logs of two runs", "working file", "program", "file that is new", "report",
    "page", "data of a figure", "figure that is new", "weights", "state of the loop", "ledger", "server's log", "lease",
    "report as a PDF",
)  # fmt: skip
"""Alterations that do not hide each other, so that one look is enough to find all of them."""


def test_copy_as_it_was_made_has_no_mismatch(copy: Copy) -> None:
    code, lines = copy.verify()
    assert code == 0, lines
    notes = [line for line in lines if "note:" in line]
    assert all("the study removed" in line or "bytes of weights" in line for line in notes), notes


def test_all_alterations_of_one_copy_are_named(copy: Copy) -> None:
    for name in TOGETHER:
        ALTERATIONS[name][0](copy)
    code, lines = copy.look()
    assert code == 8
    assert [name for name in TOGETHER if not any(ALTERATIONS[name][1] in line for line in lines)] == [], lines


@pytest.mark.slow
@pytest.mark.parametrize("name", ALTERATIONS)
def test_alteration_is_named_or_said_to_be_out_of_scope(copy: Copy, name: str) -> None:
    alter, words = ALTERATIONS[name]
    alter(copy)
    code, lines = copy.look()
    assert [line for line in lines if words in line], "\n".join(lines)
    assert code == (0 if name in UNSEEN else 8), "\n".join(lines)


def test_ledger_whose_tokens_were_removed_is_as_it_was_but_for_them(copy: Copy) -> None:
    ledger = copy.find("servers/*/ledger.db")
    before = ledger.read_bytes()
    command = [sys.executable, "-m", "swarm.cli", "gc", "--home", str(ledger.parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and ledger.read_bytes() != before, done.stderr
    code, lines = copy.look()
    assert code == 0, lines
    assert any("tokens were removed from servers/0/ledger.db" in line for line in lines)


def test_authorship_is_counted_again_from_the_ledgers_as_long_as_they_have_its_tokens(copy: Copy) -> None:
    """The program that a language model wrote is that of the package, and its code did no work of the model."""
    copy.execute("UPDATE experiments SET author = 'language_model'")
    counts = {"attempts": 6, "solved": 0, "told": 0, "unwritten": 0, "by_code": 0, "choices": 0, "missed": 0}
    counts |= {"narrowed": 0, "limits": [], "readings": []}
    changed = "UPDATE evaluations SET details = json_set(details, '$.authorship', json(?)) WHERE phase = 'final'"
    copy.execute(changed, json.dumps(counts))
    assert authorship(copy) == (2, [], 0)

    copy.execute(changed, json.dumps(counts | {"told": 3}))
    checked, mismatches, _ = authorship(copy)
    assert checked == 2 and len(mismatches) == 6 and "authorship: problem: stored None" in mismatches[0]
    assert "authorship: told: stored 3" in mismatches[1] and "told is 3, by the readings []" in mismatches[2]

    for altered, says in (
        ({"problem": "it is slow"}, "problem: stored it is slow, recomputed None"),
        ({"attempts": 5}, "attempts: stored 5"),
        ({"limits": ["grammar"]}, "limits: stored"),
        ({"by_code": 1}, "by_code is 1, of solved 0"),
        ({"choices": 2, "missed": 3}, "missed is 3, of choices 2"),
        ({"narrowed": 7}, "narrowed is 7, of attempts 6"),
    ):
        copy.execute(changed, json.dumps(counts | altered))
        _, mismatches, _ = authorship(copy)
        assert len(mismatches) == 2 and says in mismatches[0], mismatches
    copy.execute(changed, json.dumps(counts))

    for ledger in copy.folder.glob("servers/*/ledger.db"):
        compact(ledger, after_step=9, ended_before=9e9)
    assert authorship(copy) == (0, [], 2)


def test_problem_that_the_scores_of_an_arm_have_together_cannot_be_taken_out(copy: Copy) -> None:
    """Two scores of an arm have solved attempts of its code, which are enough only when they are counted together."""
    copy.execute("UPDATE experiments SET author = 'language_model'")
    with closing(sqlite3.connect(copy.home / "research.db")) as database, database:
        rows = database.execute(
            "SELECT id, run_id FROM evaluations WHERE phase = 'final' ORDER BY created_at"
        ).fetchall()
        [arm] = database.execute("SELECT experiment_id FROM runs WHERE id = ?", (rows[0][1],)).fetchone()
        database.execute("UPDATE runs SET experiment_id = ?, seed = id WHERE id = ?", (arm, rows[1][1]))
        counts = Authorship(attempts=6, solved=6, by_code=2, unwritten=2)
        for (row, _), earlier in zip(rows, ([], [counts.to_json()]), strict=True):
            details = json.dumps(counts.to_json(earlier))
            database.execute(
                "UPDATE evaluations SET details = json_set(details, '$.authorship', json(?)) WHERE id = ?",
                (details, row),
            )
    assert not [line for line in authorship(copy)[1] if "problem" in line]
    copy.execute("UPDATE evaluations SET details = json_remove(details, '$.authorship.problem') WHERE phase = 'final'")
    [found] = [line for line in authorship(copy)[1] if "problem" in line]
    assert "stored None, recomputed its code and not the model solved 4 of 12" in found


def authorship(copy: Copy) -> tuple[int, list[str], int]:
    """What was checked, differs and is not kept."""
    with open_store(copy.home / "research.db", read_only=True) as store:
        checks = {check.kind: check for check in check_ledgers(StudyRecord(store, copy.study_id, copy.home))}
    found = checks["authorship"]
    return found.checked, found.mismatches, found.not_kept


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two keys of OpenSSH, one with a passphrase, and one of another kind."""
    folder = tmp_path_factory.mktemp("keys")
    for name, phrase, kind in (("own", "", "ed25519"), ("other", "", "ed25519"), ("locked", "p", "ed25519"),
                               ("rsa", "", "rsa")):  # fmt: skip
        command = ["ssh-keygen", "-q", "-t", kind, "-N", phrase, "-f", str(folder / name)]
        subprocess.run(command, check=True, timeout=60)
    return folder


def test_signature_finds_what_was_changed_together_with_its_digests(copy: Copy, keys: Path) -> None:
    key = ["--key", str(keys / "own.pub")]
    assert copy.verify("--sign", str(keys / "own"))[0] == 0
    assert copy.verify(*key)[0] == 0
    code, lines = copy.verify("--key", str(keys / "other.pub"))
    assert code == 8 and any("another key" in line for line in lines)

    EVENT(copy)
    forged(copy)
    code, lines = copy.verify(*key)
    assert code == 8 and any("rows of events: was changed since" in line for line in lines), lines
    assert sum("MISMATCH" in line and "since the record was signed" not in line for line in lines) == 0


@pytest.mark.parametrize(
    ("alter", "words"),
    [
        (removed("record.sums.sig"), "was not signed"),
        (flipped("record.sums.sig"), "record.sums.sig is wrong"),
        (flipped("record.sums"), "does not fit what was signed"),
        (lambda copy: (copy.folder / "record.sums.sig").write_bytes(b"\xff"), "damaged"),
        (sql("UPDATE studies SET seal = NULL"), "can be signed once it has ended"),
    ],
)  # fmt: skip
def test_signature_that_is_gone_or_altered_is_a_mismatch(copy: Copy, keys: Path, alter: Alter, words: str) -> None:
    with open_store(copy.home / "research.db", read_only=True) as store:
        sign_record(StudyRecord(store, copy.study_id, copy.home), read_private(keys / "own"))
        alter(copy)
        [check] = check_signature(StudyRecord(store, copy.study_id, copy.home), read_public(keys / "own.pub"))
    assert len(check.mismatches) == 1 and words in check.mismatches[0], check.mismatches


def test_signature_is_one_that_openssh_accepts_and_the_other_way_round(tmp_path: Path, keys: Path) -> None:
    message = b"study\n"
    (tmp_path / "signed.sig").write_text(ssh_signature.sign(message, read_private(keys / "own"), "n"))
    (tmp_path / "signers").write_text(f"me {(keys / 'own.pub').read_text()}")
    words = ["ssh-keygen", "-Y", "verify", "-f", "signers", "-I", "me", "-n", "n", "-s", "signed.sig"]
    assert subprocess.run(words, input=message, cwd=tmp_path, timeout=60, capture_output=True).returncode == 0
    words = ["ssh-keygen", "-q", "-Y", "sign", "-f", str(keys / "own"), "-n", "n"]
    made = subprocess.run(words, input=message, cwd=tmp_path, timeout=60, capture_output=True).stdout.decode()
    ssh_signature.verify(message, made, read_public(keys / "own.pub"), "n")


@pytest.mark.parametrize(
    ("option", "name", "words"),
    [
        ("--sign", "locked", "has a passphrase"),
        ("--sign", "rsa", "is not an ed25519 key"),
        ("--sign", "own.pub", "is no private key"),
        ("--sign", "none", "cannot be read"),
        ("--key", "own", "is no public key"),
        ("--key", "rsa.pub", "is not an ed25519 key"),
    ],
)
def test_key_that_cannot_be_used_is_refused_in_one_line(
    played: Copy, keys: Path, option: str, name: str, words: str
) -> None:
    code, lines = played.verify(option, str(keys / name))
    assert code == 2 and len(lines) == 1 and words in lines[0], lines


def test_record_with_a_mismatch_is_not_signed(copy: Copy, keys: Path) -> None:
    EVENT(copy)
    code, lines = copy.verify("--sign", str(keys / "own"))
    assert code == 8 and any("was not signed" in line for line in lines)
    assert not (copy.folder / "record.sums.sig").exists()
