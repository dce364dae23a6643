"""Fixtures shared by all suites: real servers on free ports."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from server_processes import ServerProcess, server_processes
from server_threads import RunningServer, StartServer, servers
from xdist.scheduler import LoadFileScheduling

from swarm.job import TrainJob
from swarm.processes.imports import collect_rarely

# The short profile says the same of the same code every time; the long one, of `make faults`, looks for what is new.
COMMON = {"deadline": None, "database": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("short", max_examples=25, derandomize=True, **COMMON)
settings.register_profile("long", max_examples=500, print_blob=True, **COMMON)
SHARED_SERVERS = ("tests/integration/clients/", "tests/contract/")
SPREAD = 5
"""Every fifth file by name, then the ones behind these: about as many as run at once."""
MEMORY_DISK = Path("/dev/shm")
MEMORY_DISK_BYTES = 4 * 2**30


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", choices=["cpu", "cuda"], default="cpu", help="where the local engine's contract runs")


def pytest_configure() -> None:
    # Ctrl-C is tested: a suite that a shell runs in the background inherits that it is ignored, and so do all that it
    # starts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Temporary directories are in memory where there is enough of it: thousands of databases wait for no disk.
    if MEMORY_DISK.is_dir() and shutil.disk_usage(MEMORY_DISK).free >= MEMORY_DISK_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY_DISK))
    # No test speaks TLS: an HTTP client is made in a hundredth of the time if it has no list of authorities to read.
    os.environ.pop("SSL_CERT_FILE", None)
    os.environ["SSL_CERT_DIR"] = os.devnull
    # Servers of tests are recorded only where a test is about that.
    os.environ["SWARM_NO_RECORD"] = "1"
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "short"))
    # What is imported to collect the tests stays: looking for garbage in it takes a third of the time.
    gc.disable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return FileScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


class FileScheduling(LoadFileScheduling):
    """One worker runs a file; the files of a folder that share what they start are one."""

    def _split_scope(self, nodeid: str) -> str:
        shared = (folder for folder in SHARED_SERVERS if nodeid.startswith(folder))
        return next(shared, super()._split_scope(nodeid))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Unit tests compute and the others wait: files of both take turns, and files of like names, which wait for like
    things, do not run at the same time, so that no core is ever without work."""
    files: dict[bool, dict[Path, None]] = {True: {}, False: {}}
    first = {item.path for item in items if item.get_closest_marker("begins_first")}
    for item in items:
        files["unit" in item.path.parts][item.path] = None
    turn: dict[Path, float] = {}
    for kind in map(list, files.values()):
        spread = [path for offset in range(SPREAD) for path in kind[offset::SPREAD]]
        turn.update((path, place / len(spread)) for place, path in enumerate(spread))
    items.sort(key=lambda item: (item.path not in first, turn[item.path]))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
    collect_rarely()


@pytest.fixture
def swarm_process(tmp_path: Path) -> Iterator[str]:
    """The URL of `swarm start` in a process of its own, without a job."""
    command = [sys.executable, "-m", "swarm.cli", "start", "--port", "0", "--home", str(tmp_path / "home"), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield json.loads(server.stdout.readline())["url"]
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(timeout=30)


@pytest.fixture
def server_process(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Makes servers in processes of their own, which a test may kill and start again."""
    with server_processes(tmp_path) as make:
        yield make


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """A directory on a disk: where something must survive, `tmp_path` may lie in memory."""
    with tempfile.TemporaryDirectory(prefix="swarm-disk-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """Starts real servers over HTTP; all are stopped at the end of the test."""
    with servers(tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def start_shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """The same for servers that the tests of a module have in common, which tell their episodes apart: whoever asks for
    the same settings gets the same server."""
    with servers(tmp_path_factory.mktemp("shared")) as start:
        running: dict[tuple[str, str], RunningServer] = {}

        def share(job: TrainJob | None = None, **settings: object) -> RunningServer:
            key = ("" if job is None else job.model_dump_json(), repr(sorted(settings.items())))
            if key not in running:
                running[key] = start(job, **settings)
            return running[key]

        yield share
