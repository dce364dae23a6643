"""Which requests the calls make, and what a token of a lesser role can still do."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from client_answers import BEGUN, ENDED, VIEW, status_of

from swarm.client import AsyncSwarmClient, SwarmClient
from swarm.errors import BadRequest, EngineFailure, Forbidden, Unavailable
from swarm.job import TrainJob
from swarm.types import Task, WorkflowOutput

JOB = TrainJob(batch_size=4, lr=0.01)


@pytest.fixture
def client(scripted: Any) -> Any:
    with SwarmClient(scripted.url, client_id="test", timeout=3.0) as client:
        yield client


def sent(scripted: Any) -> tuple[str, str, Any]:
    heard = scripted.heard[-1]
    return heard.method, heard.path.removeprefix("/v1/swarm/"), heard.body


def test_task_counts_are_read(scripted: Any, client: Any, canned: Any) -> None:
    task = {"task_id": "a", "data_source": "math", "groups": 2, "waiting": 1}
    scripted.script(canned(body={"tasks": [task]}))
    assert [each.model_dump() for each in client.task_counts()] == [task]
    assert sent(scripted) == ("GET", "tasks", None)


@pytest.mark.parametrize(
    ("settings", "named"), [({"batch_sise": 8}, "batch_sise"), ({"batch_size": 0}, "batch_size"), ({}, "batch_size=")]
)
def test_wrong_policy_is_refused_by_name_before_it_is_sent(
    scripted: Any, client: Any, settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(BadRequest, match=named):
        client.update_batch_policy(**settings)
    assert scripted.heard == []


def test_reward_is_revised_with_a_reason(scripted: Any, client: Any, canned: Any) -> None:
    scripted.script(canned(body=VIEW))
    assert client.revise_reward("e1", 0.5, reason="judge came late").reward == 0.5
    assert sent(scripted) == ("POST", "episodes/e1/reward", {"reward": 0.5, "reason": "judge came late"})
    client.revise_reward("e1", 1, reason="again", is_success=True, turn_rewards=(0.1,), rewards={"right": 1.0})
    given = {"reward": 1.0, "reason": "again", "is_success": True, "turn_rewards": [0.1], "rewards": {"right": 1.0}}
    assert sent(scripted)[2] == given
    with pytest.raises(BadRequest, match="reward"):
        client.revise_reward("e1", float("inf"), reason="x")


def test_audit_is_read_to_a_page_that_is_not_full(scripted: Any, client: Any, canned: Any) -> None:
    entry = {"at": 1.0, "caller": "rollout", "address": "::1", "method": "PUT", "path": "/job", "status": 403}
    entries = [{**entry, "audit_id": number, "request_id": "r"} for number in range(3, 1005)]
    # Every reading adds an entry.
    scripted.script(canned(body={"entries": entries[:1000]}), canned(body={"entries": entries[1000:]}))
    assert [found.audit_id for found in client.audit(2)] == list(range(3, 1005))
    assert [heard.path.partition("?")[2] for heard in scripted.heard] == [
        "after_id=2&limit=1000",
        "after_id=1002&limit=1000",
    ]


def test_episodes_are_paged(scripted: Any, client: Any, canned: Any) -> None:
    scripted.script(
        canned(body={"episodes": [VIEW], "next_cursor": "c2"}), canned(body={"episodes": [VIEW], "next_cursor": None})
    )
    assert len(client.episodes(state="trained", limit=5)) == 2
    assert sent(scripted)[1] == "episodes?state=trained&limit=4&cursor=c2"


def test_data_source_turn_rewards_and_named_rewards_are_carried(scripted: Any, client: Any, canned: Any) -> None:
    scripted.script(canned(201, BEGUN), canned(body=ENDED))
    with client.open_episode(Task("2+2?", "sum/1", data_source="math"), lease_s=12) as episode:
        episode.output = WorkflowOutput(1.0, turn_rewards=(0.25, 0.0), rewards={"right": 0.5})
    begin, end = scripted.heard
    assert (begin.body["task_id"], begin.body["data_source"], begin.body["lease_s"]) == ("sum/1", "math", 12)
    assert (end.body["turn_rewards"], end.body["rewards"]) == ([0.25, 0.0], {"right": 0.5})


def test_a_rollout_token_joins_the_job_that_is_set(scripted: Any, client: Any, canned: Any, refusal: Any) -> None:
    resolved = JOB.resolve().model_dump(mode="json")
    scripted.script(
        refusal(403, "forbidden", "commanders only"),
        canned(body={"job": {"batch_size": 4, "lr": 0.01}, "resolved": resolved}),
        canned(body=status_of("OFFLINE")),
        canned(body=status_of("BOOTING")),
        canned(body=status_of("ROLLING")),
    )
    assert client.auto_sync_train_config_and_start_engine(JOB).state == "ROLLING"
    assert [heard.method for heard in scripted.heard] == ["PUT", "GET", "GET", "GET", "GET"]


@pytest.mark.parametrize("known", [None, JOB.model_copy(update={"lr": 0.5}).resolve().model_dump(mode="json")])
def test_a_rollout_token_cannot_set_another_job(
    scripted: Any, client: Any, canned: Any, refusal: Any, known: Any
) -> None:
    scripted.script(refusal(403, "forbidden", "commanders only"), canned(body={"job": known and {}, "resolved": known}))
    with pytest.raises(Forbidden, match="commanders only"):
        client.auto_sync_train_config_and_start_engine({"batch_size": 4, "lr": 0.01})
    assert len(scripted.heard) == 2


def test_a_rollout_token_does_not_wait_for_ever(scripted: Any, client: Any, canned: Any, refusal: Any) -> None:
    known = canned(body={"job": {}, "resolved": JOB.resolve().model_dump(mode="json")})
    scripted.script(refusal(403, "forbidden"), known, canned(body=status_of("OFFLINE")))
    with pytest.raises(Unavailable, match="OFFLINE"):
        client.auto_sync_train_config_and_start_engine(JOB, boot_timeout=0.4)
    scripted.script(refusal(403, "forbidden"), known, canned(body=status_of("FAILED", reason="no memory")))
    with pytest.raises(EngineFailure, match="no memory"):
        client.auto_sync_train_config_and_start_engine(JOB)


def test_both_clients_have_the_same_methods_with_the_same_parameters() -> None:
    def surface(cls: type) -> dict[str, list[str]]:
        found = {name: member for name, member in inspect.getmembers(cls) if not name.startswith("_")}
        return {
            name: list(inspect.signature(member).parameters) if callable(member) else []
            for name, member in found.items()
        }

    assert surface(SwarmClient) == surface(AsyncSwarmClient)
