"""The command line: bad input is one clear line, a documented exit code, and nothing stored."""

from __future__ import annotations

import json
import logging
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from experiments_db import StudyStatus, open_store
from researcher.cli import app
from researcher.cli.terminal import log_to
from researcher.study.requests import database_option

TOPIC = "tool use: KL or no KL?"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWARM_HOME", str(tmp_path / "runs"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return tmp_path / "runs"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--topic", ""], 2, "the topic is empty"),
        (["--topic", ""], 2, "planner: rules, because OPENAI_API_KEY is not set"),
        (["--topic", "20 or 40 steps on copy", "--steps", "10"], 2, "which --steps fixes"),
        (["--topic", "nano or micro on sorting?", "--train-model", "micro"], 2, "which --train-model fixes"),
        (["--topic", "lr 1e-3 or 3e-3", "--env", "juggle"], 2, "there is no environment 'juggle'"),
        (["--topic", "learning rate -1 or 1"], 2, "lr"),
        (["--topic", TOPIC, "--planner", "oracle"], 2, "--planner"),
        (["--topic", TOPIC, "--max-hours", "-1"], 2, "--max-hours"),
        (["--topic", TOPIC, "--engine", "abacus"], 2, "--engine"),
        (["--topic", TOPIC, "--seeds", "0"], 2, "--seeds"),
        (["--topic", TOPIC, "--servers", "nowhere"], 5, "'nowhere' is not the address of a server"),
        (["--topic", TOPIC, "--servers", "http://127.0.0.1:9"], 5, "http://127.0.0.1:9"),
    ],
)
def test_bad_start_is_one_line_and_stores_nothing(home: Path, arguments: list[str], code: int, message: str) -> None:
    result = CliRunner().invoke(app, ["start", *arguments])

    assert result.exit_code == code
    assert message in result.stderr
    assert result.stdout == ""
    assert not home.exists()


@pytest.mark.parametrize(
    ("topic", "named"),
    [
        ("Does LoRA dropout matter on GSM8K?", ["LoRA dropout", "GSM8K"]),
        ("effect of dropout on counting letters", ["dropout"]),
        ("Compare a 7B and a 1.5B model on sorting", ["7B", "1.5B"]),
        ("Does reward shaping help on chain?", ["reward shaping"]),
        ("Compare sorting and copying: which learns faster with a higher lr?", ["copying"]),
    ],
)
def test_topic_that_cannot_be_studied_ends_before_a_server_and_stores_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch, topic: str, named: list[str]
) -> None:
    started: list[object] = []
    monkeypatch.setattr("researcher.servers.server_pool.ServerPool.start", started.append)

    result = CliRunner().invoke(app, ["start", "--topic", topic])

    assert result.exit_code == 2
    for part in named:
        assert part in result.stderr
    assert "researcher start --topic" in result.stderr and "--assume" in result.stderr
    assert result.stdout == "" and not home.exists() and not started


@pytest.mark.parametrize(
    ("topic", "flags"),
    [
        ("Does group size matter on GSM8K?", ["--env", "sort"]),
        ("Compare GRPO and RLOO on sorting with 8 GPUs", []),
        ("Does dropout matter? lr 1e-3 or 3e-3 on sorting", ["--assume"]),
    ],
)
def test_what_a_flag_stands_for_is_understood(home: Path, topic: str, flags: list[str]) -> None:
    # The address of a server is looked at last: that it fails says that the topic was understood.
    result = CliRunner().invoke(app, ["start", "--topic", topic, "--servers", "http://127.0.0.1:9", *flags])

    assert result.exit_code == 5, result.stderr


def test_two_programs_that_are_the_same_are_refused(home: Path, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("plain.py", "two_agents.py")]
    for path in paths:
        path.write_text("from swarm.program import answer_in_turn as agent\n")
    flags = [word for path in paths for word in ("--program", str(path))]

    result = CliRunner().invoke(app, ["start", "--topic", "Do two agents help on sorting?", *flags])

    assert result.exit_code == 2 and "plain and two_agents are the same program" in result.stderr


@pytest.mark.parametrize("command", ["resume", "status", "report", "verify", "stop", "pause", "watch"])
def test_unknown_study_exits_3_and_makes_no_database(home: Path, command: str) -> None:
    result = CliRunner().invoke(app, [command, "st-none"])

    assert result.exit_code == 3
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (home / "research.db").exists()


@pytest.mark.parametrize(("command", "status"), [("pause", StudyStatus.PAUSED), ("stop", StudyStatus.STOPPED)])
def test_request_to_end_is_stored_where_the_worker_looks(home: Path, command: str, status: StudyStatus) -> None:
    with open_store(home / "research.db") as store:
        study = store.create_study(TOPIC, planner="rules")

    assert CliRunner().invoke(app, [command, study.id]).exit_code == 0

    with open_store(home / "research.db", read_only=True) as store:
        assert store.get_study(study.id).status is status
    again = CliRunner().invoke(app, ["stop", study.id])
    assert again.exit_code == (0 if status is StudyStatus.PAUSED else 1)


def test_export_writes_the_tables(home: Path, tmp_path: Path) -> None:
    with open_store(home / "research.db") as store:
        study = store.create_study(TOPIC, planner="rules")

    good = CliRunner().invoke(app, ["export", study.id, str(tmp_path / "out")])
    as_json = CliRunner().invoke(app, ["export", study.id, str(tmp_path / "out"), "--json"])
    bad = CliRunner().invoke(app, ["export", study.id, str(tmp_path / "out"), "--format", "xls"])

    assert json.loads(as_json.stdout) == {"study": study.id, "files": good.stdout.splitlines()}
    assert good.exit_code == 0 and all(Path(line).is_file() for line in good.stdout.splitlines())
    assert bad.exit_code == 2 and "xls" in bad.stderr


def test_failure_that_nobody_foresaw_is_one_line_with_the_traceback_in_a_log(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(home / "research.db") as store:
        study = store.create_study("t", planner="rules")

    def fail(*_: object, **__: object) -> object:
        raise ZeroDivisionError("the moon\nis full")

    monkeypatch.setattr("researcher.verification.verify.verify_study", fail)
    result = CliRunner().invoke(app, ["verify", study.id])

    assert result.exit_code == 1
    [line] = [line for line in result.stderr.splitlines() if line.startswith("researcher:")]
    assert "unexpected failure: ZeroDivisionError: the moon is full" in line
    log = Path(line.rpartition("traceback: ")[2].rstrip(")"))
    assert "Traceback" in log.read_text()
    log.unlink()
    assert 'File "' not in result.stderr


def test_log_has_tracebacks_and_the_terminal_has_one_line(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = list(logging.getLogger().handlers)
    with log_to(home / "researcher.log"):
        try:
            raise ValueError("no\nluck")
        except ValueError:
            logging.getLogger("researcher.test").exception("the run failed")

    assert logging.getLogger().handlers == before
    assert "Traceback" in (home / "researcher.log").read_text()
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("the run failed: ValueError: no luck")


def test_work_that_ends_in_an_unforeseen_failure_names_the_studys_log(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(home / "research.db") as store:
        study = store.create_study("t", planner="rules")

    def fail(*_: object, **__: object) -> object:
        raise ZeroDivisionError("the moon\nis full")

    monkeypatch.setattr("researcher.loop.session.work_on", fail)
    result = CliRunner().invoke(app, ["resume", study.id])

    log = home / "studies" / study.id / "researcher.log"
    assert result.exit_code == 1
    assert f"unexpected failure: ZeroDivisionError: the moon is full (traceback: {log})" in result.stderr
    assert "Traceback" in log.read_text() and 'File "' not in result.stderr


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("postgresql://me:secret@host:5432/studies?host=%2Ftmp", "postgresql://me@host:5432/studies?host=%2Ftmp"),
        ("postgresql://me@host/studies", "postgresql://me@host/studies"),
        ("sqlite:////tmp/research.db", "sqlite:////tmp/research.db"),
        ("/tmp/me:you@here.db", "/tmp/me:you@here.db"),
    ],
)
def test_a_command_is_shown_without_the_password_of_its_database(given: str, shown: str) -> None:
    assert shlex.split(database_option(given)) == ["--db", shown]
