"""The explorer in a real browser: every page on every kind of database, and what a click does. Nothing foreign runs."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import quote

import httpx
import pytest
from explorer_samples import (
    FILLED,
    HOSTILE,
    add_study,
    add_training,
    create_database,
    make_database,
    record_calls,
    record_training,
)
from explorer_server import serve
from exploring_study import ExploringStudy
from playwright.sync_api import Browser, Page, sync_playwright
from store_samples import record_state

from experiments_db import RunStatus, StudyStatus, TrainingNews, TrainingPoint, open_store

if TYPE_CHECKING:
    from experiments_db import ExperimentStore

pytestmark = pytest.mark.browser

PAGES = (
    "/", "/studies", "/study", "/runs", "/run", "/trainings", "/training", "/compare", "/episodes", "/servers",
)  # fmt: skip
PARTS = (
    *(f"/study?section={name}" for name in ("Plan", "Decisions", "Notebook", "Events")),
    *(f"/run?part={name}" for name in ("Config", "Code", "Log", "Events", "Evaluations", "Episodes")),
    *(f"/training?part={name}" for name in ("Trained+episodes", "Settings", "Machine", "Events")),
    *(f"/compare?aspect={name}" for name in ("Curves", "Config", "Code", "Factor+effects")),
)
"""What the pages show in tabs that are closed at first."""

OWN = ("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:")
HOSTILE_KIND = "hostile names and tokens"
CHARTED = ("one study", HOSTILE_KIND, "strange numbers")
PAGE_TIMEOUT_MS = 60_000
ROW_HEIGHT = 35


@dataclass
class Tab:
    """A tab of a browser, with what must never happen in it: dialogs, errors, requests to other machines.

    `seen` is how much of the server's log belongs to earlier pages.
    """

    page: Page
    url: str
    log: Path
    wrong: list[str] = field(default_factory=list)
    seen: int = 0

    def open(self, address: str, database: Path) -> str:
        """Open a page on a database and return the words on it, once nothing went wrong."""
        self.wrong.clear()
        self.seen = self.log.stat().st_size
        joint = "&" if "?" in address else "?"
        self.page.goto(f"{self.url}{address}{joint}db={quote(str(database))}")
        self.page.locator("h1, [data-testid=stAlert]").first.wait_for()
        return self.settle()

    def settle(self) -> str:
        self.page.locator('[data-testid="stApp"][data-test-script-state="notRunning"]').wait_for()
        assert self.page.locator('[data-testid="stException"]').count() == 0
        assert "Traceback" not in self.log.read_bytes()[self.seen :].decode()
        assert self.wrong == []
        return self.page.locator('[data-testid="stMain"]').inner_text()

    def select_row(self, row: int, *, table: int = 0) -> None:
        """Click the box of a row. A table is a canvas, so the click goes by the height of its rows."""
        frame = self.page.locator('[data-testid="stDataFrame"]').nth(table)
        frame.scroll_into_view_if_needed()
        # Tables are drawn after the script is done.
        self.page.wait_for_timeout(700)
        frame.click(position={"x": 15, "y": ROW_HEIGHT * (row + 1.5)})


def open_tab(browser: Browser, url: str, log: Path, theme: Literal["light", "dark"] = "light") -> Tab:
    page = browser.new_context(viewport={"width": 1360, "height": 1100}, color_scheme=theme).new_page()
    page.set_default_timeout(PAGE_TIMEOUT_MS)
    tab = Tab(page, url, log)

    def note_request(url: str) -> None:
        if not url.startswith(OWN):
            tab.wrong.append(url)

    page.on("request", lambda request: note_request(request.url))
    page.on("pageerror", lambda error: tab.wrong.append(str(error)))
    page.on("dialog", lambda dialog: (tab.wrong.append(dialog.message), dialog.dismiss()))
    return tab


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium: install the Debian package chromium")
    args = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=args)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("databases")


@pytest.fixture(scope="module")
def tab(browser: Browser, home: Path) -> Iterator[Tab]:
    """A tab of one server, which opens each database by its address."""
    with serve(home / "none.db", log=home / "server.log") as url:
        yield open_tab(browser, url, home / "server.log")


@pytest.fixture(scope="module")
def databases(home: Path) -> dict[str, Path]:
    return {kind: make_database(home / str(number), kind) for number, kind in enumerate(FILLED)}


@pytest.mark.parametrize(
    ("kind", "address"),
    [
        pytest.param(kind, address, marks=() if kind == HOSTILE_KIND else pytest.mark.slow)
        for kind in FILLED
        for address in PAGES
    ],
)
def test_a_page_shows_whatever_is_in_a_database(tab: Tab, databases: dict[str, Path], kind: str, address: str) -> None:
    tab.open(address, databases[kind])
    assert tab.page.locator('[data-testid="stAlertContentError"]').count() == 0


@pytest.mark.parametrize("address", PARTS)
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.slow) for kind in CHARTED])
def test_a_closed_part_shows_whatever_is_in_a_database(
    tab: Tab, databases: dict[str, Path], kind: str, address: str
) -> None:
    tab.open(address, databases[kind])
    assert tab.page.locator('[data-testid="stAlertContentError"]').count() == 0


def test_a_page_shows_a_database_that_another_process_is_writing(tab: Tab, tmp_path: Path) -> None:
    database = make_database(tmp_path, "one study")
    with closing(sqlite3.connect(database, isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        tab.open("/study", database)
        assert tab.page.locator('[data-testid="stAlertContentError"]').count() == 0


def test_pages_that_are_open_show_what_is_new(tab: Tab, tmp_path: Path) -> None:
    database = make_database(tmp_path, "empty")
    with open_store(database) as store:
        study_id = add_study(store, tmp_path, is_finished=False)
        training = add_training(store, 0, "goes-on", status="ROLLING")
        arm = store.list_experiments(study_id)[0]

        tab.open("/study", database)
        run = store.claim_run(arm.id, 70, "seventieth")
        tab.page.get_by_text("9 / 11", exact=True).wait_for()
        store.set_study_status(study_id, StudyStatus.FINISHED, "all is said")
        tab.page.get_by_text("all is said").wait_for()
        # What is over is not asked about any more.
        tab.page.get_by_text("Live", exact=True).wait_for(state="detached")

        store.update_run(run.id, status=RunStatus.LAUNCHING)
        store.update_run(run.id, status=RunStatus.RUNNING)
        tab.open(f"/run?run={run.id}", database)
        store.record_metrics(run.id, {step: {"critic/score/mean": 0.1 * step} for step in range(1, 4)})
        tab.page.locator('[data-testid="stVegaLiteChart"]').first.wait_for()

        tab.open(f"/training?training={training.id}", database)
        store.add_to_training(
            training.id, TrainingNews(points=(TrainingPoint(training.id, "brand/new", 4, 0.5, 1_795_000_020.0),))
        )
        record_state(store, training.key, settings={"total_steps": 4}, status="COMPLETE", step=4)
        tab.page.get_by_text("4 / 4", exact=True).wait_for()
        tab.settle()


def test_a_live_page_on_which_nothing_happens_is_not_drawn_again(browser: Browser, tab: Tab, tmp_path: Path) -> None:
    database = make_database(tmp_path, "empty")
    with open_store(database) as store:
        add_study(store, tmp_path, is_finished=False)
    watching = open_tab(browser, tab.url, tab.log)
    received: list[int] = []
    watching.page.on("websocket", lambda socket: socket.on("framereceived", lambda frame: received.append(len(frame))))
    watching.open("/study", database)
    drawn = sum(received)
    # Three looks at the token take less than the page takes once.
    watching.page.wait_for_timeout(10_000)
    assert sum(received) - drawn < drawn
    watching.settle()
    watching.page.context.close()


@pytest.fixture(scope="module")
def clicked(home: Path) -> tuple[Path, str]:
    """A database with episodes and calls that are hard to show, and the id of its study."""
    ids: list[str] = []

    def fill(store: ExperimentStore, folder: Path) -> None:
        ids.append(add_study(store, folder, is_finished=False))
        record_calls(store, ids[0])
        record_training(store)

    (home / "clicked").mkdir()
    return create_database(home / "clicked", fill), ids[0]


def test_a_page_opens_where_the_theme_is_dark(browser: Browser, tab: Tab, databases: dict[str, Path]) -> None:
    dark = open_tab(browser, tab.url, tab.log, "dark")
    dark.open("/study", databases["one study"])
    assert dark.page.locator('[data-testid="stAlertContentError"]').count() == 0
    dark.page.context.close()


def test_an_episode_that_is_clicked_outlives_a_reload_and_its_group_is_a_click_away(
    tab: Tab, clicked: tuple[Path, str]
) -> None:
    # A search by its words finds the one hostile episode of the first step.
    tab.open("/episodes?step_to=1&text=alert(1)", clicked[0])
    tab.select_row(0)
    tab.page.get_by_text("Its group").wait_for()
    assert "ep-1-7" in tab.page.url
    tab.page.reload()
    tab.page.get_by_text("Its group").wait_for()
    assert f"Reverse: {HOSTILE}" in tab.settle()
    tab.select_row(3, table=1)
    tab.page.get_by_text("drow1", exact=True).wait_for()
    assert "ep-1-4" in tab.page.url
    tab.settle()


def test_a_call_that_is_clicked_is_shown_as_text(tab: Tab, clicked: tuple[Path, str]) -> None:
    database, study_id = clicked
    tab.open(f"/study?study={study_id}&section=Model+calls", database)
    tab.select_row(0, table=2)
    tab.page.get_by_text("First I look.").wait_for()
    assert f"{HOSTILE} **bold** :red[no]" in tab.settle()
    assert "call=1" in tab.page.url


def test_a_server_is_followed_from_connecting_to_disconnecting(
    tab: Tab, clicked: tuple[Path, str], swarm_process: str
) -> None:
    tab.open("/servers", clicked[0])
    tab.page.get_by_label("Address").fill(swarm_process)
    tab.page.get_by_role("button", name="Connect").click()
    tab.page.get_by_text("Episodes under way").wait_for()
    job = {"engine": "fake", "total_steps": 7}
    httpx.put(f"{swarm_process}/v1/swarm/job", json={"job": job}).raise_for_status()
    httpx.post(f"{swarm_process}/v1/swarm/engine/start", json={}).raise_for_status()
    tab.page.get_by_text("0 / 7").wait_for()
    tab.page.get_by_role("button", name="Disconnect").click()
    tab.page.get_by_role("button", name="Connect").wait_for()


def test_a_click_on_an_arm_of_the_tree_shows_that_arm(tab: Tab, tmp_path: Path) -> None:
    with open_store(tmp_path / "research.db") as store:
        ExploringStudy(store, tmp_path).explore(2)
    tab.open("/study?section=Search", tmp_path / "research.db")
    dots = tab.page.locator('[data-testid="stVegaLiteChart"] g.mark-symbol path[aria-label*="Arm: verifier"]')
    dots.last.click(force=True)
    tab.page.get_by_text("Held-out attempts: 3 of 32 attempts pass").wait_for()
