"""Child processes end with whoever started them, are not mistaken for later ones, and import no more than they need."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from waiting import wait_until

from swarm.processes.child import (
    Child,
    StaleProcess,
    child_environment,
    end_stale,
    is_dead,
    own_name,
    process_start,
    server_environment,
    tail,
)
from swarm.processes.imports import kept_out


def test_a_library_that_is_kept_out_seems_not_to_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "this", raising=False)
    with kept_out("this"), pytest.raises(ModuleNotFoundError):
        import this  # noqa: F401
    assert find_spec("this") is not None


def test_a_library_that_is_there_already_stays() -> None:
    with kept_out("json"):
        import json
    assert sys.modules["json"] is json


def test_processes_of_our_own_import_httpx_without_its_command_line() -> None:
    code = "import sys; from swarm.processes.imports import plain_httpx\nwith plain_httpx(): import httpx\n"
    found = subprocess.run(
        [sys.executable, "-c", f"{code}print(httpx.Client, 'rich' in sys.modules)\nimport rich"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert found.stdout.split()[-1] == "False"


SPAWNER = """
import sys, time
from pathlib import Path
from swarm.processes.child import Child, child_environment
home = Path(sys.argv[1])
command = [sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)"]
child = Child(command, env=child_environment(), cwd=home, out=home / "out", errors=home / "err")
(home / "supervisor").write_text(f"{child.pid} {child.started}")
time.sleep(600)
"""


def _start(home: Path, code: str) -> Child:
    return Child([sys.executable, "-c", code], env=child_environment(), cwd=home, out=home / "out", errors=home / "err")


def test_exit_code_and_output_reach_the_parent(tmp_path: Path) -> None:
    child = _start(tmp_path, "import sys; print('hello'); print('oh', file=sys.stderr); sys.exit(3)")

    assert child.wait(20) == 3
    child.stop()
    assert tail(tmp_path / "out") == "hello" and tail(tmp_path / "err") == "oh"


def test_stop_ends_a_child_with_all_it_started(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time;"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
        "print(p.pid, flush=True); time.sleep(600)"
    )
    child = _start(tmp_path, code)
    wait_until(lambda: tail(tmp_path / "out").isdigit())
    grandchild = int(tail(tmp_path / "out"))

    child.stop()

    assert child.poll() is not None
    wait_until(lambda: process_start(grandchild) is None)


@pytest.mark.parametrize("victim", ["parent", "supervisor"])
def test_kill_9_of_parent_or_supervisor_leaves_no_orphan(tmp_path: Path, victim: str) -> None:
    parent = subprocess.Popen([sys.executable, "-c", SPAWNER, str(tmp_path)])
    try:
        wait_until(lambda: (tmp_path / "supervisor").exists() and tail(tmp_path / "out").isdigit())
        supervisor = int((tmp_path / "supervisor").read_text().split()[0])
        command = int(tail(tmp_path / "out"))
        assert process_start(command) is not None

        os.kill(parent.pid if victim == "parent" else supervisor, signal.SIGKILL)

        wait_until(lambda: process_start(command) is None)
        if victim == "parent":
            wait_until(lambda: process_start(supervisor) is None)
    finally:
        parent.kill()
        parent.wait(10)


def test_stale_process_is_ended_only_if_it_is_the_same(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        started = process_start(process.pid)
        assert end_stale(process.pid, "another time") is end_stale(process.pid, None) is StaleProcess.GONE
        assert process.poll() is None

        assert end_stale(process.pid, started) is StaleProcess.ENDED

        assert process.wait(10) == -signal.SIGTERM
    finally:
        process.kill()
        process.wait(10)


IMMORTAL = {
    "end_stale": (
        "from swarm.processes import child; child.STOP_TIMEOUT_S = child.KILL_TIMEOUT_S = 0.2;"
        "print(child.end_stale(1, child.process_start(1)))"
    ),
    "reaper of a driver": (
        "from swarm.backends.verl.driver import reaper; reaper.PATIENCE_S = 0.2; reaper.end_others(); print('returned')"
    ),
}


@pytest.mark.parametrize("reaper", IMMORTAL)
def test_a_process_that_outlives_sigkill_is_named_and_left(reaper: str) -> None:
    """In a namespace of its own, the first process cannot be killed from inside."""
    inside = ["bwrap", "--unshare-pid", "--dev-bind", "/", "/", "--proc", "/proc", sys.executable, "-c"]

    done = subprocess.run([*inside, IMMORTAL[reaper]], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr
    assert "not even with SIGKILL" in done.stdout or "left alone: 1" in done.stderr


def test_name_of_a_process_tells_whether_it_lives() -> None:
    host, pid, _ = own_name().split(":")

    assert not is_dead(own_name())
    assert is_dead(f"{host}:{pid}:1")
    assert not is_dead(f"elsewhere:{pid}:1")
    assert not is_dead("nonsense")


SECRETS = ("SWARM_TOKEN", "OPENAI_API_KEY", "ANTHROPIC_API_KEY")


def test_servers_of_our_own_see_the_settings_of_a_cluster_and_no_key_or_token_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {"SWARM_VLLM_PYTHON": "/opt/vllm/bin/python", "CUDA_VISIBLE_DEVICES": "0,1", "NCCL_DEBUG": "INFO"}
    for name, value in (settings | dict.fromkeys(SECRETS, "secret")).items():
        monkeypatch.setenv(name, value)

    seen = server_environment()
    assert settings.items() <= seen.items()
    assert "secret" not in seen.values()
    assert not {"OPENAI_API_KEY", "ANTHROPIC_API_KEY"} & child_environment().keys()
