"""The explorer in a real browser: every page by its address, on a filled database, in light and dark."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import httpx
import pytest
from explorer_records import record_calls, record_training
from explorer_study import HOSTILE, add_study, create_database
from exploring_study import ExploringStudy
from playwright.sync_api import Browser, Dialog, sync_playwright

from experiments_db import ExperimentStore, StudyStatus, open_store

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
START_TIMEOUT_S = 40
PAGE_TIMEOUT_MS = 30_000
ROW_HEIGHT = 35

Theme = Literal["light", "dark"]


@dataclass(frozen=True)
class Explorer:
    url: str
    database: Path
    study_id: str
    run_ids: tuple[str, ...]


@pytest.fixture(scope="module")
def explorer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Explorer]:
    """On a database filled with what is hard to show."""
    home = tmp_path_factory.mktemp("explorer")

    def fill(store: ExperimentStore, folder: Path) -> None:
        record_calls(store, add_study(store, folder, is_finished=False))
        record_training(store)

    database = create_database(home, fill)
    with serve_explorer(database, home) as served:
        yield served


@pytest.fixture(scope="module")
def explorer_of_a_real_study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Explorer]:
    """On the database that the researcher wrote while it really trained, for a few steps."""
    home = tmp_path_factory.mktemp("study")
    flags = ["--planner", "rules", "--seeds", "2", "--steps", "2", "--eval-episodes", "20", "--home", str(home)]
    topic = "Which learning rate trains word reversal best, 3e-3 or 1e-5?"
    subprocess.run(
        [sys.executable, "-m", "researcher.cli", "start", "--topic", topic, *flags],
        check=True,
        timeout=150,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with serve_explorer(home / "research.db", home) as served:
        yield served


@contextmanager
def serve_explorer(database: Path, home: Path) -> Iterator[Explorer]:
    """`streamlit run ui/app.py` as a user starts it, on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [sys.executable, "-m", "streamlit", "run", "ui/app.py", "--server.port", str(port)]
    argv += ["--server.headless", "true", "--server.fileWatcherType", "none"]
    with (home / "server.log").open("w") as log:
        server = subprocess.Popen(
            argv, cwd=ROOT, env={**os.environ, "SWARM_RESEARCH_DB": str(database)}, stdout=log, stderr=log
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _await_health(url, server, home / "server.log")
        with open_store(database, read_only=True) as store:
            study = store.list_studies()[0]
            runs = tuple(run.id for run in store.list_runs(study_id=study.id) if run.finished_at and not run.diagnosis)
        yield Explorer(url, database, study.id, runs)
    finally:
        server.terminate()
        server.wait(timeout=60)


def _await_health(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()
        try:
            if httpx.get(f"{url}/_stcore/health", timeout=60).is_success:
                return
        except httpx.TransportError:
            time.sleep(0.2)
    pytest.fail(f"the explorer did not start within {START_TIMEOUT_S} s: {log.read_text()}")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not Path(CHROMIUM).exists():
        pytest.skip("no chromium: install the Debian package chromium")
    args = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=args)
        yield chromium
        chromium.close()


class Visitor:
    """A tab that notes what must never happen: a script of foreign text, an exception, a call to the internet."""

    def __init__(self, browser: Browser, explorer: Explorer, theme: Theme) -> None:
        self.context = browser.new_context(viewport={"width": 1360, "height": 1100}, color_scheme=theme)
        self.page = self.context.new_page()
        self.page.set_default_timeout(PAGE_TIMEOUT_MS)
        self.dialogs: list[str] = []
        self.page.on("dialog", self._dismiss)
        self.outside: list[str] = []
        self.page.on("request", lambda request: self._note(request.url))
        self._explorer = explorer

    def _note(self, url: str) -> None:
        if not url.startswith((self._explorer.url, "ws://127.0.0.1", "data:", "blob:")):
            self.outside.append(url)

    def _dismiss(self, dialog: Dialog) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()

    def open(self, address: str, picture: Path) -> None:
        self.page.goto(f"{self._explorer.url}{address}")
        self.page.locator("h1").first.wait_for()
        self.page.locator('[data-testid="stApp"][data-test-script-state="notRunning"]').wait_for()
        # Charts and tables are drawn after the script is done.
        self.page.wait_for_timeout(700)
        self.page.screenshot(path=picture)
        assert self.page.locator('[data-testid="stException"]').count() == 0
        assert self.page.locator('[data-testid="stAlertContentError"]').count() == 0
        assert not self.dialogs
        assert not self.outside

    def select_row(self, row: int, *, table: int = 0) -> None:
        """Click the box of a row. A table is a canvas, so the click goes by the height of its rows."""
        frame = self.page.locator('[data-testid="stDataFrame"]').nth(table)
        frame.scroll_into_view_if_needed()
        frame.click(position={"x": 15, "y": ROW_HEIGHT * (row + 1.5)})

    def best_arm(self) -> tuple[str, str]:
        """Label and value of the metric, as a person reads them."""
        metric = self.page.locator('[data-testid="stMetric"]', has_text="Best arm").first
        label = metric.locator('[data-testid="stMetricLabel"]').inner_text()
        return label, metric.locator('[data-testid="stMetricValue"]').inner_text()


@pytest.fixture(params=["light", pytest.param("dark", marks=pytest.mark.slow)])
def visitor(browser: Browser, explorer: Explorer, request: pytest.FixtureRequest) -> Iterator[Visitor]:
    visiting = Visitor(browser, explorer, request.param)
    yield visiting
    visiting.context.close()


def _best_by_sql(explorer: Explorer) -> tuple[str, float]:
    connection = sqlite3.connect(f"file:{explorer.database}?mode=ro", uri=True)
    try:
        return connection.execute(
            """SELECT experiments.name, avg(evaluations.mean) FROM evaluations
               JOIN runs ON runs.id = evaluations.run_id JOIN experiments ON experiments.id = runs.experiment_id
               WHERE runs.study_id = ? AND runs.status = 'finished' AND phase = 'final' AND split = 'validation'
               GROUP BY experiments.id ORDER BY avg(evaluations.mean) DESC LIMIT 1""",
            (explorer.study_id,),
        ).fetchone()
    finally:
        connection.close()


def test_every_page_opens_by_its_address_and_names_the_best_arm(
    visitor: Visitor, explorer: Explorer, tmp_path: Path
) -> None:
    _visit_every_page(visitor, explorer, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_every_page_opens_on_a_real_study(browser: Browser, explorer_of_a_real_study: Explorer, tmp_path: Path) -> None:
    visiting = Visitor(browser, explorer_of_a_real_study, "light")
    _visit_every_page(visiting, explorer_of_a_real_study, tmp_path)
    visiting.context.close()


def _visit_every_page(visitor: Visitor, explorer: Explorer, tmp_path: Path) -> None:
    name, mean = _best_by_sql(explorer)
    for page, address in {
        "studies": "/studies",
        "study": f"/study?study={explorer.study_id}",
        "compare": f"/compare?study={explorer.study_id}",
    }.items():
        visitor.open(address, tmp_path / f"{page}.png")
        label, value = visitor.best_arm()
        assert name in label, page
        # Three decimals of the number; which way a tie is rounded differs between SQLite and Python.
        assert re.fullmatch(r"\d\.\d{3}", value) and abs(float(value) - mean) <= 0.0005 + 1e-9, (page, value, mean)
    visitor.open(f"/runs?study={explorer.study_id}", tmp_path / "runs.png")
    visitor.open(f"/run?run={explorer.run_ids[0]}", tmp_path / "run.png")
    # The address goes on naming what the page is about.
    assert explorer.run_ids[0] in visitor.page.url
    visitor.open(f"/run?run={explorer.run_ids[0]}&part=Artifacts", tmp_path / "artifacts.png")
    visitor.open(f"/episodes?study={explorer.study_id}", tmp_path / "episodes.png")
    visitor.open(f"/study?study={explorer.study_id}&section=Model+calls", tmp_path / "calls.png")
    visitor.open("/servers", tmp_path / "servers.png")


def test_foreign_text_is_shown_and_never_run(browser: Browser, explorer: Explorer, tmp_path: Path) -> None:
    visiting = Visitor(browser, explorer, "light")
    run = explorer.run_ids[-1]
    for part, text in {"Episodes": "Reverse: <script>alert(1)</script>", "Log": "step 2 <script>"}.items():
        visiting.open(f"/run?run={run}&part={part}", tmp_path / f"{part}.png")
        assert text in visiting.page.locator('[data-testid="stMain"]').inner_text()
    two = ",".join((explorer.run_ids[0], run))
    visiting.open(f"/compare?runs={two}&aspect=Curves", tmp_path / "runs.png")
    visiting.context.close()


def test_an_episode_that_is_clicked_outlives_a_reload_and_its_group_is_a_click_away(
    browser: Browser, explorer: Explorer, tmp_path: Path
) -> None:
    visiting = Visitor(browser, explorer, "light")
    # A search by its words finds the one hostile episode of the first step.
    visiting.open("/episodes?step_to=1&text=alert(1)", tmp_path / "found.png")
    main = visiting.page.locator('[data-testid="stMain"]')
    visiting.select_row(0)
    visiting.page.get_by_text("Its group").wait_for()
    assert "ep-1-7" in visiting.page.url
    visiting.page.reload()
    visiting.page.get_by_text("Its group").wait_for()
    assert f"Reverse: {HOSTILE}" in main.inner_text()
    visiting.select_row(3, table=1)
    visiting.page.get_by_text("drow1", exact=True).wait_for()
    assert "ep-1-4" in visiting.page.url and not visiting.dialogs
    visiting.context.close()


def test_a_call_that_is_clicked_is_shown_as_text(browser: Browser, explorer: Explorer, tmp_path: Path) -> None:
    visiting = Visitor(browser, explorer, "light")
    visiting.open(f"/study?study={explorer.study_id}&section=Model+calls", tmp_path / "calls.png")
    visiting.select_row(0, table=2)
    visiting.page.get_by_text("First I look.").wait_for()
    assert f"{HOSTILE} **bold** :red[no]" in visiting.page.locator('[data-testid="stMain"]').inner_text()
    assert "call=1" in visiting.page.url and not visiting.dialogs
    visiting.context.close()


def test_a_server_is_followed_from_connecting_to_disconnecting(
    browser: Browser, explorer: Explorer, swarm_process: str, tmp_path: Path
) -> None:
    visiting = Visitor(browser, explorer, "light")
    visiting.open("/servers", tmp_path / "servers.png")
    visiting.page.get_by_label("Address").fill(swarm_process)
    visiting.page.get_by_role("button", name="Connect").click()
    visiting.page.get_by_text("Episodes under way").wait_for()
    job = {"engine": "fake", "total_steps": 7}
    httpx.put(f"{swarm_process}/v1/swarm/job", json={"job": job}).raise_for_status()
    httpx.post(f"{swarm_process}/v1/swarm/engine/start", json={}).raise_for_status()
    visiting.page.get_by_text("0 / 7").wait_for()
    visiting.page.get_by_role("button", name="Disconnect").click()
    visiting.page.get_by_role("button", name="Connect").wait_for()
    visiting.context.close()


def test_a_running_study_refreshes_itself(browser: Browser, explorer: Explorer, tmp_path: Path) -> None:
    visiting = Visitor(browser, explorer, "light")
    visiting.open(f"/study?study={explorer.study_id}", tmp_path / "running.png")
    main = visiting.page.locator('[data-testid="stMain"]')
    assert "running" in main.inner_text()
    with open_store(explorer.database) as store:
        store.set_study_status(explorer.study_id, StudyStatus.FINISHED, "all is said")
    main.get_by_text("all is said").wait_for()
    # What is over is not asked about any more.
    visiting.page.get_by_text("Live", exact=True).wait_for(state="detached")
    visiting.context.close()


def test_a_click_on_an_arm_of_the_tree_shows_that_arm(browser: Browser, tmp_path: Path) -> None:
    with open_store(tmp_path / "research.db") as store:
        ExploringStudy(store, tmp_path).explore(2)
    with serve_explorer(tmp_path / "research.db", tmp_path) as explorer:
        visitor = Visitor(browser, explorer, "light")
        visitor.open(f"/study?study={explorer.study_id}&section=Search", tmp_path / "search.png")
        dots = visitor.page.locator('[data-testid="stVegaLiteChart"] g.mark-symbol path[aria-label*="Arm: verifier"]')
        dots.last.click(force=True)
        visitor.page.get_by_text("Held-out attempts: 3 of 32 attempts pass").wait_for()
        visitor.context.close()
