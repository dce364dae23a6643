"""Where checkpoints lie, in which order they are tried, and which are removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarm.job import TrainJob
from swarm.trainer.checkpoints import Retention, RunCheckpoints


@pytest.fixture
def checkpoints(tmp_path: Path) -> RunCheckpoints:
    found = RunCheckpoints(tmp_path / "run-0001")
    for step in (2, 4, 6):
        found.place(step, kept=True).mkdir(parents=True)
    for step in (3, 5, 7, 9):
        found.place(step, kept=False).mkdir(parents=True)
    return found


def test_newest_of_both_kinds_come_first_and_later_steps_not_at_all(checkpoints: RunCheckpoints) -> None:
    assert [path.name for path in checkpoints.candidates(6)] == [f"step-{step:06d}" for step in (6, 5, 4, 3, 2)]
    assert checkpoints.candidates(1) == []


def test_a_run_without_checkpoints_has_no_candidates(tmp_path: Path) -> None:
    assert RunCheckpoints(tmp_path / "nothing").candidates(10) == []


def test_pruning_keeps_what_was_asked_for_and_the_two_newest_of_the_rest(checkpoints: RunCheckpoints) -> None:
    checkpoints.prune()
    assert [path.name[-1] for path in checkpoints.candidates(100)] == ["9", "7", "6", "4", "2"]


def test_pruning_removes_what_a_killed_write_left(checkpoints: RunCheckpoints) -> None:
    for kept in (True, False):
        draft = checkpoints.place(8, kept=kept).with_name(".step-000008.draft")
        draft.mkdir()
        (draft / "model.safetensors").touch()
    checkpoints.prune()
    assert not list(checkpoints.directory.glob("*/.step-*"))


def test_later_checkpoints_are_out_of_the_way_and_those_asked_for_still_there(checkpoints: RunCheckpoints) -> None:
    checkpoints.set_aside(4)
    assert [path.name[-1] for path in checkpoints.candidates(100)] == ["4", "3", "2"]
    checkpoints.place(6, kept=True).mkdir()
    checkpoints.set_aside(4)
    aside = sorted(path.name for path in checkpoints.directory.glob("checkpoints/rewound-*"))
    assert aside == ["rewound-1-step-000006", "rewound-2-step-000006"]


VALUES: dict[int, float | None] = {1: 0.1, 2: 0.9, 3: 0.5, 4: 0.7, 5: 0.2}


@pytest.mark.parametrize(
    ("last", "best", "metric", "values", "outdated"),
    [
        (2, 1, "score", VALUES, [1, 3]),
        (1, 2, "score", VALUES, [1, 3]),
        (2, 0, "score", VALUES, [1, 2, 3]),
        (5, 3, "score", VALUES, []),
        # A minus makes the lowest best.
        (2, 1, "-score", VALUES, [2, 3]),
        # Of equals the newer stays, and a step without the metric is worst.
        (1, 1, "score", {1: 0.5, 2: 0.5, 3: None, 4: 0.0}, [1, 3]),
        (1, 1, "score", {1: None, 2: float("nan"), 3: None, 4: None}, [1, 2]),
        (1, 1, "-score", {1: 0.5, 2: None, 3: None}, [2]),
    ],
)
def test_the_newest_stay_and_the_best_of_the_older_ones(
    last: int, best: int, metric: str, values: dict[int, float | None], outdated: list[int]
) -> None:
    by = {"keep_best": best, "keep_best_metric": metric} if best else {}
    kept = Retention.of(TrainJob.model_validate({"save_freq": 1, "keep_last": last, **by}))
    assert kept is not None and (not best or kept.metric == "score")
    assert sorted(kept.outdated(values)) == outdated


def test_a_job_without_keep_last_keeps_all() -> None:
    assert Retention.of(TrainJob(save_freq=1)) is None


def test_a_checkpoint_that_was_asked_for_is_none_of_the_schedule(checkpoints: RunCheckpoints) -> None:
    checkpoints.mark_asked(4)
    assert checkpoints.scheduled_steps() == [2, 6]
    checkpoints.remove_scheduled(2)
    checkpoints.set_aside(3)
    checkpoints.place(4, kept=True).mkdir()
    assert checkpoints.scheduled_steps() == [4], "another one took its place after the run went back"


def test_a_run_that_is_over_leaves_its_newest_checkpoint_and_what_was_kept(checkpoints: RunCheckpoints) -> None:
    assert [path.name[-1] for path in checkpoints.superfluous()] == ["3", "5", "7"]
    checkpoints.retire()
    assert [path.name[-1] for path in checkpoints.candidates(100)] == ["9", "6", "4", "2"]
    checkpoints.place(9, kept=True).mkdir()
    checkpoints.retire()
    assert not (checkpoints.directory / "recovery").exists()
    assert [path.name[-1] for path in checkpoints.candidates(100)] == ["9", "6", "4", "2"]
