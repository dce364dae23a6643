"""A replica's processes: none outlives the command, the guard, or the server, however suddenly these end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from process_support import is_running
from vllm_stand_in import PACKAGE, StandIns, until

from swarm.backends.replicas.processes.launcher import GUARD, GuardedProcess, last_words, start_process
from swarm.errors import EngineFailure

pytestmark = pytest.mark.anyio

# A command with a child and a grandchild that ignore what they are asked, and say who they are.
STUBBORN = """
import os, signal, sys, time
path = sys.argv[1]
for depth in range(3):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\\n")
    if depth == 2 or os.fork() != 0:
        break
time.sleep(600)
"""


async def run(
    code: str, *arguments: str, log_path: Path, grace_s: float = 0.3, cores: str = "all", **variables: str
) -> GuardedProcess:
    command = [sys.executable, str(GUARD), str(grace_s), cores, sys.executable, "-c", code, *arguments]
    return await start_process(command, {**os.environ, **variables}, log_path, grace_s=grace_s)


def family(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def living(pids: list[int]) -> list[int]:
    return [pid for pid in pids if is_running(pid)]


async def test_stop_ends_even_what_ignores_it_and_all_its_descendants(tmp_path: Path) -> None:
    process = await run(STUBBORN, str(tmp_path / "pids"), log_path=tmp_path / "log")
    await until(lambda: len(family(tmp_path / "pids")) == 3)
    assert process.pid == family(tmp_path / "pids")[0]
    await process.stop()
    assert process.exited.is_set()
    assert process.reason == "it was stopped"
    assert living(family(tmp_path / "pids")) == []
    await process.stop()


@pytest.mark.parametrize("place", [0, 1])
async def test_death_of_the_command_ends_its_descendants_and_is_described(tmp_path: Path, place: int) -> None:
    process = await run(STUBBORN, str(tmp_path / "pids"), log_path=tmp_path / "log")
    await until(lambda: len(family(tmp_path / "pids")) == 3)
    pids = family(tmp_path / "pids")
    os.kill(pids[place], signal.SIGKILL)
    if place == 0:
        await until(process.exited.is_set)
        assert "SIGKILL" in process.reason
        assert living(pids) == []
    else:
        assert not process.exited.is_set()
    await process.stop()
    assert living(pids) == []


async def test_death_of_the_guard_ends_everything_too(tmp_path: Path) -> None:
    process = await run(STUBBORN, str(tmp_path / "pids"), log_path=tmp_path / "log")
    await until(lambda: len(family(tmp_path / "pids")) == 3)
    os.kill(psutil.Process(process.pid).ppid(), signal.SIGKILL)
    await until(process.exited.is_set)
    await until(lambda: living(family(tmp_path / "pids")) == [])


async def test_command_that_ends_by_itself_gives_its_status_and_last_error(tmp_path: Path) -> None:
    code = "import sys; print('starting'); sys.stderr.write('ValueError: no such model\\nbye\\n'); sys.exit(3)"
    process = await run(code, log_path=tmp_path / "log")
    await until(process.exited.is_set)
    assert process.exit_status == 3
    assert process.reason.startswith("ended with status 3: ValueError: no such model")


async def test_only_what_this_run_wrote_is_quoted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("ValueError: of an earlier run\n")
    assert last_words(log, log.stat().st_size) == ""
    assert last_words(log, 0) == "ValueError: of an earlier run"
    assert last_words(tmp_path / "none", 0) == ""


async def test_command_that_cannot_be_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineFailure, match="cannot be run"):
        await start_process([str(tmp_path / "nothing")], os.environ, tmp_path / "log", grace_s=1)
    command = [sys.executable, str(GUARD), "1", "all", str(tmp_path / "nothing")]
    with pytest.raises(EngineFailure, match="No such file"):
        await start_process(command, os.environ, tmp_path / "log", grace_s=1)


async def test_command_keeps_to_its_cores(tmp_path: Path) -> None:
    core = max(os.sched_getaffinity(0))
    code = "import os, sys; sys.exit(len(os.sched_getaffinity(0)) * 10 + 1)"
    process = await run(code, log_path=tmp_path / "log", cores=str(core))
    await until(process.exited.is_set)
    assert process.exit_status == 11


async def test_temporary_files_of_a_run_go_with_it(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "left").write_text("behind")
    process = await run("pass", log_path=tmp_path / "log", TMPDIR=str(own))
    await until(process.exited.is_set)
    assert not own.exists()


SERVER = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from process_support import is_running
from vllm_stand_in import StandIns
async def main():
    sampler = StandIns(Path({directory!r})).sampler(replicas=2)
    await sampler.start()
    Path({directory!r}, "ready").touch()
    await asyncio.sleep(600)
asyncio.run(main())
"""


async def test_killed_server_leaves_no_replica_behind(tmp_path: Path) -> None:
    stand_ins = StandIns(tmp_path)
    code = textwrap.dedent(SERVER).format(tests=str(PACKAGE.parent), directory=str(tmp_path))
    server = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **stand_ins.environment})
    try:
        await until(lambda: (tmp_path / "ready").exists(), limit_s=60)
        assert len(stand_ins.living()) == 4
    finally:
        server.kill()
        server.wait()
    await until(lambda: stand_ins.living() == [])


async def test_shared_memory_of_a_killed_command_is_given_back(tmp_path: Path) -> None:
    code = """
import sys, time
from multiprocessing.shared_memory import SharedMemory
memory = SharedMemory(create=True, size=1 << 20)
memory.buf[0] = 1
open(sys.argv[1], "w").write(memory.name)
time.sleep(600)
"""
    noted = tmp_path / "name"
    parent = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', *sys.argv[1:]]); time.sleep(600)"
    process = await run(parent, code, str(noted), log_path=tmp_path / "log")
    await until(lambda: noted.exists() and noted.read_text())
    held = Path("/dev/shm") / noted.read_text()
    assert held.exists()
    os.kill(process.pid, signal.SIGKILL)
    await until(process.exited.is_set)
    assert not held.exists()
