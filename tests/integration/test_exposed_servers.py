"""A server that other machines reach wants a token, and says so before it touches anything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from swarm.config import ServerConfig
from swarm.errors import JobInvalid


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "example.org"])
def test_an_address_that_others_reach_wants_a_commanders_token(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SWARM_TOKEN", "SWARM_OBSERVER_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SWARM_ROLLOUT_TOKEN", "rollout-0123456789")
    with pytest.raises(JobInvalid, match="SWARM_TOKEN"):
        ServerConfig.from_environment(host=host, home=tmp_path)
    monkeypatch.delenv("SWARM_ROLLOUT_TOKEN")
    with pytest.raises(JobInvalid, match="SWARM_TOKEN"):
        ServerConfig.from_environment(host=host, home=tmp_path)
    monkeypatch.setenv("SWARM_TOKEN", "commander-0123456789")
    assert ServerConfig.from_environment(host=host, home=tmp_path).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8"])
def test_this_machine_alone_needs_none(host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SWARM_TOKEN", "SWARM_ROLLOUT_TOKEN", "SWARM_OBSERVER_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    assert ServerConfig.from_environment(host=host, home=tmp_path).token is None


def test_such_a_server_does_not_start_and_leaves_nothing_behind(tmp_path: Path) -> None:
    home = tmp_path / "home"
    command = [sys.executable, "-m", "swarm.cli", "start", "--host", "0.0.0.0", "--port", "0", "--home", str(home)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SWARM_")}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, env=clean)
    assert ended.returncode == 2
    assert (ended.stdout, ended.stderr.count("\n")) == ("", 1)
    assert "SWARM_TOKEN" in ended.stderr
    assert not home.exists()
