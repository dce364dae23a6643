"""A study under random faults comes out as the same study without them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from chaos.checks import check
from chaos.deployment import Deployment
from chaos.injector import Injector
from chaos.study import ChaosStudy

SEED, FAULTS = 7, 10
STUDY = ChaosStudy((1e-3, 1e-4), seeds=3, steps=20, eval_episodes=10)
STUDY_LIMIT_S = 3600.0
SPREAD = 0.6
"""The part of a study's time in peace over which faults are spread: they have to come before its end."""

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]


def test_study_under_random_faults_comes_out_as_without_them(tmp_path: Path) -> None:
    began = time.monotonic()
    with Deployment(tmp_path / "control", STUDY, is_hostile=False) as peaceful:
        peaceful.researcher.wait(STUDY_LIMIT_S)
        without = check(peaceful, STUDY.runs)
    # A slow machine gets fewer faults a minute.
    pause_s = SPREAD * (time.monotonic() - began) / FAULTS
    with Deployment(tmp_path / "attacked", STUDY, is_hostile=True) as attacked:
        injector = Injector(attacked, SEED, FAULTS, pause_s)
        injector.start()
        attacked.researcher.wait(STUDY_LIMIT_S)
        injector.join()
        assert check(attacked, STUDY.runs) == without
    assert len(injector.hits) >= FAULTS, injector.hits
