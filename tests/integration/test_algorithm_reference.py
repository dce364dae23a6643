"""The table of estimators and losses has all of verl's, and a job is taken or refused as it says."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from swarm.errors import JobInvalid
from swarm.estimators import ESTIMATORS
from swarm.job import PolicyLoss, build_job


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, POLICY_LOSS_REGISTRY


NEEDED: dict[str, dict[str, Any]] = {"gdpo": {"gdpo_reward_keys": ["right"]}, "dro": {"dro_beta": 0.1}}


def test_every_estimator_of_verl_is_served_by_an_engine() -> None:
    assert set(ESTIMATORS) == set(ADV_ESTIMATOR_REGISTRY)


def test_every_loss_of_verl_is_served() -> None:
    assert set(get_args(PolicyLoss)) == set(POLICY_LOSS_REGISTRY)


@pytest.mark.parametrize("engine", ["local", "verl"])
@pytest.mark.parametrize("name", sorted(ESTIMATORS))
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
@pytest.mark.parametrize("name", sorted(get_args(PolicyLoss)))
def test_a_job_with_any_loss_is_taken_by_either_engine(name: str, engine: str) -> None:
    assert build_job({"policy_loss": name, "engine": engine, **NEEDED.get(name, {})}).policy_loss == name
