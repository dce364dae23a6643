"""The learning rate of a job that gives none: by the model's name, and by its size where its weights can be read."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from swarm import SwarmClient, TrainJob
from swarm.job import LR_OF_BUNDLED_MODELS, usual_lr
from swarm.job.learning_rate import default_lr
from swarm.model_path import BUNDLED_DIRECTORIES, lr_by_size, stored_parameters


@pytest.fixture(name="small")
def _small(tmp_path: Path) -> Path:
    """Return the directory of a model of the user, as small as nano."""
    return shutil.copytree(BUNDLED_DIRECTORIES["nano"], tmp_path / "small")


@pytest.mark.parametrize(
    ("given", "lr"),
    [
        ({"model": "micro"}, 1e-3),
        ({"model": "micro", "lora_rank": 8}, 3e-3),
        ({"model": "/models/large"}, 1e-6),
        ({"model": "/models/large", "lora_rank": 8}, 1e-5),
        ({"model": "/models/large", "lora_rank": 8, "lr": 3e-6}, 3e-6),
    ],
)
def test_the_default_depends_on_the_model_and_on_an_adapter(given: dict[str, object], lr: float) -> None:
    assert TrainJob.model_validate(given).resolve().lr == lr


def test_a_larger_model_has_a_smaller_rate_down_to_the_published_one() -> None:
    sizes = [10**power for power in range(5, 13)]
    rates = [usual_lr(size, has_adapter=False) for size in sizes]

    assert rates == sorted(rates, reverse=True)
    assert max(rates) == usual_lr(1, has_adapter=False) <= 2e-3, "no rate is higher than any that was measured"
    assert [usual_lr(size, has_adapter=False) for size in (500_000_000, 70_000_000_000)] == [1e-6, 1e-6]
    assert usual_lr(7_000_000_000, has_adapter=True) == 1e-5


@pytest.mark.parametrize("has_adapter", [False, True])
@pytest.mark.parametrize("name", LR_OF_BUNDLED_MODELS)
def test_the_rate_by_size_agrees_with_what_was_measured_for_the_bundled_models(name: str, has_adapter: bool) -> None:
    parameters = stored_parameters(BUNDLED_DIRECTORIES[name])
    measured = default_lr(name, has_adapter=has_adapter)
    assert usual_lr(parameters, has_adapter=has_adapter) == pytest.approx(measured, rel=0.25)


def test_a_small_model_of_the_user_gets_the_rate_of_its_size(small: Path) -> None:
    assert lr_by_size(TrainJob(model=str(small))) == usual_lr(stored_parameters(small), has_adapter=False)


def test_a_rate_that_is_given_or_cannot_be_known_is_left_alone(small: Path, tmp_path: Path) -> None:
    assert lr_by_size(TrainJob(model=str(small), lr=1e-5)) is None
    assert lr_by_size(TrainJob(model="nano")) is None
    assert lr_by_size(TrainJob(model=str(tmp_path / "elsewhere"))) is None
    (small / "model.safetensors").write_bytes(b"damaged")
    assert lr_by_size(TrainJob(model=str(small))) is None


def test_a_study_of_a_small_model_starts_at_the_rate_of_its_size(small: Path) -> None:
    from researcher.planner.designs import default_job

    job = default_job("reverse", steps=None, base={"model": str(small)})
    assert job["lr"] == usual_lr(stored_parameters(small), has_adapter=False)
    assert default_job("reverse", steps=None, base={"model": str(small), "lr": 1e-5})["lr"] == 1e-5


def test_a_server_that_is_given_such_a_job_says_which_rate_would_suit(
    small: Path, start_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with SwarmClient(start_server().url) as client:
        client.auto_sync_train_config_and_start_engine(TrainJob(engine="fake", model=str(small)))
    assert any("would suit the size" in record.getMessage() for record in caplog.records)
