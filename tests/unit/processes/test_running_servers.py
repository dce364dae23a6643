"""The list of running servers: who is on it, and who is believed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import run_swarm

from swarm.cli import server_choice
from swarm.job import TrainJob
from swarm.processes import RunningServer, announced_server, list_running_servers, own_name

COMMANDS = [["status"], ["overwatch", "--once"], ["stop"]]


@pytest.fixture
def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the list, which is this test's own."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "swarm"


def test_a_server_is_on_the_list_while_it_runs(listed: Path, tmp_path: Path) -> None:
    assert list_running_servers() == []
    with announced_server("http://127.0.0.1:9", tmp_path):
        assert list_running_servers() == [RunningServer("http://127.0.0.1:9", str(tmp_path), own_name())]
    assert list_running_servers() == []


def test_a_server_that_was_killed_and_a_damaged_entry_are_not_shown(listed: Path, tmp_path: Path) -> None:
    with announced_server("http://127.0.0.1:9", tmp_path):
        host, pid, _ = own_name().split(":")
        gone = {"url": "http://127.0.0.1:8", "home": "/tmp", "process": f"{host}:{pid}:1"}
        (listed / "1.json").write_text(json.dumps(gone))
        (listed / "2.json").write_text("{")
        assert [server.url for server in list_running_servers()] == ["http://127.0.0.1:9"]
        assert not (listed / "1.json").exists()


def test_a_list_that_others_can_write_is_not_believed(listed: Path, tmp_path: Path) -> None:
    with announced_server("http://127.0.0.1:9", tmp_path):
        listed.chmod(0o777)
        assert list_running_servers() == []


def test_a_list_that_cannot_be_written_keeps_no_server_from_running(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "file"))
    with announced_server("http://127.0.0.1:9", tmp_path):
        assert list_running_servers() == []


@pytest.mark.parametrize("command", COMMANDS)
def test_with_several_servers_a_command_asks_which_one_and_names_them(listed: Path, tmp_path: Path, command) -> None:
    with announced_server("http://127.0.0.1:9", tmp_path):
        entry = {"url": "http://127.0.0.1:8", "home": "/elsewhere", "process": own_name()}
        (listed / "1.json").write_text(json.dumps(entry))
        done = run_swarm(*command)
        assert (done.exit_code, done.stdout) == (2, "")
        assert "http://127.0.0.1:8" in done.stderr and "/elsewhere" in done.stderr and "127.0.0.1:9" in done.stderr
        assert "does not answer" in done.stderr and len(done.stderr.splitlines()) == 1
        assert run_swarm(*command, SWARM_URL="http://127.0.0.1:9").exit_code == 5


def test_several_servers_are_told_apart_by_what_they_train(listed: Path, tmp_path: Path, start_server) -> None:
    url = start_server(TrainJob(engine="fake", project_name="p", experiment_name="e")).url
    with announced_server(url, tmp_path):
        entry = {"url": "http://127.0.0.1:9", "home": "/elsewhere", "process": own_name()}
        (listed / "1.json").write_text(json.dumps(entry))
        done = run_swarm("status")
    assert done.exit_code == 2 and f"{url} (p/e on " in done.stderr


def test_a_server_at_the_default_address_that_nobody_announced_is_named_and_not_shown(
    listed: Path, start_server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = start_server().url
    monkeypatch.setattr(server_choice, "DEFAULT_URL", url)
    done = run_swarm("status")
    assert (done.exit_code, done.stdout) == (2, "") and "another user's" in done.stderr
    hint = done.stderr.partition("If you mean it: swarm ")[2].split()
    assert run_swarm(*hint).exit_code == 0


def test_without_any_server_a_command_says_how_to_start_one(listed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_choice, "DEFAULT_URL", "http://127.0.0.1:9")
    done = run_swarm("status")
    assert (done.exit_code, done.stdout) == (5, "") and "`swarm start` starts one" in done.stderr


def test_the_only_server_is_the_one_that_is_meant(listed: Path, tmp_path: Path, start_server) -> None:
    url = start_server().url
    with announced_server(url, tmp_path):
        done = run_swarm("status")
    assert done.exit_code == 0 and url in done.stdout + done.stderr
