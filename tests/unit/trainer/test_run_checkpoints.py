"""Where checkpoints lie, in which order they are tried, and which are removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarm.trainer.checkpoints import RunCheckpoints


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
