"""Every page of the explorer in a real browser on every kind of database: nothing fails, nothing foreign runs."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pytest
from explorer_databases import FILLED, add_training, make_database
from explorer_server import serve
from explorer_study import add_study
from playwright.sync_api import Browser, Page, sync_playwright

from experiments_db import RunStatus, TrainingNews, TrainingPoint, open_store

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

UNREADABLE = {
    "of another version": "another version",
    "no database": "is not a SQLite database",
    "missing": "There is no database at",
}
"""What the explorer says of a database that it cannot read."""

DAMAGED = {
    "of another program": "holds other tables",
    "cut off": "is not usable",
}

OWN = ("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:")
CHARTED = ("one study", "hostile names and tokens", "strange numbers")
PAGE_TIMEOUT_MS = 60_000


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


def open_tab(browser: Browser, url: str, log: Path) -> Tab:
    page = browser.new_context(viewport={"width": 1360, "height": 1100}).new_page()
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
    return {
        kind: make_database(home / str(number), kind) for number, kind in enumerate((*FILLED, *UNREADABLE, *DAMAGED))
    }


@pytest.mark.parametrize("address", PAGES)
@pytest.mark.parametrize("kind", FILLED)
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


@pytest.mark.parametrize("address", [*PAGES[:3], *(pytest.param(each, marks=pytest.mark.slow) for each in PAGES[3:])])
@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_page_says_what_is_wrong_with_a_database(
    tab: Tab, databases: dict[str, Path], kind: str, address: str
) -> None:
    assert UNREADABLE[kind] in tab.open(address, databases[kind])


@pytest.mark.parametrize("kind", DAMAGED)
def test_the_explorer_says_what_else_may_be_wrong_with_a_database(
    tab: Tab, databases: dict[str, Path], kind: str
) -> None:
    assert DAMAGED[kind] in tab.open("/", databases[kind])


@pytest.mark.parametrize("address", PAGES)
def test_a_page_shows_a_database_that_another_process_is_writing(tab: Tab, tmp_path: Path, address: str) -> None:
    database = make_database(tmp_path, "one study")
    with closing(sqlite3.connect(database, isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        tab.open(address, database)
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

        store.update_run(run.id, status=RunStatus.LAUNCHING)
        store.update_run(run.id, status=RunStatus.RUNNING)
        tab.open(f"/run?run={run.id}", database)
        store.record_metrics(run.id, {step: {"critic/score/mean": 0.1 * step} for step in range(1, 4)})
        tab.page.locator('[data-testid="stVegaLiteChart"]').first.wait_for()

        tab.open(f"/training?training={training.id}", database)
        store.add_to_training(
            training.id, TrainingNews(points=(TrainingPoint(training.id, "brand/new", 4, 0.5, 1_795_000_020.0),))
        )
        store.record_training(
            training.key, project="p", experiment="went-on", model="nano", engine="local", home="h", launch_key=None,
            settings={"total_steps": 4}, changes={}, status="COMPLETE", reason=None, step=4, begun_at=1.0,
        )  # fmt: skip
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
