"""A prepared episode: it waits for one word, holds its batch back, outlives its server, and is never half counted."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rollout_support import Stage, eventually, rolling
from scripted_server import Canned, ScriptedServer

from swarm.config import ServerConfig, base_url
from swarm.errors import BadRequest, Conflict, EpisodeEnded, IdempotencyMismatch, JobInvalid
from swarm.ledger.writes.episodes import COMMIT_LIMIT_S
from swarm.rollout.transactions.coordinator_client import CoordinatorClient
from swarm.rollout.transactions.two_phase import ASK_AT_LEAST_S, state_without_engine
from swarm.schemas import EpisodeState, PrepareEpisodeRequest, TransactionState

pytestmark = pytest.mark.anyio

LEASE_S = 2.5
"""Long enough for an episode to be prepared in time on a busy machine, short enough to be waited for."""


async def prepare(stage: Stage, episode_id: str, secret: str, **fields: Any) -> Any:
    body = {"task_id": "task", "reward": 1.0, "transaction_id": secret, **fields}
    return await stage.episodes.transactions.prepare(episode_id, PrepareEpisodeRequest.model_validate(body))


async def state_of(stage: Stage, episode_id: str) -> tuple[EpisodeState, str | None]:
    row = await stage.ledger.episode(episode_id)
    return row.state, row.outcome


@pytest.fixture
def coordinator() -> Iterator[ScriptedServer]:
    """A server that answers every inquiry the same."""
    server = ScriptedServer()
    server.script(Canned(body={"state": "pending"}))
    yield server
    server.close()


@pytest.mark.job(min_group=1)
async def test_a_prepared_episode_is_in_no_pool_and_holds_the_batch_back_until_it_is_committed(stage: Stage) -> None:
    secret, episode = secrets.token_urlsafe(32), await stage.begin()
    await stage.call(episode)
    first = await prepare(stage, episode.episode_id, secret)
    assert (first.episode.state, first.replayed) == (EpisodeState.PREPARED, False)
    assert (await prepare(stage, episode.episode_id, secret)).replayed
    assert stage.pool.progress().episodes == 0
    assert not await stage.episodes.drained(0.05)
    with pytest.raises(EpisodeEnded, match="prepared"):
        stage.episodes.authorize(episode.api_key)
    [view] = stage.episodes.running_views()
    assert view.state is EpisodeState.PREPARED
    assert await stage.episodes.transactions.state_of(secret) is TransactionState.PENDING
    receipt = await stage.episodes.transactions.commit(episode.episode_id, secret)
    assert (receipt.episode.state, receipt.replayed) == (EpisodeState.COMPLETED, False)
    assert (await stage.episodes.transactions.commit(episode.episode_id, secret)).replayed
    assert await stage.episodes.drained(0.05)
    [finished] = stage.pool.close_batch("batch", 1).batch.episodes
    assert (finished.reward, finished.trained_tokens) == (1.0, 2)
    assert await stage.episodes.transactions.state_of(secret) is TransactionState.COMMITTED


async def test_another_result_or_another_transaction_is_refused_and_changes_nothing(stage: Stage) -> None:
    secret, other = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
    episode, second = await stage.begin(), await stage.begin()
    with pytest.raises(Conflict, match="prepare it first"):
        await stage.episodes.transactions.commit(episode.episode_id, secret)
    await prepare(stage, episode.episode_id, secret)
    with pytest.raises(IdempotencyMismatch):
        await prepare(stage, episode.episode_id, secret, reward=0.5)
    for refused in (prepare(stage, episode.episode_id, other), prepare(stage, second.episode_id, secret)):
        with pytest.raises(Conflict):
            await refused
    with pytest.raises(Conflict):
        await stage.episodes.transactions.commit(episode.episode_id, other)
    with pytest.raises(Conflict, match="prepared"):
        await stage.end(episode.episode_id)
    assert await state_of(stage, episode.episode_id) == (EpisodeState.PREPARED, None)
    await stage.call(second)


async def test_the_coordinator_gives_up_the_episode_of_a_silent_client_and_says_so_afterwards(stage: Stage) -> None:
    secret, episode = secrets.token_urlsafe(32), await stage.begin(lease_s=LEASE_S)
    await prepare(stage, episode.episode_id, secret)
    await eventually(lambda: not stage.episodes.running_views())
    assert await state_of(stage, episode.episode_id) == (EpisodeState.EXPIRED, "lease_expired")
    assert await stage.episodes.transactions.state_of(secret) is TransactionState.ABORTED
    with pytest.raises(EpisodeEnded):
        await stage.episodes.transactions.commit(episode.episode_id, secret)
    assert await stage.episodes.transactions.state_of(secrets.token_urlsafe(32)) is TransactionState.ABORTED


async def test_a_commit_that_comes_too_late_is_refused_for_good(stage: Stage) -> None:
    secret, episode = secrets.token_urlsafe(32), await stage.begin()
    await prepare(stage, episode.episode_id, secret)
    row = await stage.ledger.episode(episode.episode_id)
    assert row.transaction_sha256 is not None
    late = await stage.ledger.commit_episode(
        episode.episode_id,
        transaction_sha256=row.transaction_sha256,
        ended_at=time.time() + COMMIT_LIMIT_S + 1,
    )
    assert (late.episode.state, late.episode.outcome) == (EpisodeState.EXPIRED, "commit_timeout")
    with pytest.raises(EpisodeEnded, match="commit_timeout"):
        await stage.episodes.transactions.commit(episode.episode_id, secret)


async def test_an_abort_works_on_the_coordinator_and_ends_the_transaction(stage: Stage) -> None:
    secret, episode = secrets.token_urlsafe(32), await stage.begin()
    await prepare(stage, episode.episode_id, secret)
    await stage.episodes.abort(episode.episode_id, "changed_my_mind")
    assert await state_of(stage, episode.episode_id) == (EpisodeState.ABORTED, "changed_my_mind")
    assert await stage.episodes.transactions.state_of(secret) is TransactionState.ABORTED
    assert await stage.episodes.drained(0.05)


@pytest.mark.parametrize(
    ("answer", "fate"),
    [("committed", (EpisodeState.COMPLETED, None)), ("aborted", (EpisodeState.ABORTED, "transaction_aborted"))],
)
async def test_elsewhere_a_silent_clients_episode_does_as_its_coordinator_did(
    stage: Stage, coordinator: ScriptedServer, answer: str, fate: tuple[EpisodeState, str | None]
) -> None:
    secret, episode = secrets.token_urlsafe(32), await stage.begin(lease_s=LEASE_S)
    await prepare(stage, episode.episode_id, secret, coordinator=coordinator.url)
    await eventually(lambda: coordinator.heard)
    assert {heard.path for heard in coordinator.heard} == {f"/v1/swarm/transactions/{secret}"}
    assert await state_of(stage, episode.episode_id) == (EpisodeState.PREPARED, None)
    with pytest.raises(Conflict, match="on its coordinator"):
        await stage.episodes.abort(episode.episode_id, "impatient")
    coordinator.script(Canned(body={"state": answer}))
    await eventually(lambda: not stage.episodes.running_views())
    assert await state_of(stage, episode.episode_id) == fate


async def test_an_answer_that_is_none_decides_nothing(coordinator: ScriptedServer) -> None:
    coordinator_client = CoordinatorClient()
    url = coordinator_client.url(coordinator.url, secrets.token_urlsafe(32))
    answers: list[tuple[int, bytes, dict[str, str]]] = [
        (302, b'{"state":"committed"}', {"location": f"{coordinator.url}/elsewhere"}),
        (503, b'{"state":"aborted"}', {}),
        (200, b'{"state":"maybe"}', {}),
        (200, b'{"state":"aborted"}' + b" " * 5000, {}),
    ]
    for answer in answers:
        coordinator.script(Canned(*answer))
        assert await coordinator_client.ask(url) is None
    assert all(heard.path in url for heard in coordinator.heard)
    assert await CoordinatorClient().ask("http://127.0.0.1:9/v1/swarm/transactions/x") is None
    await coordinator_client.close()


def test_only_named_servers_are_asked_or_those_of_this_machine_by_a_server_that_is_there_alone() -> None:
    secret = secrets.token_urlsafe(32)
    local, exposed = (
        CoordinatorClient("127.0.0.1"),
        CoordinatorClient("0.0.0.0", [base_url("https://gpu.example:8443/swarm/")]),
    )
    assert local.url("http://LOCALHOST:10086/", secret) == f"http://localhost:10086/v1/swarm/transactions/{secret}"
    assert exposed.url("https://gpu.example:8443/swarm", secret).startswith("https://gpu.example:8443/swarm/v1/")
    for address in (
        "http://169.254.169.254", "http://10.0.0.1:10086", "http://127.0.0.1.example", "http://127.0.0.1:1/admin",
    ):  # fmt: skip
        with pytest.raises(BadRequest, match="--peer"):
            local.url(address, secret)
    for address in ("http://127.0.0.1:10086", "http://gpu.example:8443/swarm", "https://gpu.example:8443"):
        with pytest.raises(BadRequest, match="--peer"):
            exposed.url(address, secret)
    for address in (
        "ftp://127.0.0.1", "http://", "http://user@127.0.0.1", "http://127.0.0.1/?x=", "http://127.0.0.1/#", "http://[",
        "http://127.0.0.1:x", "http://127.0.0.1/..", "http://127.0.0.1\\@example",
    ):  # fmt: skip
        with pytest.raises(BadRequest, match="not the address"):
            local.url(address, secret)


def test_peers_come_from_flags_or_the_environment_and_must_be_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWARM_PEERS", "http://a:1/, https://b")
    assert ServerConfig.from_environment().peers == ("http://a:1", "https://b")
    assert ServerConfig.from_environment(peers=("http://c:80",)).peers == ("http://c",)
    monkeypatch.setenv("SWARM_PEERS", "nonsense")
    with pytest.raises(JobInvalid, match="not the address of a server"):
        ServerConfig.from_environment()


async def test_nobody_answers_until_the_very_end_and_the_episode_is_dropped_and_counted(stage: Stage) -> None:
    secret, episode = secrets.token_urlsafe(32), await stage.begin(lease_s=LEASE_S)
    await prepare(stage, episode.episode_id, secret, coordinator="http://127.0.0.1:9")
    [running] = stage.episodes.transactions.running.by_id.values()
    assert running.row.ended_at is not None
    long_ago = running.row.ended_at - ASK_AT_LEAST_S
    object.__setattr__(running.row, "ended_at", long_ago)
    object.__setattr__(running.row, "deadline_at", long_ago)
    await eventually(lambda: not stage.episodes.running_views())
    assert await state_of(stage, episode.episode_id) == (EpisodeState.EXPIRED, "transaction_unresolved")
    assert await stage.ledger.failures() == {"transaction_unresolved": 1}


async def test_prepared_episodes_outlive_a_stop_of_the_engine_and_the_server(tmp_path: Path) -> None:
    secret = secrets.token_urlsafe(32)
    async with rolling(tmp_path, min_group=1) as stage:
        episode = await stage.begin(task_id="task")
        await stage.call(episode)
        await prepare(stage, episode.episode_id, secret)
        await stage.episodes.close("engine_stopped")
        assert await state_of(stage, episode.episode_id) == (EpisodeState.PREPARED, None)
        assert await state_without_engine(stage.ledger, secret) is TransactionState.PENDING
    async with rolling(tmp_path, min_group=1) as stage:
        [view] = stage.episodes.running_views()
        assert (view.episode_id, view.state, view.turns) == (episode.episode_id, EpisodeState.PREPARED, 1)
        await stage.episodes.transactions.commit(episode.episode_id, secret)
        [finished] = stage.pool.close_batch("batch", 1).batch.episodes
        assert finished.trained_tokens == 2


async def test_without_an_engine_a_transaction_whose_client_is_gone_is_aborted_when_it_is_asked_for(
    stage: Stage,
) -> None:
    secret, episode = secrets.token_urlsafe(32), await stage.begin(idle_timeout_s=0.05)
    await prepare(stage, episode.episode_id, secret)
    await asyncio.sleep(0.1)
    assert await state_without_engine(stage.ledger, secret) is TransactionState.ABORTED
    assert (await state_of(stage, episode.episode_id))[0] is EpisodeState.EXPIRED
