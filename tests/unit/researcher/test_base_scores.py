"""When two runs begin with weights that score the same."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from researcher.base_scores import key_of
from researcher.evaluation.scoring import evaluator_hash
from researcher.planner.rules import RulesPlanner
from researcher.study.settings import StudySettings
from researcher.study.topics import read_request
from swarm import TrainJob
from swarm.environments import load_environment

JOB = TrainJob(engine="fake").model_dump(mode="json")


def key(changes: dict[str, Any] | None = None, program: str = "", evaluator: str = "e") -> str:
    return key_of({**JOB, **(changes or {})}, program, evaluator)


def test_what_only_training_reads_is_no_part_of_a_base_score() -> None:
    assert key({"lr": 0.1, "num_repeat": 2, "eval_every": 5, "guard": "stop", "experiment_name": "other"}) == key()


def test_what_evaluation_sets_itself_is_no_part_of_a_base_score() -> None:
    assert key({"seed": 9, "temperature": 0.5, "resume_from": "checkpoints/step-4"}) == key()


@pytest.mark.parametrize("changes", [{"model": "micro"}, {"engine": "local"}, {"max_model_len": 64}, {"new": 1}])
def test_what_bears_on_serving_or_is_not_known_makes_another_score(changes: dict[str, Any]) -> None:
    assert key(changes) != key()


def test_another_agent_or_another_measure_makes_another_score() -> None:
    assert len({key(), key(program="def agent(): ..."), key(evaluator="f")}) == 3


def test_scores_under_other_limits_of_an_attempt_were_measured_in_another_way() -> None:
    charter = RulesPlanner().frame(read_request("batch size 2 or 3 on reversal", StudySettings()))
    limits = [{}, {"attempt_calls": 2}, {"attempt_calls": 3}, {"attempt_tokens": 2}]
    with closing(load_environment("reverse")) as environment:
        hashes = {evaluator_hash(replace(charter, **limit), environment, "validation") for limit in limits}
    assert len(hashes) == 4
