"""`swarm doctor`: it finds what is wrong on real files, ports and packages, says what to do, and changes nothing."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from server_processes import free_port

from swarm.doctor.examination import Check, CheckFinding, Health, examine, fail, ok, worst
from swarm.doctor.installed import TensorProbe, check_bundled_model, check_packages, check_tensors
from swarm.doctor.server import check_clock, check_ledger, check_port, check_tokens
from swarm.ledger import Ledger

CANARY = "canary-token-0123456789"


def run_doctor(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "swarm.cli", "doctor", *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "NO_COLOR": "1", "SWARM_TOKEN": "", "COLUMNS": "200", **env},
    )


@pytest.fixture
def home(tmp_path: Path) -> Path:
    directory = tmp_path / "home"
    directory.mkdir()
    Ledger.open(directory / "ledger.db").close()
    return directory


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.timeout(400)
def test_a_machine_that_can_serve_exits_0_with_a_remedy_for_every_complaint(tmp_path: Path) -> None:
    done = run_doctor("--home", str(tmp_path / "new"), "--port", str(free_port()), "--json", SWARM_TOKEN=CANARY)
    report = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout
    assert report["verdict"] in {"ok", "warn"}
    by_name = {check["check"]: check for check in report["checks"]}
    assert {"python", "torch", "bundled model", "home", "disk latency", "ledger", "port", "tokens"} <= set(by_name)
    assert "nano" in by_name["bundled model"]["message"]
    assert all(check["remedy"] for check in report["checks"] if check["verdict"] != "ok")
    assert CANARY not in done.stdout + done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_failed_check_exits_1_and_the_table_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    done = run_doctor("--home", str(tmp_path / "file"), "--host", "0.0.0.0", "--port", str(free_port()))
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    home = next(number for number, line in enumerate(lines) if line.startswith("fail  home"))
    assert "-> set a directory that you own" in lines[home + 1]
    tokens = next(number for number, line in enumerate(lines) if line.startswith("fail  tokens"))
    assert "SWARM_TOKEN" in lines[tokens]
    assert "\x1b" not in done.stdout


def test_a_check_that_hangs_or_breaks_is_a_finding_within_the_time_limit() -> None:
    hangs = threading.Event()

    def hang() -> CheckFinding:
        hangs.wait()
        return ok("too late")

    def break_down() -> CheckFinding:
        raise OSError("no such luck")

    outcomes = examine(
        [
            Check("hangs", hang, 0.2, fail("hung", "unplug it")),
            Check("breaks", break_down, 60, fail("late", "")),
            Check("works", lambda: ok("fine"), 60, fail("late", "")),
        ]
    )
    hangs.set()
    assert [outcome.finding.verdict for outcome in outcomes] == [Health.FAIL, Health.FAIL, Health.OK]
    assert (outcomes[0].finding.message, "no such luck" in outcomes[1].finding.message) == ("hung", True)
    assert worst(outcomes) is Health.FAIL


@pytest.mark.parametrize(
    ("said", "torch", "model"),
    [
        ('{"version": "2.13.0", "gpus": []}', Health.OK, Health.WARN),
        ("nothing of use", Health.FAIL, Health.FAIL),
    ],
    ids=["slow behind torch", "hangs in torch"],
)
def test_a_probe_that_does_not_end_is_judged_by_what_it_said_before(
    said: str, torch: Health, model: Health, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{said}'\nexec sleep 600\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr("swarm.doctor.installed.PROBE_LIMIT_S", 2)
    probe = TensorProbe()
    # One core is worth a warning of its own.
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert check_tensors(probe).verdict is torch
    finding = check_bundled_model(probe)
    assert finding.verdict is model
    assert "no answer within 2 s" in finding.message


def test_a_sound_ledger_is_ok_and_left_as_it_was(home: Path) -> None:
    before = files(home)
    finding = check_ledger(home)
    assert finding.verdict is Health.OK and "undamaged" in finding.message
    assert files(home) == before


def test_a_ledger_in_use_is_ok_and_names_the_process(home: Path) -> None:
    with closing(Ledger.open(home / "ledger.db")):
        finding = check_ledger(home)
    assert finding.verdict is Health.OK
    assert f"in use by process {os.getpid()}" in finding.message


def test_a_ledger_that_cannot_be_used_fails_and_is_left_as_it_was(home: Path) -> None:
    with closing(sqlite3.connect(home / "ledger.db")) as connection:
        connection.execute("PRAGMA user_version = 99")
    before = files(home)
    finding = check_ledger(home)
    assert finding.verdict is Health.FAIL and "schema 99" in finding.message and finding.remedy
    assert files(home) == before


def test_a_nearly_full_disk_fails_with_the_space_left(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from swarm.doctor.server import check_home\n"
        "finding = check_home(Path(sys.argv[1])); print(finding.verdict, finding.message)"
    )
    script = f"mount -t tmpfs -o size=1m tmpfs '{tmp_path}' && exec \"$@\""
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    done = subprocess.run(
        ["unshare", *as_root, "--mount", "sh", "-c", script, "sh", sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=30,
    )
    if "mount" in done.stderr or "unshare" in done.stderr:
        pytest.skip(f"no mounts for this user: {done.stderr.strip()}")
    assert done.stdout.startswith("fail") and "1.0 MiB free" in done.stdout, done.stderr


def test_a_free_port_and_a_running_server_are_ok(start_server: Any) -> None:
    assert "is free" in check_port("127.0.0.1", free_port(), None).message
    url = start_server(token=CANARY).url
    port = int(url.rsplit(":", 1)[1])
    finding = check_port("127.0.0.1", port, CANARY)
    assert finding.verdict is Health.OK and "OFFLINE" in finding.message
    stranger = check_port("127.0.0.1", port, "some-other-token-123")
    assert stranger.verdict is Health.OK and "does not accept the token" in stranger.message


@pytest.fixture
def other_program() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield http.server_address[1]
        http.shutdown()
        thread.join(timeout=60)


def test_a_port_that_another_program_holds_fails(other_program: int) -> None:
    finding = check_port("127.0.0.1", other_program, None)
    assert finding.verdict is Health.FAIL and str(other_program) in finding.message


@pytest.mark.parametrize(
    ("host", "token", "verdict"),
    [
        ("127.0.0.1", "", Health.OK),
        ("0.0.0.0", "", Health.FAIL),
        ("0.0.0.0", CANARY, Health.OK),
        ("127.0.0.1", "short", Health.FAIL),
    ],
)
def test_tokens_are_judged_by_the_rule_that_start_goes_by(
    monkeypatch: pytest.MonkeyPatch, host: str, token: str, verdict: Health
) -> None:
    monkeypatch.setenv("SWARM_TOKEN", token)
    finding = check_tokens(host)
    assert finding.verdict is verdict
    assert not token or token not in finding.message


def test_a_ledger_written_in_the_future_shows_a_wrong_clock(home: Path) -> None:
    assert check_clock("127.0.0.1", free_port(), None, home).verdict is Health.OK
    tomorrow = time.time() + 86_400
    os.utime(home / "ledger.db", (tomorrow, tomorrow))
    finding = check_clock("127.0.0.1", free_port(), None, home)
    assert finding.verdict is Health.WARN and "in the future" in finding.message


def test_a_package_of_the_wrong_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_packages("server", is_optional=False).verdict is Health.OK
    metadata = tmp_path / "uvicorn-0.1.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: uvicorn\nVersion: 0.1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    finding = check_packages("server", is_optional=False)
    assert finding.verdict is Health.FAIL and "uvicorn 0.1" in finding.message
