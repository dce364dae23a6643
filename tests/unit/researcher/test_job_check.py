"""What a planner may say in a job, and what only a person may."""

from __future__ import annotations

from typing import Any

import pytest

from researcher.execution.preflight import check_job, contradict_name
from swarm.job import BUNDLED_MODEL

JOB: dict[str, Any] = {"model": BUNDLED_MODEL, "engine": "verl", "n_gpu": 2, "total_steps": 3}
MODEL = "actor_rollout_ref.model"

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model": "/work/arms/a/run"}, "model: an arm starts from the study's own model, nano"),
    ({"model": "../work"}, "model: an arm"),
    ({"verl": {"actor_rollout_ref.model.external_lib": "os"}}, f"verl.{MODEL}.external_lib: only a person"),
    ({"verl": {"actor_rollout_ref": {"model": {"external_lib": "evil"}}}}, f"verl.{MODEL}.external_lib: only a person"),
    ({"verl": {"actor_rollout_ref.model.trust_remote_code": True}}, f"verl.{MODEL}.trust_remote_code: only a person"),
    ({"verl": {"+actor_rollout_ref.model.trust_remote_code": "1"}}, f"verl.{MODEL}.trust_remote_code: only a person"),
    ({"verl": {"actor_rollout_ref.model.lora_adapter_path": "x"}}, "lora_adapter_path: only a person"),
    ({"verl": {"reward.custom_reward_function.path": "x"}}, "path: only a person"),
    ({"verl": {"data.custom_cls.name": "pkg:thing"}}, "neither a number nor a plain word"),
    ({"verl": {"ray_kwargs": {"ray_init": {"runtime_env": {"env_vars": {"LD_PRELOAD": "/x.so"}}}}}}, "LD_PRELOAD"),
    ({"verl": {"trainer.logger": ["console", "pkg://evil"]}}, "neither a number nor a plain word"),
    ({"batch_size": 0}, "batch_size"),
    ({"eval_every": 2}, "the study's own evaluator scores its runs"),
    ({"eval_env": "reverse"}, "the study's own evaluator scores its runs"),
    ({"guard": "stop"}, "a study ends a run that is lost itself"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_code_files_and_other_models_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    problems = check_job(JOB | settings, {})
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


def test_numbers_and_plain_words_may_be_set() -> None:
    verl = {
        "actor_rollout_ref.model.lora_rank": 16, "actor_rollout_ref": {"actor": {"strategy": "fsdp2"}},
        "actor_rollout_ref.model.trust_remote_code": False, "actor_rollout_ref.actor.optim.num_cycles": 0.5,
        "trainer.logger": ["console"], "actor_rollout_ref.rollout.dtype": "bfloat16",
    }  # fmt: skip
    assert check_job(JOB | {"verl": verl}, {}) == ()


def test_what_a_person_said_of_every_arm_stands() -> None:
    verl = {"actor_rollout_ref": {"model": {"external_lib": "mine", "trust_remote_code": True}}}
    given = {"model": "/models/own", "verl": verl}
    assert check_job(JOB | given, given) == ()
    # However it is written.
    same = {"actor_rollout_ref.model.external_lib": "mine", "actor_rollout_ref.model.trust_remote_code": True}
    assert check_job(JOB | {"model": "/models/own", "verl": same}, given) == ()
    other = {"actor_rollout_ref.model.external_lib": "another"}
    assert "external_lib" in check_job(JOB | {"verl": other}, given)[0].message
