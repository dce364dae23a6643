"""A study under random faults comes out as the same study without them."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos.campaign import Attack, play, play_both
from chaos.faults import KILLS, FaultKind, draw
from chaos.study import ChaosStudy

SEED, FAULTS = 7, 10
STUDY = ChaosStudy((1e-3, 1e-4), seeds=3, plans=1, steps=20, eval_episodes=10)


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_study_under_random_faults_comes_out_as_without_them(tmp_path: Path) -> None:
    control, attacked = play_both(tmp_path, STUDY, seed=SEED, faults=FAULTS)

    assert control.is_passed, control
    assert attacked.is_passed, attacked
    assert attacked.outcome.attempts["finished"] == STUDY.runs


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_an_unattended_study_outlives_random_kills(tmp_path: Path) -> None:
    played = play(tmp_path / "killed", STUDY, Attack(SEED, count=600, mean_pause_s=3.0, only=KILLS))

    assert played.is_passed, played
    assert played.faults and {fault.kind for fault in played.faults} <= set(KILLS)


def test_schedule_is_drawn_from_its_seed_alone() -> None:
    kinds = {FaultKind.SERVER_KILLED: 2, FaultKind.DISK_FULL: 1}

    def take(seed: int) -> list[tuple[FaultKind, float, float]]:
        drawn = draw(seed, kinds, 2.0)
        return [(each.kind, each.pause_s, each.chance.random()) for each, _ in zip(drawn, range(30), strict=False)]

    assert take(1) == take(1) != take(2)
    assert sorted(kind for kind, _, _ in take(1)) == sorted([*kinds, FaultKind.SERVER_KILLED] * 10)
    assert all(1.0 <= pause_s <= 3.0 for _, pause_s, _ in take(1))
