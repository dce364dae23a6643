"""begin_all and end_all over two real servers: both count an episode or neither does, and nothing is left open."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests_support import chat, wait_for_state

from swarm import (
    AsyncSwarmClient,
    AsyncSwarmTeam,
    ConnectionStack,
    SwarmClient,
    SwarmTeam,
    Task,
    TrainJob,
    WorkflowOutput,
)
from swarm.errors import BadRequest, EpisodeEnded, ServerUnreachable, SwarmError
from swarm.schemas import EpisodeState

JOB = TrainJob(engine="fake", batch_size=50, num_repeat=2)
TASK = Task("Hello", "task", data_source="math")
BOTH = {"a": WorkflowOutput(reward=1.0), "b": WorkflowOutput(reward=0.0)}


@pytest.fixture
def urls(start_server: Any) -> list[str]:
    servers: list[Any] = []
    for _ in "ab":
        servers.append(start_server(JOB))
        with httpx.Client(base_url=servers[-1].url, timeout=60) as http:
            wait_for_state(http, "ROLLING")
    return [server.url for server in servers]


@pytest.fixture
def team(urls: list[str]) -> Iterator[SwarmTeam]:
    with SwarmClient(urls[0], timeout=60) as a, SwarmClient(urls[1], timeout=60) as b:
        yield SwarmTeam({"a": a, "b": b})


def fates(team: SwarmTeam) -> dict[str, list[tuple[str, str | None, float | None]]]:
    return {
        name: [(each.state.value, each.outcome, each.reward) for each in client.episodes()]
        for name, client in team.clients.items()
    }


def test_each_model_gets_its_own_reward_and_all_are_counted(team: SwarmTeam) -> None:
    with team.open_episodes(TASK) as episodes:
        for key in episodes.credentials.values():
            with httpx.Client(base_url=key.base_url.removesuffix("/v1"), timeout=60) as http:
                chat(http, {"api_key": key.api_key}, "Hello")
        episodes.outputs.update(BOTH)
    assert {receipt.state for receipt in episodes.receipts.values()} == {EpisodeState.COMPLETED}
    assert fates(team) == {"a": [("completed", None, 1.0)], "b": [("completed", None, 0.0)]}
    for client in team.clients.values():
        pool = client.status().pool
        assert pool is not None and (pool.episodes, pool.running_train) == (1, 0)


def test_an_end_whose_outcome_is_unknown_can_be_repeated(urls: list[str]) -> None:
    class Severed(httpx.BaseTransport):
        """Loses the answer of the first commit."""

        def __init__(self) -> None:
            self._inner = ConnectionStack()
            self.is_mended = False

        def handle_request(self, request: httpx.Request) -> httpx.Response:
            response = self._inner.handle_request(request)
            if request.url.path.endswith("/commit") and not self.is_mended:
                response.close()
                raise httpx.ReadError("severed")
            return response

        def close(self) -> None:
            self._inner.close()

    severed = Severed()
    with SwarmClient(urls[0], timeout=3, transport=severed) as a, SwarmClient(urls[1]) as b:
        team = SwarmTeam({"a": a, "b": b})
        begun = team.begin_all(TASK)
        with pytest.raises(ServerUnreachable):
            team.end_all(TASK, begun, BOTH, wait_timeout=0.5)
        assert [each[0][0] for each in fates(team).values()] == ["completed", "prepared"]
        severed.is_mended = True
        assert team.end_all(TASK, begun, BOTH)["a"].replayed
        assert [each[0][0] for each in fates(team).values()] == ["completed", "completed"]


def test_a_server_that_has_given_its_episode_up_takes_the_others_with_it(team: SwarmTeam) -> None:
    for lost in "ab":
        begun = team.begin_all(TASK)
        team.clients[lost].abort_episode(begun[lost][0], "operator")
        with pytest.raises(EpisodeEnded):
            team.end_all(TASK, begun, BOTH)
    assert {state for each in fates(team).values() for state, _, _ in each} == {"aborted"}


def test_an_error_or_a_missing_output_aborts_everywhere(team: SwarmTeam) -> None:
    with pytest.raises(ZeroDivisionError), team.open_episodes(TASK):
        raise ZeroDivisionError
    with team.open_episodes(TASK) as episodes:
        episodes.outputs["a"] = BOTH["a"]
    expected = [("aborted", "no_result", None), ("aborted", "client_error:ZeroDivisionError", None)]
    assert fates(team) == {"a": expected, "b": expected}


def test_what_cannot_begin_everywhere_begins_nowhere(team: SwarmTeam) -> None:
    team.clients["b"].stop_engine()
    with pytest.raises(SwarmError):
        team.begin_all(TASK, wait_timeout=0.5)
    assert fates(team) == {"a": [("aborted", "not_begun_everywhere", None)], "b": []}


def test_a_coordinator_that_may_not_be_asked_is_refused_before_anything_counts(
    urls: list[str], start_server: Any
) -> None:
    token = "commander-0123456789"
    exposed = start_server(JOB, host="0.0.0.0", token=token)
    named = start_server(JOB, host="0.0.0.0", token=token, peers=(urls[0],))
    with SwarmClient(urls[0]) as a:
        for server, is_named in ((exposed, False), (named, True)):
            with SwarmClient(server.url, token) as b:
                team = SwarmTeam({"a": a, "b": b})
                begun = team.begin_all(TASK)
                if is_named:
                    team.end_all(TASK, begun, BOTH)
                else:
                    with pytest.raises(BadRequest, match="--peer"):
                        team.end_all(TASK, begun, BOTH)
                states = {each[0][0] for each in fates(team).values()}
                assert states == ({"completed"} if is_named else {"aborted"})


def test_a_team_needs_a_member_and_a_result_for_each(team: SwarmTeam) -> None:
    with pytest.raises(BadRequest, match="at least one"):
        SwarmTeam({})
    begun = team.begin_all(TASK)
    with pytest.raises(BadRequest, match="outputs: give one for each of a, b"):
        team.end_all(TASK, begun, {"a": BOTH["a"]})
    team.end_all(TASK, begun, BOTH)


def test_an_asynchronous_team_does_the_same(urls: list[str]) -> None:
    async def scenario() -> set[str]:
        async with AsyncSwarmClient(urls[0]) as a, AsyncSwarmClient(urls[1]) as b:
            team = AsyncSwarmTeam({"a": a, "b": b})
            async with team.open_episodes(TASK) as episodes:
                episodes.outputs.update(BOTH)
            await team.abort_all(await team.begin_all(TASK))
            return {receipt.state.value for receipt in episodes.receipts.values()}

    assert asyncio.run(asyncio.wait_for(scenario(), 30)) == {"completed"}


def test_a_commit_is_taken_while_no_engine_runs(team: SwarmTeam) -> None:
    begun, secret = team.begin_all(TASK), "0123456789abcdefghijkl"
    for name, client in team.clients.items():
        coordinator = None if name == "a" else team.clients["a"].url
        client.prepare_episode(TASK, begun[name][0], BOTH[name], transaction_id=secret, coordinator=coordinator)
        client.stop_engine()
    with httpx.Client(base_url=team.clients["a"].url, timeout=60) as http:
        assert http.get(f"/v1/swarm/transactions/{secret}").json() == {"state": "pending"}
        for name, client in team.clients.items():
            assert client.commit_episode(begun[name][0], secret).state is EpisodeState.COMPLETED
        assert http.get(f"/v1/swarm/transactions/{secret}").json() == {"state": "committed"}
        assert http.get(f"/v1/swarm/transactions/{secret[1:]}x").json() == {"state": "aborted"}
        assert http.get("/v1/swarm/transactions/short").status_code == 400
