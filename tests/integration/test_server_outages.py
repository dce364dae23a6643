"""Studies whose servers go away at any moment: every run is trained and scored, and none is started twice."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from server_processes import ServerProcess
from simulated_study import reports_without_images
from slow_samplers import Pace
from typer.testing import CliRunner

from experiments_db import ExperimentStore, RunStatus, StudyStatus, open_store
from researcher.cli import app
from researcher.execution.early_stopping import StoppingLimits
from researcher.loop.session import work_on
from researcher.study.requests import create_study
from researcher.study.settings import StudySettings
from swarm import SwarmClient

pytestmark = pytest.mark.timeout(600)

TOPIC = "batch size 2 or 3 for tool use at equal steps"
ARMS, SEEDS, STEPS, EPISODES = 2, 2, 6, 6
CELLS = ARMS * SEEDS
PATIENCE_S = 400
LIMITS = StoppingLimits(dead_steps=1_000_000, outage_s=1.0)

MakeServer = Callable[..., ServerProcess]


class StudyAtWork:
    """A study in a thread, watched through its database."""

    def __init__(self, home: Path, urls: Sequence[str], *, seeds: int = SEEDS, **more: Any) -> None:
        self.seeds, self.cells = seeds, ARMS * seeds
        settings = StudySettings(
            engine="fake", steps=STEPS, seeds=seeds, eval_episodes=EPISODES, servers=tuple(urls), max_runs=self.cells,
            **more,
        )  # fmt: skip
        self.store: ExperimentStore = open_store(home / "research.db")
        self.urls = tuple(urls)
        self.study_id = create_study(self.store, TOPIC, settings).id
        self._thread = threading.Thread(
            target=work_on, args=(self.store, self.study_id, home), kwargs={"limits": LIMITS}, daemon=True
        )
        self._thread.start()

    def await_event(self, kind: str, count: int = 1) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while Counter(event.kind for event in self.store.list_events(self.study_id, limit=None))[kind] < count:
            assert self._thread.is_alive(), f"it ended without {kind}: {self.story()}"
            assert time.monotonic() < deadline, f"no {kind} came: {self.story()}"
            time.sleep(0.05)

    def story(self) -> str:
        return "\n".join(event.message for event in self.store.list_events(self.study_id, limit=None))

    def await_end(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), self.story()

    def check(self) -> None:
        """Every cell is trained and scored, the final test is whole, and each key was launched once."""
        assert self.store.get_study(self.study_id).status is StudyStatus.FINISHED, self.story()
        runs = self.store.list_runs(study_id=self.study_id)
        finished = {run.id: (run.experiment_id, run.seed) for run in runs if run.status is RunStatus.FINISHED}
        assert len(finished) == len(set(finished.values())) == self.cells, self.story()
        assert {run.status for run in runs} <= {RunStatus.FINISHED, RunStatus.STOPPED}, self.story()
        finals = self.store.list_evaluations(study_id=self.study_id, phase="final")
        assert {item.run_id for item in finals} == set(finished)
        scores = self.store.list_evaluations(study_id=self.study_id, phase="test")
        # Every answer of the fake engine is wrong: the baseline is the winner as well, and the other arm comes second.
        assert len(scores) == 2 * self.seeds, self.story()
        assert "run.unscored" not in {event.kind for event in self.store.list_events(self.study_id, limit=None)}

    def close(self) -> None:
        self.store.close()


@pytest.fixture
def at_work(tmp_path: Path) -> Iterator[Callable[..., StudyAtWork]]:
    begun: list[StudyAtWork] = []

    def begin(urls: Sequence[str], **more: Any) -> StudyAtWork:
        begun.append(StudyAtWork(tmp_path, urls, **more))
        return begun[-1]

    with reports_without_images():
        yield begin
    for each in begun:
        each.close()


def _launches(urls: Sequence[str]) -> Counter[str]:
    """How often each key was launched, by the events in the ledgers of all servers."""
    found: Counter[str] = Counter()
    for url in urls:
        with SwarmClient(url) as client:
            found.update(event.detail["key"] for event in client.past_events() if "key" in event.detail)
    return found


def _check_launches(study: StudyAtWork, urls: Sequence[str]) -> None:
    launches = _launches(urls)
    assert set(launches.values()) == {1}, launches
    finished = study.store.list_runs(study_id=study.study_id, statuses=[RunStatus.FINISHED])
    assert {run.idempotency_key for run in finished} <= set(launches)


@pytest.mark.parametrize(
    ("kind", "count", "seeds"),
    [
        pytest.param("plan.made", 1, 2, marks=pytest.mark.slow),
        pytest.param("run.launched", 2, 2, marks=pytest.mark.slow),
        ("run.training", 1, 1),
        pytest.param("run.training", 1, 2, marks=pytest.mark.slow),
        pytest.param("run.finished", 1, 2, marks=pytest.mark.slow),
        pytest.param("test.opened", 1, 2, marks=pytest.mark.slow),
    ],
)
def test_server_that_dies_and_comes_back_costs_nothing(
    server_process: MakeServer, at_work: Callable[..., StudyAtWork], kind: str, count: int, seeds: int
) -> None:
    first, second = server_process(), server_process()
    study = at_work([first.url, second.url], seeds=seeds)
    study.await_event(kind, count)

    first.kill()
    study.await_event("server.lost")
    first.start()

    study.await_end()
    study.check()
    _check_launches(study, [first.url, second.url])


@pytest.mark.slow
def test_cells_of_a_server_that_never_comes_back_go_to_the_other_one(
    server_process: MakeServer, at_work: Callable[[Sequence[str]], StudyAtWork]
) -> None:
    first, second = server_process(), server_process()
    study = at_work([first.url, second.url])
    study.await_event("run.training", 2)

    first.kill()

    study.await_end()
    study.check()
    assert "is begun anew: its server" in study.story()
    _check_launches(study, [second.url])
    first.start()
    assert set(_launches([first.url, second.url]).values()) == {1}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["run.training", "test.opened"])
def test_study_waits_while_all_its_servers_are_out(
    server_process: MakeServer, at_work: Callable[[Sequence[str]], StudyAtWork], kind: str
) -> None:
    servers = [server_process(), server_process()]
    study = at_work([server.url for server in servers])
    study.await_event(kind)

    for server in servers:
        server.kill()
    study.await_event("servers.lost")
    assert len(study.store.list_events(study.study_id, kind="server.lost", limit=None)) == 2
    assert "0 of 2 servers answer; the study waits until one does" in study.story()
    assert study.store.get_study(study.study_id).status is StudyStatus.RUNNING
    for server in servers:
        server.start()

    study.await_end()
    study.check()
    _check_launches(study, [server.url for server in servers])


@pytest.mark.slow
def test_score_whose_only_checkpoint_is_lost_with_its_server_is_given_up_by_name(
    server_process: MakeServer, at_work: Callable[..., StudyAtWork], tmp_path: Path
) -> None:
    first, second = server_process(), server_process()
    study = at_work([first.url, second.url], max_outage_hours=1 / 3600)
    study.await_event("run.finished", CELLS)

    first.kill()

    study.await_end()
    assert study.store.get_study(study.study_id).status is StudyStatus.FINISHED, study.story()
    tested = study.store.list_runs(study_id=study.study_id, statuses=[RunStatus.FINISHED])
    scored = {item.run_id for item in study.store.list_evaluations(study_id=study.study_id, phase="test")}
    lost = {run.id for run in tested if run.server_url == first.url} - scored
    told = [event.message for event in study.store.list_events(study.study_id, kind="run.unscored", limit=None)]
    assert {run.id for run in tested} == scored | lost and len(told) == len(lost)
    assert all(f"its weights lie on {first.url}, which has not answered" in message for message in told)
    [report] = tmp_path.glob("studies/*/report/report.md")
    said = re.search(r"(\d) of the 4 runs to be tested have no test score", report.read_text())
    assert (int(said[1]) if said else 0) in ({len(lost)} if scored else {0})


FLAGS = ["--planner", "rules", "--engine", "fake", "--seeds", "1", "--steps", "2"]


def _researcher(home: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "researcher.cli", *words, "--home", str(home)]
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


RUN_NAME = "seed-"
"""In the name of what a run trains, and not in that of what a program is checked with."""


def _await_launch(process: subprocess.Popen[str], url: str) -> None:
    """Until the server has a run of the researcher, which is not on record before the base weights are scored."""
    deadline = time.monotonic() + PATIENCE_S
    with SwarmClient(url) as client:
        while RUN_NAME not in (client.status().experiment_name or ""):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_researcher_killed_between_launch_and_record_finds_its_run_again(
    start_server: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace = Pace(stalled_name=RUN_NAME)
    monkeypatch.setattr("swarm.server.http.Backends", pace.backends())
    server = start_server()
    words = ["start", "--topic", TOPIC, *FLAGS, "--eval-episodes", "4", "--servers", server.url]
    process = _researcher(tmp_path, *words)
    _await_launch(process, server.url)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    with open_store(tmp_path / "research.db") as store:
        (study,) = store.list_studies()
        (run,) = store.list_runs(study_id=study.id)
        assert run.status is RunStatus.LAUNCHING

        pace.stalled_name = None
        resumed = CliRunner().invoke(app, ["resume", study.id, "--home", str(tmp_path)])

        assert resumed.exit_code == 0, resumed.stderr
        runs = store.list_runs(study_id=study.id)
        assert [(each.attempt, each.status) for each in runs] == [(1, RunStatus.FINISHED)] * 2
        assert run.id in {each.id for each in runs}
    assert _launches([server.url]) == {each.idempotency_key: 1 for each in runs}
