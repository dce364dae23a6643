"""`swarm overwatch` on real servers: live, once, out of reach, and on a real terminal."""

from __future__ import annotations

import asyncio
import html
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import run_swarm
from server_processes import free_port
from tests_support import begin, run_batch, wait_for_state, wait_for_step

from swarm.job import TrainJob
from swarm.overwatch.dashboard import Dashboard
from swarm.overwatch.snapshot import Watcher

OVERWATCH = [sys.executable, "-m", "swarm.cli", "overwatch"]
TOKEN = "commander-token-0123"
OBSERVER = "observer-token-01234"
FAKE_JOB = TrainJob(engine="fake", batch_size=1, num_repeat=2, drain_timeout_s=1, project_name="p", experiment_name="e")


@pytest.fixture
def trained(start_server: Any) -> str:
    """The URL of a server that has finished one step and has an episode running."""
    url = start_server(FAKE_JOB).url
    with httpx.Client(base_url=url, timeout=60) as http:
        wait_for_state(http, "ROLLING")
        run_batch(http, tasks=1, repeats=2)
        wait_for_step(http, 1)
        begin(http, client_id="laptop-7", task_id="the-slow-one")
    return url


def screen_of(app: Dashboard) -> str:
    return html.unescape(app.export_screenshot()).replace("\xa0", " ")


async def until(condition: Callable[[], bool], pilot: Any, timeout_s: float = 240) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await pilot.pause(0.05)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_the_dashboard_shows_the_server_and_leaves_it_alone(trained: str, size: tuple[int, int]) -> None:
    fragments = ("ROLLING", "p/e on nano", "step 1", "reward 0.500", "the-slo", "batch.trained", "Quit", "Pause")

    async def watch() -> None:
        app = Dashboard(Watcher(trained, None), every_s=0.2)
        async with app.run_test(size=size) as pilot:
            await until(lambda: all(fragment in screen_of(app) for fragment in fragments), pilot)
            await pilot.press("q")
        assert app.return_code == 0

    asyncio.run(watch())
    assert httpx.get(f"{trained}/v1/swarm/status", timeout=60).json()["state"] == "ROLLING"


def test_pause_stops_looking_and_refresh_looks_at_once(trained: str) -> None:
    async def watch() -> None:
        app = Dashboard(Watcher(trained, None), every_s=0.2)
        async with app.run_test(size=(80, 24)) as pilot:
            await until(lambda: "laptop-7" in screen_of(app), pilot)
            await pilot.press("p")
            await until(lambda: "paused" in screen_of(app), pilot)
            async with httpx.AsyncClient(base_url=trained, timeout=60) as http:
                await http.post("/v1/swarm/episodes/begin", json={"client_id": "late-comer"})
            await pilot.pause(0.6)
            assert "late-comer" not in screen_of(app)
            await pilot.press("r")
            await until(lambda: "late-comer" in screen_of(app), pilot)
            await pilot.press("p")
            await until(lambda: "paused" not in screen_of(app), pilot)

    asyncio.run(watch())


def test_the_dashboard_survives_the_end_of_the_server_and_finds_the_next_one(start_server: Any) -> None:
    port = free_port()

    async def watch() -> None:
        app = Dashboard(Watcher(f"http://127.0.0.1:{port}", None), every_s=0.1)
        async with app.run_test(size=(80, 24)) as pilot:
            first = start_server(port=port)
            await until(lambda: "OFFLINE" in screen_of(app), pilot)
            first.stop()
            await until(lambda: "unreachable since" in screen_of(app) and "trying" in screen_of(app), pilot)
            start_server(port=port)
            await until(lambda: "unreachable" not in screen_of(app) and "OFFLINE" in screen_of(app), pilot, 30)

    asyncio.run(watch())


def test_once_prints_one_snapshot_and_needs_no_terminal(trained: str) -> None:
    for arguments in ([trained, "--once"], [trained]):
        done = run_swarm("overwatch", *arguments)
        assert (done.exit_code, done.stderr) == (0, "")
        for fragment in ("ROLLING", "p/e on nano", "reward 0.500", "laptop-7", "batch.trained"):
            assert fragment in done.stdout, fragment
        assert "\x1b" not in done.stdout


def test_once_as_json_is_the_whole_snapshot(trained: str) -> None:
    done = run_swarm("overwatch", trained, "--once", "--json")
    snapshot = json.loads(done.stdout)
    assert (done.exit_code, snapshot["url"], snapshot["status"]["state"]) == (0, trained, "ROLLING")
    assert snapshot["rewards"] == [{"step": 1, "reward": 0.5}]
    assert "batch.trained" in {event["kind"] for event in snapshot["events"]}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["http://127.0.0.1:9", "--once"], 5),
        (["not-a-url", "--once"], 2),
        (["http://127.0.0.1:9", "--json"], 2),
        (["http://127.0.0.1:9", "--once", "--every", "0"], 2),
    ],
    ids=["unreachable", "no URL", "json without once", "no interval"],
)
def test_failures_have_the_documented_exit_codes(arguments: list[str], code: int) -> None:
    done = run_swarm("overwatch", *arguments)
    assert (done.exit_code, done.stdout) == (code, "")
    assert "Traceback" not in done.stderr


def test_a_reader_needs_the_observer_token_only(start_server: Any) -> None:
    url = start_server(token=TOKEN, observer_token=OBSERVER).url
    assert run_swarm("overwatch", url, "--once").exit_code == 4
    assert run_swarm("overwatch", url, "--once", SWARM_TOKEN="wrong-token-0123456789").exit_code == 4
    seen = run_swarm("overwatch", url, "--once", SWARM_OBSERVER_TOKEN=OBSERVER)
    assert seen.exit_code == 0 and "OFFLINE" in seen.stdout


@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
def test_on_a_real_terminal_q_ends_it_with_exit_code_0(start_server: Any, tmp_path: Path) -> None:
    url = start_server().url
    tmux = ["tmux", "-S", str(tmp_path / "tmux")]
    code = tmp_path / "code"
    program = f"{' '.join(OVERWATCH)} {url}; echo $? > {code}"
    subprocess.run([*tmux, "new-session", "-d", "-x", "80", "-y", "24", program], check=True, timeout=60)

    def screen() -> str:
        return subprocess.run([*tmux, "capture-pane", "-p"], capture_output=True, text=True, timeout=60).stdout

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, screen()
            time.sleep(0.1)

    wait(lambda: "OFFLINE" in screen() and "Quit" in screen())
    subprocess.run([*tmux, "send-keys", "q"], check=True, timeout=60)
    wait(code.exists)
    wait(lambda: code.read_text() == "0\n")
