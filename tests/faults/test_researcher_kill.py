"""kill -9 and SIGTERM of the researcher in one study: it goes on where it was, and nothing is done twice."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.researcher_commands import ResearcherCommands

from experiments_db import ExperimentStore, RunStatus, StudyStatus, open_store
from researcher.report.numbers.curves import EPISODES

TOPIC = "tool use: KL or no KL?"
FLAGS = [
    "--planner", "rules", "--engine", "fake", "--seeds", "1", "--steps", "3", "--eval-episodes", "4", "--parallel", "1",
]  # fmt: skip


@pytest.fixture
def researcher(tmp_path: Path) -> Iterator[ResearcherCommands]:
    researcher = ResearcherCommands(tmp_path)
    yield researcher
    researcher.close()


def _finished(store: ExperimentStore, study_id: str) -> dict[str, tuple[float | None, float]]:
    """Finished runs with when they ended and their final score."""
    runs = store.list_runs(study_id=study_id, statuses=[RunStatus.FINISHED])
    scores = {item.run_id: item.mean for item in store.list_evaluations(study_id=study_id, phase="final")}
    return {run.id: (run.finished_at, scores[run.id]) for run in runs}


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
    researcher: ResearcherCommands, points: list[tuple[str, int, signal.Signals]]
) -> None:
    kept: dict[str, tuple[float | None, float]] = {}
    # Steps enough to be in a run when the signal comes.
    words = ["start", "--topic", TOPIC, *FLAGS, "--steps", "8"]
    for kind, count, number in points:
        process = researcher.start(*words)
        researcher.await_event(process, kind, count)
        researcher.end(process, number)
        with open_store(researcher.database) as store:
            (study,) = store.list_studies()
            now = _finished(store, study.id)
            if number is signal.SIGTERM:
                # It ends in order: nothing works on, and the study says why it stands still.
                assert process.returncode == 143
                assert researcher.children() == []
                assert (study.status, study.status_reason) == (StudyStatus.PAUSED, "SIGTERM")
        assert now.items() >= kept.items()
        kept, words = now, ["resume", study.id]

    out = researcher.finish("resume", study.id, "--json")

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
    assert researcher.children() == []
