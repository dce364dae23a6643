"""A short form of `python -m bench chaos`: one study under random faults comes out as the same study without them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.chaos.campaign import Attack, play_both, play_for
from bench.chaos.faults import KILLS, FaultKind, draw
from bench.chaos.study import ChaosStudy

SEED, FAULTS, MEAN_PAUSE_S = 7, 10, 3.0
STUDY = ChaosStudy("lr", (1e-3, 1e-4), seeds=3, plans=1, steps=20, eval_episodes=10, engine="fake")


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_study_under_random_faults_comes_out_as_without_them(tmp_path: Path) -> None:
    control, attacked = play_both(tmp_path, STUDY, Attack(SEED, FAULTS, MEAN_PAUSE_S))

    assert control.is_passed, control.to_json()
    assert attacked.is_passed, attacked.to_json()
    assert attacked.outcome.attempts["finished"] == STUDY.runs
    assert json.dumps(attacked.to_json())


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_unattended_studies_outlive_random_kills(tmp_path: Path) -> None:
    played = play_for(tmp_path, [STUDY], SEED, minutes=30, kills=600)

    assert [each.is_passed for each in played] == [True], [each.to_json() for each in played]
    assert played[0].faults and {fault.kind for fault in played[0].faults} <= set(KILLS)


def test_schedule_is_drawn_from_its_seed_alone() -> None:
    kinds = {FaultKind.SERVER_KILLED: 2, FaultKind.DISK_FULL: 1}

    def take(seed: int) -> list[tuple[FaultKind, float, float]]:
        drawn = draw(seed, kinds, 2.0)
        return [(each.kind, each.pause_s, each.chance.random()) for each, _ in zip(drawn, range(30), strict=False)]

    assert take(1) == take(1) != take(2)
    assert sorted(kind for kind, _, _ in take(1)) == sorted([*kinds, FaultKind.SERVER_KILLED] * 10)
    assert all(1.0 <= pause_s <= 3.0 for _, pause_s, _ in take(1))
