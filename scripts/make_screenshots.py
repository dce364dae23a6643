"""Makes the pictures of the documentation from a real training: it trains, opens the explorer and takes screenshots.

python scripts/make_screenshots.py [FOLDER]    docs/images by default; takes some minutes, needs Debian's chromium
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
from playwright.sync_api import Page, sync_playwright

from experiments_db import StoreError, open_store

ROOT = Path(__file__).parents[1]
CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
TRAINING = "--env", "sort", "--eval-every", "10"
STEP = 40
"""The step at which the pictures are taken, of 60: the training is still running then."""
PATIENCE_S = 600.0
SETTLED_MS = 3000


@contextmanager
def explorer(home: Path) -> Generator[str]:
    """Yield the address of an explorer of the trainings below `home`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "streamlit", "run", str(ROOT / "ui" / "app.py")]
    options = ["--server.port", str(port), "--server.headless", "true", "--browser.gatherUsageStats", "false"]
    with subprocess.Popen([*command, *options], env={**os.environ, "SWARM_HOME": str(home)}) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            until_it_answers(url)
            yield url
        finally:
            process.terminate()


def until_it_answers(url: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            httpx.get(f"{url}/healthz", timeout=5).raise_for_status()
            return
        except httpx.HTTPError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def until_step(database: Path, step: int) -> None:
    """Wait until the training has a step."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with suppress(StoreError), open_store(database, read_only=True) as store:
            if any(training.step >= step for training in store.list_trainings()):
                return
        assert time.monotonic() < deadline, "the training does not get on"
        time.sleep(0.5)


def take(page: Page, url: str, folder: Path) -> None:
    """Take the pictures of the page of the newest training."""
    page.goto(f"{url}/training")
    page.get_by_text("Held-out score").first.wait_for()
    page.wait_for_timeout(SETTLED_MS)
    page.screenshot(path=folder / "training.png")
    page.get_by_role("tab", name="Trained episodes").click()
    page.wait_for_timeout(SETTLED_MS)
    page.get_by_text("logprob", exact=True).click()
    page.wait_for_timeout(SETTLED_MS)
    page.screenshot(path=folder / "episode.png")


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    recorded = {name: value for name, value in os.environ.items() if name not in {"SWARM_NO_RECORD", "SWARM_HOME"}}
    with TemporaryDirectory() as directory:
        runs = Path(directory) / "runs"
        command = [sys.executable, "-m", "swarm.cli", "train", *TRAINING]
        with subprocess.Popen(command, cwd=directory, env=recorded) as training:
            until_step(runs / "research.db", STEP)
            with explorer(runs) as url, sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
                take(browser.new_page(viewport={"width": 1280, "height": 900}), url, folder)
                browser.close()
            training.wait(timeout=PATIENCE_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images")
