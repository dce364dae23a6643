"""kill -9 and SIGTERM of the researcher in one study: it goes on where it was, and nothing is done twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments_db import ExperimentStore, RunStatus, StoreError, StudyStatus, open_store
from researcher.report.numbers.amounts import EPISODES
from swarm.processes.child import process_start

TOPIC = "tool use: KL or no KL?"
FLAGS = [
    "--planner", "rules", "--engine", "fake", "--seeds", "1", "--steps", "3", "--eval-episodes", "4", "--parallel", "1",
]  # fmt: skip
TIMEOUT_S = 240.0


class Researcher:
    """The command line in processes of their own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.database = home / "research.db"
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        with (self.home / "stderr.log").open("a") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "researcher.cli", *arguments, "--home", str(self.home)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._started.append(process)
        return process

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate(timeout=10)

    def await_event(self, process: subprocess.Popen[str], kind: str, count: int = 1) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while self._count(kind) < count:
            assert process.poll() is None, f"it ended by itself: {self.messages()[-2000:]}"
            assert time.monotonic() < deadline, f"no {kind} within {TIMEOUT_S} s"
            time.sleep(0.2)

    def messages(self) -> str:
        return (self.home / "stderr.log").read_text()

    def end_after(self, process: subprocess.Popen[str], kind: str, count: int, number: signal.Signals) -> None:
        """Send a signal once the study has so many events of this kind, and wait for the end."""
        self.await_event(process, kind, count)
        os.kill(process.pid, number)
        process.communicate(timeout=TIMEOUT_S)

    def _count(self, kind: str) -> int:
        try:
            with open_store(self.database, read_only=True) as store:
                studies = store.list_studies()
                events = store.list_events(studies[0].id, limit=None) if studies else []
                return Counter(event.kind for event in events)[kind]
        except StoreError:
            # Not there yet, or just being made.
            return 0


@pytest.fixture
def researcher(tmp_path: Path) -> Iterator[Researcher]:
    researcher = Researcher(tmp_path)
    yield researcher
    researcher.close()


def _finished(store: ExperimentStore, study_id: str) -> dict[str, tuple[float | None, float]]:
    """Finished runs with when they ended and their final score."""
    runs = store.list_runs(study_id=study_id, statuses=[RunStatus.FINISHED])
    scores = {item.run_id: item.mean for item in store.list_evaluations(study_id=study_id, phase="final")}
    return {run.id: (run.finished_at, scores[run.id]) for run in runs}


def _children_of(home: Path) -> list[int]:
    """Processes of this host that work for the study in `home`."""
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                command = (folder / "cmdline").read_bytes().decode(errors="replace")
                where = os.readlink(folder / "cwd")
            except OSError:
                continue
            if (str(home) in command or str(home) in where) and process_start(int(folder.name)) is not None:
                found.append(int(folder.name))
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "points",
    [
        pytest.param(
            [("run.training", 1, signal.SIGKILL), ("run.training", 2, signal.SIGTERM)], marks=pytest.mark.slow
        ),
        pytest.param(
            [
                (kind, 1, signal.SIGKILL)
                for kind in ("plan.made", "run.launched", "run.training", "run.finished", "test.opened")
            ],
            marks=pytest.mark.faults,
        ),
    ],
    ids=["in a run", "at many points"],
)
def test_ended_study_goes_on_and_repeats_nothing_that_was_finished(
    researcher: Researcher, points: list[tuple[str, int, signal.Signals]]
) -> None:
    kept: dict[str, tuple[float | None, float]] = {}
    # Steps enough to be in a run when the signal comes.
    words = ["start", "--topic", TOPIC, *FLAGS, "--steps", "8"]
    for kind, count, number in points:
        process = researcher.start(*words)
        researcher.end_after(process, kind, count, number)
        with open_store(researcher.database) as store:
            (study,) = store.list_studies()
            now = _finished(store, study.id)
            if number is signal.SIGTERM:
                # It ends in order: nothing works on, and the study says why it stands still.
                assert process.returncode == 143
                assert _children_of(researcher.home) == []
                assert (study.status, study.status_reason) == (StudyStatus.PAUSED, "SIGTERM")
        assert now.items() >= kept.items()
        kept, words = now, ["resume", study.id]

    ended = researcher.start("resume", study.id, "--json")
    out, _ = ended.communicate(timeout=TIMEOUT_S)

    assert ended.returncode == 0, researcher.messages()[-2000:]
    assert Path(json.loads(out)["report"]).is_file()
    with open_store(researcher.database) as store:
        assert store.get_study(study.id).status is StudyStatus.FINISHED
        runs = store.list_runs(study_id=study.id)
        # Its own servers come back with the runs that they had: none is begun anew.
        assert [(run.attempt, run.status) for run in runs] == [(1, RunStatus.FINISHED)] * 2
        for run in runs:
            assert [point.step for point in store.list_metrics([run.id], names=[EPISODES])] == list(range(1, 9))
        assert _finished(store, study.id).items() >= kept.items()
        (finding,) = store.list_findings(study_id=study.id)
        assert set(finding.run_ids) == {run.id for run in runs}
        assert len(store.list_evaluations(study_id=study.id, phase="final")) == 2
    assert _children_of(researcher.home) == []
