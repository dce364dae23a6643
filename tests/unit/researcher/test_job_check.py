"""What the job of an arm may not say, and names that promise another job."""

from __future__ import annotations

from typing import Any

import pytest

from researcher.execution.preflight import check_job, contradict_name
from swarm.job import BUNDLED_MODEL

JOB: dict[str, Any] = {"model": BUNDLED_MODEL, "engine": "verl", "n_gpu": 2, "total_steps": 3}

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"batch_size": 0}, "batch_size"),
    ({"eval_every": 2}, "the study's own evaluator scores its runs"),
    ({"eval_env": "reverse"}, "the study's own evaluator scores its runs"),
    ({"guard": "stop"}, "a study ends a run that is lost itself"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_what_a_study_does_itself_is_refused_in_a_job_by_name(settings: dict[str, Any], message: str) -> None:
    problems = check_job(JOB | settings)
    assert [problem.stage for problem in problems] == ["job"]
    assert message in problems[0].message


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("lr=0.01", "its name says lr=0.01"),
        ("batch_size=8 lr=0.001", "its name says lr=0.001"),
        ("num_repeat=4+lr=0.3", "its name says lr=0.3"),
        ("use_kl_loss=true", "its name says use_kl_loss=true"),
        ("lr=3e-3", None),
        ("lr=0.003 batch_size=8", None),
        ("style=bold", None),
        ("lr=high", None),
        ("dr.grpo", None),
    ],
)
def test_name_that_promises_another_setting_is_found(name: str, problem: str | None) -> None:
    found = contradict_name(name, JOB | {"lr": 0.003, "batch_size": 8, "num_repeat": 4})

    assert (found or "").startswith(problem or "") and bool(found) == bool(problem)
