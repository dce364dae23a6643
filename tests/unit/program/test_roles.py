"""How roles, their servers, jobs and rewards are named, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from swarm import TrainJob
from swarm.errors import BadRequest, ProgramFailure, SwarmError
from swarm.program.attempts import ModelKey, model_of
from swarm.program.base import rewards_of
from swarm.program.roles import AGREED, jobs_named, refuse_roles, servers_named


def test_one_server_has_no_role_and_several_have_one_each() -> None:
    assert servers_named("--server", ["http://a:1"]) == {"": "http://a:1"}
    assert servers_named("--server", ["localhost:10086"]) == {"": "localhost:10086"}
    assert servers_named("--server", ["http://a:1/x?y=z"]) == {"": "http://a:1/x?y=z"}
    named = servers_named("--server", ["solver=http://a:1", "fact-checker=https://b/swarm"])
    assert list(named.items()) == [("solver", "http://a:1"), ("fact-checker", "https://b/swarm")]
    assert servers_named("--server", ["solver=http://a:1"]) == {"solver": "http://a:1"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["solver="], "'solver=' names no role with its server"),
        (["=http://a:1"], "'=http://a:1' names no role with its server"),
        (["two words=http://a:1"], "names no role with its server"),
        (["3d=http://a:1"], "names no role with its server"),
        (["solver==http://a:1"], "names no role with its server"),
        ([""], "'' names no role with its server"),
        (["solver=http://a:1", "solver=http://b:1"], "there is the role solver twice"),
        (["http://a:1", "http://b:1"], "there is two servers without a role"),
        (["http://a:1", "checker=http://b:1"], "http://a:1 has no role"),
        (["solver=http://a:1", "checker=http://a:1/"], "two roles have the same server"),
        (["solver=a:1", "checker=http://a:1"], "two roles have the same server"),
    ],
)
def test_malformed_servers_are_refused_in_one_line(given: list[str], message: str) -> None:
    with pytest.raises(BadRequest, match=r"^--server: ") as refused:
        servers_named("--server", given)
    assert message in refused.value.message and "\n" not in refused.value.message


@pytest.fixture
def job_file(tmp_path: Path) -> Any:
    def write(name: str, **settings: Any) -> str:
        TrainJob(**{"engine": "fake", "total_steps": 2, **settings}).dump_job_as_yaml(tmp_path / name)
        return str(tmp_path / name)

    return write


def test_a_job_is_for_all_roles_or_for_one(job_file: Any) -> None:
    everybody, own = job_file("all.yaml"), job_file("own.yaml", lr=0.5)
    assert list(jobs_named([everybody], [""])) == [""]
    jobs = jobs_named([f"checker={own}", everybody], ["solver", "checker"])
    assert list(jobs) == ["solver", "checker"] and jobs["checker"].lr == 0.5 != jobs["solver"].lr
    assert jobs_named([f"checker={own}", f"solver={own}"], ["solver", "checker"])["solver"].lr == 0.5


def test_jobs_that_do_not_fit_the_roles_are_refused(job_file: Any) -> None:
    everybody = job_file("all.yaml")
    for given, message in [
        ([f"judge={everybody}"], "there is no role 'judge': the roles are solver, checker"),
        ([f"solver={everybody}"], "the role checker has no job"),
        ([everybody, everybody], "there are two jobs for all"),
        ([f"solver={everybody}", f"solver={everybody}", everybody], "there are two jobs of the role solver"),
    ]:
        with pytest.raises(BadRequest, match=r"^--job: ") as refused:
            jobs_named(given, ["solver", "checker"])
        assert message in refused.value.message
    with pytest.raises(SwarmError):
        jobs_named(["none.yaml"], ["solver", "checker"])


@pytest.mark.parametrize("setting", AGREED)
def test_jobs_that_ask_for_different_numbers_of_episodes_are_refused(job_file: Any, setting: str) -> None:
    other: Any = {"stop_rule": "enough_non_constant_tasks"}.get(setting, 3)
    given = [job_file("all.yaml"), f"checker={job_file('other.yaml', **{setting: other})}"]
    with pytest.raises(BadRequest, match=f"--job: {setting} is .* it must be the same for all roles"):
        jobs_named(given, ["solver", "checker"])


def test_roles_are_refused_where_one_server_is_meant_with_the_command_for_several() -> None:
    for url in (None, "http://a:1", "localhost:1"):
        refuse_roles("--url", url, "other")
    with pytest.raises(BadRequest, match="run: other"):
        refuse_roles("--url", "solver=http://a:1", "other")


def test_a_reward_is_one_number_for_all_roles_or_one_for_each() -> None:
    roles = ("solver", "checker")
    assert rewards_of(0.5, roles, "p") == {"solver": 0.5, "checker": 0.5}
    assert rewards_of({"checker": 1, "solver": True}, roles, "p") == {"solver": 1.0, "checker": 1.0}
    assert rewards_of(2, ("",), "p") == {"": 2.0}


@pytest.mark.parametrize(
    ("returned", "roles", "message"),
    [
        ({"solver": 1.0}, ("solver", "checker"), "rewards for solver: the roles are solver, checker"),
        ({}, ("solver", "checker"), "rewards for none: the roles are"),
        ({"solver": 1.0, "judge": 1.0}, ("solver",), "rewards for solver, judge: the roles are solver"),
        ({"solver": 1.0}, ("",), "this run has one model and takes one number"),
        ({"solver": float("nan"), "checker": 1.0}, ("solver", "checker"), "returned nan: it must be finite"),
        (float("inf"), ("",), "it must be finite"),
        (None, ("",), "returned None: it must be finite"),
        ("1", ("",), "returned 1: it must be finite"),
        (10**400, ("",), "it must be finite"),
    ],
)
def test_other_rewards_are_failures_of_the_program(returned: Any, roles: tuple[str, ...], message: str) -> None:
    with pytest.raises(ProgramFailure, match=r"^p: ") as failed:
        rewards_of(returned, roles, "p")
    assert message in failed.value.message


def test_a_model_leads_to_those_of_all_roles_and_names_them() -> None:
    keys = {role: ModelKey(f"http://{role}/v1", f"key of {role}", "nano", 8) for role in ("solver", "checker")}
    with httpx.Client() as http:
        model = model_of(keys, http)
        assert model.roles == ("solver", "checker")
        assert model is model.role("solver") and model.role("checker").api_key == "key of checker"
        assert model.role("checker").role("solver") is model
        with pytest.raises(BadRequest, match="no role 'judge': the roles are solver, checker"):
            model.role("judge")
        alone = model_of({"": keys["solver"]}, http)
        assert alone.roles == ()
        with pytest.raises(BadRequest, match=r"this run has one model, no roles; .* --server checker=URL"):
            alone.role("checker")
