"""The docs say of every estimator and loss that verl has, and of no other, which engine serves it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY

from swarm.errors import JobInvalid
from swarm.estimators import ESTIMATORS
from swarm.job import PolicyLoss, build_job

SCRIPT = Path(__file__).parents[2] / "scripts" / "algorithm_reference.py"
NEEDED: dict[str, dict[str, Any]] = {"gdpo": {"gdpo_reward_keys": ["right"]}, "dro": {"dro_beta": 0.1}}


def test_the_page_says_what_the_code_says() -> None:
    checked = subprocess.run([sys.executable, str(SCRIPT), "--check"], timeout=60)
    assert checked.returncode == 0, "run scripts/algorithm_reference.py"


def test_every_estimator_of_verl_is_served_by_an_engine() -> None:
    assert set(ESTIMATORS) == set(ADV_ESTIMATOR_REGISTRY)


def test_every_loss_of_verl_is_served() -> None:
    assert set(get_args(PolicyLoss)) == set(POLICY_LOSS_REGISTRY)


@pytest.mark.parametrize("engine", ["local", "verl"])
@pytest.mark.parametrize("name", sorted(ADV_ESTIMATOR_REGISTRY))
def test_a_job_is_taken_or_refused_as_the_table_says(name: str, engine: Any) -> None:
    job = {"algorithm": name, "engine": engine, **NEEDED.get(name, {})}
    why = ESTIMATORS[name].unserved.get(engine)
    if why is None:
        assert build_job(job).algorithm == name
        return
    with pytest.raises(JobInvalid) as refused:
        build_job(job)
    assert name in refused.value.message and why in refused.value.message


@pytest.mark.parametrize("engine", ["local", "verl"])
@pytest.mark.parametrize("name", sorted(POLICY_LOSS_REGISTRY))
def test_a_job_with_any_loss_is_taken_by_either_engine(name: str, engine: str) -> None:
    assert build_job({"policy_loss": name, "engine": engine, **NEEDED.get(name, {})}).policy_loss == name
