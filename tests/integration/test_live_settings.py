"""Settings of a running job over real HTTP: when they hold, what is refused, who else may have changed them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import run_swarm
from server_processes import server_processes
from tests_support import begin, end, run_batch, wait_for_state, wait_for_step

from swarm import AsyncSwarmClient, SwarmClient, TrainJob
from swarm.errors import BadRequest, RevisionConflict
from swarm.job import LR_OF_BUNDLED_MODELS
from swarm.live_settings import FIXED

JOB = TrainJob(engine="fake", batch_size=2, num_repeat=2, drain_timeout_s=1)
PATCH = "/v1/swarm/job"


@contextmanager
def rolling(start_server: Any, **settings: Any) -> Iterator[tuple[httpx.Client, SwarmClient]]:
    url = start_server(JOB.model_copy(update=settings)).url
    with httpx.Client(base_url=url, timeout=60) as http, SwarmClient(url) as client:
        wait_for_state(http, "ROLLING")
        yield http, client


def refusal(http: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    reply = http.patch(PATCH, json=body)
    return {"status": reply.status_code, **reply.json()["error"]}


def settings_by_step(http: httpx.Client) -> dict[int, Any]:
    batches = http.get("/v1/swarm/batches").json()["batches"]
    return {batch["step"]: batch["settings"] for batch in batches if batch["state"] == "trained"}


def test_what_is_read_at_training_holds_from_the_next_step_and_what_a_batch_is_made_by_from_the_one_after(
    start_server: Any,
) -> None:
    with rolling(start_server) as (http, client):
        begun = begin(http)
        first = client.change_job({"lr": 1e-4})
        second = client.change_job({"batch_size": 1, "temperature": 0.5})
        assert [(change.revision, change.at_step) for change in second.changes] == [(1, 1), (2, 2)]
        assert first.in_force is not None and first.in_force["lr"] == 1e-4
        assert second.in_force is not None and second.in_force["batch_size"] == 2
        assert second.resolved is not None and second.resolved["lr"] == LR_OF_BUNDLED_MODELS["nano"]
        end(http, begun, task_id="task-0", reward=1.0, call=True)
        end(http, begin(http), task_id="task-0", reward=0.0, call=True)
        for reward in (0.0, 1.0):
            end(http, begin(http), task_id="task-1", reward=reward, call=True)
        wait_for_step(http, 1)
        assert http.get("/v1/swarm/status").json()["policy"]["batch_size"] == 1
        run_batch(http, tasks=1, repeats=2, name="second")
        wait_for_step(http, 2)
        assert settings_by_step(http) == {1: {"lr": 1e-4}, 2: {"lr": 1e-4, "batch_size": 1, "temperature": 0.5}}
        episodes = http.get("/v1/swarm/episodes", params={"state": "trained"}).json()["episodes"]
        shown = [http.get(f"/v1/swarm/episodes/{episode['episode_id']}").json() for episode in episodes]
        assert [each["turns"][0]["params"]["temperature"] for each in shown] == [0.5] * 2 + [1.0] * 4


def test_a_later_step_is_named_and_shown_ahead_and_of_two_changes_for_one_step_the_later_holds(
    start_server: Any,
) -> None:
    with rolling(start_server) as (http, client):
        client.change_job({"lr": 1e-4, "entropy_coeff": 0.5}, at_step=2)
        client.change_job({"lr": 1e-5}, at_step=2)
        client.change_job({"lr": 1e-6}, at_step=3)
        status = client.status()
        assert (status.revision, [change.at_step for change in status.changes_ahead]) == (3, [2, 2, 3])
        for step in (1, 2, 3):
            run_batch(http, tasks=2, repeats=2, name=f"batch-{step}")
            wait_for_step(http, step)
        assert settings_by_step(http) == {
            1: {}, 2: {"lr": 1e-5, "entropy_coeff": 0.5}, 3: {"lr": 1e-6, "entropy_coeff": 0.5}
        }  # fmt: skip
        assert client.status().changes_ahead == []
        details = [event.detail for event in client.past_events() if event.kind == "job.changed"]
        assert details[0] == {
            "job_id": 1, "revision": 1, "at_step": 2, "settings": {"lr": 1e-4, "entropy_coeff": 0.5}
        }  # fmt: skip


def test_what_cannot_change_is_refused_by_name_with_what_to_do(start_server: Any) -> None:
    with rolling(start_server) as (http, _):
        for name, reason in FIXED.items():
            error = refusal(http, {"settings": {name: None}})
            assert (error["status"], error["code"], error["param"]) == (400, "bad_request", name)
            assert error["message"] == f"{name} cannot change while the job runs: {reason}" and "\n" not in reason
        assert http.get(PATCH).json()["revision"] == 0


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"settings": {}}, "settings", "no setting named"),
        ({"settings": {"learning_rate": 1}}, "learning_rate", "did you mean 'lr'"),
        ({"settings": {"lr": -1}}, "lr", "greater than 0"),
        ({"settings": {"num_repeat": 3, "min_group": 4}}, None, r"min_group (4) must not exceed"),
        ({"settings": {"lr_scheduler_type": "cosine", "total_steps": None}}, None, "set total_steps"),
        ({"settings": {"batch_size": 4}, "at_step": 1}, "at_step", "give 2 or later"),
        ({"settings": {"lr": 1}, "at_step": 0}, "at_step", "greater than or equal to 1"),
        ({"settings": {"lr": 1}, "at_step": 9}, "at_step", "the job ends after 5 steps"),
        ({"settings": {"lr": 1}, "step": 9}, "step", "Extra inputs"),
    ],
)
def test_a_change_that_is_not_sound_is_refused_in_one_line_and_changes_nothing(
    start_shared_server: Any, body: dict[str, Any], param: str | None, says: str
) -> None:
    with rolling(start_shared_server, total_steps=5) as (http, client):
        error = refusal(http, body)
        assert error["status"] in {400, 422}
        assert says in error["message"]
        assert error["param"] == param
        assert client.job().revision == 0


def test_a_change_sent_again_is_made_once_and_that_of_somebody_else_is_not_overwritten(start_server: Any) -> None:
    with rolling(start_server) as (http, client):
        body = {"settings": {"lr": 1e-4}, "expected_revision": 0}
        answers = [http.patch(PATCH, json=body) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert answers[0].json() == answers[1].json()
        assert client.change_job({"lr": 1e-4}).revision == 1
        error = refusal(http, {"settings": {"lr": 1e-5}, "expected_revision": 0})
        assert (error["status"], error["code"], error["param"]) == (409, "revision_conflict", "expected_revision")
        with pytest.raises(RevisionConflict, match="somebody has changed it"):
            client.change_job({"lr": 1e-5}, expected_revision=7)
        assert client.change_job({"lr": 1e-5}, expected_revision=1).revision == 2


def test_of_callers_at_once_with_the_same_revision_one_changes_the_job(start_server: Any) -> None:
    async def change_at_once(url: str) -> list[Any]:
        async with AsyncSwarmClient(url) as client:
            rates = (1e-4, 2e-4, 3e-4, 4e-4)
            calls = [client.change_job({"lr": rate}, expected_revision=0) for rate in rates]
            return await asyncio.gather(*calls, return_exceptions=True)

    with rolling(start_server) as (_, client):
        answers = asyncio.run(change_at_once(client.url))
        assert sorted(isinstance(answer, RevisionConflict) for answer in answers) == [False, True, True, True]
        assert client.job().revision == 1


def test_total_steps_end_the_job_earlier_or_let_a_finished_one_go_on(start_server: Any) -> None:
    with rolling(start_server, total_steps=9) as (http, client):
        client.change_job({"total_steps": 1})
        assert client.status().total_steps == 1
        run_batch(http, tasks=2, repeats=2)
        wait_for_state(http, "COMPLETE")
        with pytest.raises(BadRequest, match="the job ends after 1 steps, before step 2"):
            client.change_job({"lr": 1e-4})
        client.change_job({"total_steps": 2, "lr": 1e-4})
        run_batch(http, tasks=2, repeats=2, name="more")
        wait_for_step(http, 2)
        assert wait_for_state(http, "COMPLETE")["total_steps"] == 2
        with pytest.raises(BadRequest, match="change total_steps alone first"):
            client.change_job({"total_steps": 9, "temperature": 0.5})
        longer = JOB.model_copy(update={"total_steps": 3})
        assert client.auto_sync_train_config_and_start_engine(longer).total_steps == 3


def test_a_job_ends_with_the_step_that_is_done_whatever_waits_to_be_trained(start_server: Any) -> None:
    with rolling(start_server, total_steps=9, drain_timeout_s=60, stop_rule="any_client_agrees") as (http, client):
        run_batch(http, tasks=2, repeats=2)
        client.agree_to_train()
        wait_for_step(http, 1)
        straggler = begin(http)
        run_batch(http, tasks=2, repeats=2, name="more")
        client.agree_to_train()
        wait_for_state(http, "DRAINING")
        with pytest.raises(BadRequest, match="the job ends after 1 steps, before step 2"):
            client.change_job({"total_steps": 1, "lr": 1e-4})
        client.change_job({"total_steps": 1})
        client.abort_episode(straggler["episode_id"])
        assert wait_for_state(http, "COMPLETE")["step"] == 1
        client.save_checkpoint()
        assert wait_for_state(http, "COMPLETE")["step"] == 1
        assert [point.step for point in client.metrics()] == [1]
        client.change_job({"total_steps": 2})
        assert wait_for_step(http, 2)["state"] == "COMPLETE"


def test_a_job_that_waits_for_episodes_is_complete_as_soon_as_it_ends(start_server: Any) -> None:
    with rolling(start_server) as (http, client):
        run_batch(http, tasks=2, repeats=2)
        wait_for_step(http, 1)
        client.change_job({"total_steps": 1})
        wait_for_state(http, "COMPLETE")
        assert http.post("/v1/swarm/episodes/begin", json={}).json()["error"]["code"] == "training_complete"


def test_the_job_as_given_and_the_job_as_it_has_become_both_join_the_run(start_server: Any) -> None:
    with rolling(start_server) as (http, client):
        run_batch(http, tasks=2, repeats=2)
        wait_for_step(http, 1)
        client.change_job({"lr": 1e-4})
        for job in (JOB, JOB.model_copy(update={"lr": 1e-4})):
            assert client.auto_sync_train_config_and_start_engine(job).step == 1
            client.stop_engine()
            status = client.auto_sync_train_config_and_start_engine(job)
            assert (status.step, status.revision) == (1, 1)


def test_changes_outlive_the_server_and_the_batch_that_was_being_filled(tmp_path: Path, start_server: Any) -> None:
    with server_processes(tmp_path) as make:
        server = make()
        with SwarmClient(server.url) as client, httpx.Client(base_url=server.url, timeout=60) as http:
            client.auto_sync_train_config_and_start_engine(JOB)
            end(http, begin(http), task_id="task-0", reward=1.0, call=True)
            client.change_job({"batch_size": 1, "lr": 1e-4})
            client.change_job({"num_repeat": 3}, at_step=3)
            before = client.job()
            server.kill()
            start_server(home=server.home, port=server.port)
            wait_for_state(http, "ROLLING")
            assert client.job() == before
            end(http, begin(http), task_id="task-0", reward=0.0, call=True)
            for reward in (0.0, 1.0):
                end(http, begin(http), task_id="task-1", reward=reward, call=True)
            wait_for_step(http, 1)
            run_batch(http, tasks=1, repeats=2, name="second")
            wait_for_step(http, 2)
            run_batch(http, tasks=1, repeats=3, name="third")
            wait_for_step(http, 3)
            changed = {"batch_size": 1, "lr": 1e-4}
            assert settings_by_step(http) == {1: {}, 2: changed, 3: {**changed, "num_repeat": 3}}


def test_weights_that_go_back_are_trained_again_by_the_settings_of_their_steps(start_server: Any) -> None:
    with rolling(start_server) as (http, client):
        client.change_job({"batch_size": 1}, at_step=2)
        run_batch(http, tasks=2, repeats=2)
        wait_for_step(http, 1)
        assert client.batch_policy().active.batch_size == 1
        client.load_checkpoint(0)
        assert client.batch_policy().active.batch_size == 2
        run_batch(http, tasks=2, repeats=2, name="again")
        assert wait_for_step(http, 1)["policy"]["batch_size"] == 1


def test_the_command_line_shows_and_changes_the_job(start_server: Any) -> None:
    with rolling(start_server) as (_, client):
        changed = run_swarm(
            "job", "--url", client.url, "--set", "lr=3e-4", "--set", "mixture={words: 1.0}", "--at-step", "40"
        )
        assert changed.exit_code == 0, changed.stderr
        assert "from step 40 on: lr 0.0003, mixture {'words': 1.0}" in changed.stdout
        view = json.loads(run_swarm("job", "--url", client.url, "--json").stdout)
        assert view["changes"] == [
            {"revision": 1, "at_step": 40, "settings": {"lr": 3e-4, "mixture": {"words": 1.0}}}
        ]  # fmt: skip
        refused = run_swarm("job", "--url", client.url, "--set", "model=micro")
        assert refused.exit_code == 2
        assert refused.stderr.count("\n") == 1 and "model cannot change while the job runs" in refused.stderr
        assert run_swarm("job", "--url", client.url, "--set", "lr").exit_code == 2
        assert run_swarm("job", "--url", client.url, "--at-step", "4").exit_code == 2
        assert client.job().revision == 1
