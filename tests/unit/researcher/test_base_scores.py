"""When two runs begin with weights that score the same."""

from __future__ import annotations

from typing import Any

import pytest

from researcher.base_scores import TRAINS, key_of
from swarm import TrainJob

JOB = TrainJob(engine="fake").model_dump(mode="json")


def key(changes: dict[str, Any] | None = None, program: str = "", evaluator: str = "e") -> str:
    return key_of({**JOB, **(changes or {})}, program, evaluator)


def test_what_only_training_reads_is_no_part_of_a_base_score() -> None:
    assert key({"lr": 0.1, "seed": 9, "num_repeat": 2, "temperature": 0.5, "experiment_name": "other"}) == key()


@pytest.mark.parametrize("changes", [{"model": "micro"}, {"engine": "local"}, {"max_model_len": 64}, {"new": 1}])
def test_what_bears_on_serving_or_is_not_known_makes_another_score(changes: dict[str, Any]) -> None:
    assert key(changes) != key()


def test_another_agent_or_another_measure_makes_another_score() -> None:
    assert len({key(), key(program="def agent(): ..."), key(evaluator="f")}) == 3


def test_the_settings_that_do_not_matter_are_settings_of_a_job() -> None:
    assert set(TrainJob.model_fields) > TRAINS
