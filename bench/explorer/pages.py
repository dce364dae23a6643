"""The cost of each page of the explorer: processor seconds of its server around a visit in a headless Chromium.

Place in the flow: __init__.py gives the database. The server is a process of its own, as people start it. Each page is
visited once to warm the server, and then three times by new browser tabs; the figure is the median.
"""

from __future__ import annotations

import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
from playwright.sync_api import BrowserContext, Page, WebSocket, sync_playwright

from bench.explorer.database import FilledDatabase
from bench.results import Result

ROOT = Path(__file__).parents[2]
VISITS = 3
SETTLE_S = 1.0
"""How long after the end of the script a server is still counted as busy with the page."""
IDLE_S = 30.0
LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class ExplorerServer:
    url: str
    process: psutil.Process

    @property
    def cpu_s(self) -> float:
        times = self.process.cpu_times()
        return times.user + times.system

    @property
    def memory_mb(self) -> float:
        return self.process.memory_info().rss / 1e6


@contextmanager
def serve(database: Path, *, root: Path = ROOT, log: Path = Path(os.devnull)) -> Iterator[ExplorerServer]:
    """Start the explorer of the checkout at `root`, as people start it, on a free port. Its messages go to `log`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [sys.executable, "-m", "streamlit", "run", "ui/app.py", "--server.port", str(port)]
    argv += ["--server.headless", "true", "--server.fileWatcherType", "none"]
    environ = {**os.environ, "SWARM_RESEARCH_DB": str(database), "PYTHONPATH": str(root)}
    with log.open("wb") as file, subprocess.Popen(argv, cwd=root, env=environ, stdout=file, stderr=file) as server:
        try:
            _await_health(f"http://127.0.0.1:{port}", server)
            yield ExplorerServer(f"http://127.0.0.1:{port}", psutil.Process(server.pid))
        finally:
            server.terminate()


def _await_health(url: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            if httpx.get(f"{url}/_stcore/health", timeout=60).is_success:
                return
        except httpx.TransportError:
            time.sleep(0.2)
    raise TimeoutError(f"the explorer did not start within {LIMIT_S:.0f} s")


def measure(filled: FilledDatabase, *, case: str, root: Path = ROOT) -> list[Result]:
    """Return the figures of every page, of the memory after all of them, and of a live page while nothing changes."""
    with serve(filled.path, root=root) as server, _open_browser() as browser:
        figures = [(f"{name}: processor", _visit(server, browser, address), "s") for name, address in _pages(filled)]
        figures.append(("memory after all pages", server.memory_mb, "MB"))
        processor, sent = _watch(server, browser, f"/study?study={filled.study_id}")
        figures.append((f"a live page, {IDLE_S:.0f} s in which nothing changes: processor", processor, "s"))
        figures.append((f"a live page, {IDLE_S:.0f} s in which nothing changes: sent", sent / 1000, "kB"))
    return [Result("explorer", case, name, value, unit) for name, value, unit in figures]


def _pages(filled: FilledDatabase) -> list[tuple[str, str]]:
    study, run, long = filled.study_id, filled.run_id, filled.long_run_id
    return [
        ("home", "/"),
        ("study", f"/study?study={study}"),
        ("small study", "/study?study=st-0003"),
        ("runs of all studies", "/runs"),
        ("runs of a study", f"/runs?study={study}"),
        ("run", f"/run?run={run}"),
        ("long run", f"/run?run={long}"),
        ("trainings", "/trainings"),
        ("training", "/training?training=training-0003"),
        ("compare arms", f"/compare?study={study}"),
        ("compare runs", f"/compare?runs={run},{long}"),
    ]


@contextmanager
def _open_browser() -> Iterator[BrowserContext]:
    args = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=args)
        # Tabs of one browser: what Streamlit itself consists of comes from its cache.
        yield chromium.new_context()
        chromium.close()


def _visit(server: ExplorerServer, browser: BrowserContext, address: str) -> float:
    """Return the processor seconds of a visit."""
    spent: list[float] = []
    for _ in range(1 + VISITS):
        before = server.cpu_s
        page = browser.new_page()
        _load(page, f"{server.url}{address}")
        spent.append(server.cpu_s - before)
        page.close()
    return statistics.median(spent[1:])


def _load(page: Page, url: str) -> None:
    page.set_default_timeout(LIMIT_S * 1000)
    page.goto(url)
    page.locator("h1").first.wait_for()
    page.locator('[data-testid="stApp"][data-test-script-state="notRunning"]').wait_for()
    page.wait_for_timeout(SETTLE_S * 1000)


def _watch(server: ExplorerServer, browser: BrowserContext, address: str) -> tuple[float, int]:
    """Return the processor seconds and the bytes that the server sends while a page is open."""
    sent = 0

    def count(frame: str | bytes) -> None:
        nonlocal sent
        sent += len(frame)

    def listen(websocket: WebSocket) -> None:
        websocket.on("framereceived", count)

    page = browser.new_page()
    page.on("websocket", listen)
    _load(page, f"{server.url}{address}")
    page.wait_for_timeout(5000)
    sent, before = 0, server.cpu_s
    page.wait_for_timeout(IDLE_S * 1000)
    spent = server.cpu_s - before
    page.close()
    return spent, sent
