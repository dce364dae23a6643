"""Episode routes: begin, end, abort, heartbeat, reward and agreement, and the records of episodes."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request

from swarm.errors import EngineNotReady, EpisodeEnded, FailedEngine
from swarm.gateway.control.views import view_detail, view_episode, view_receipt, view_state
from swarm.gateway.http.auth import READERS
from swarm.gateway.http.openapi import errors
from swarm.gateway.http.query_strings import EpisodeQuery
from swarm.gateway.http.routes import role_of, until_left
from swarm.gateway.served import Served
from swarm.ledger import EndReceipt, EpisodeRow, Ledger
from swarm.rollout.results import ending_of
from swarm.schemas import (
    AbortEpisodeRequest,
    AgreeRequest,
    AgreeResponse,
    BeginEpisodeRequest,
    BeginEpisodeResponse,
    EndEpisodeRequest,
    EndEpisodeResponse,
    EpisodeDetail,
    EpisodePage,
    EpisodeState,
    EpisodeView,
    HeartbeatRequest,
    HeartbeatResponse,
    ReviseRewardRequest,
)
from swarm.tracker.codec import Codec


def add_life_routes(router: APIRouter, served: Served, ledger: Ledger) -> None:
    """Add the routes that begin and end an episode."""

    @router.post("/episodes/begin", status_code=201, summary="Begin an episode", responses=errors(409, 503, 507))
    async def begin(body: BeginEpisodeRequest, request: Request) -> BeginEpisodeResponse:
        """Begin an episode.

        The call waits up to `wait_s` seconds while a batch trains, or while the next one has enough episodes of this
        data source. Then the answer is 503. A train episode of a complete job gets 409 `training_complete`.
        """
        service = served.require()
        # If the client disconnects while it waits, no episode may begin: nobody would end it, and its batch would wait.
        begun = await service.episodes.begin(body, lambda: until_left(request.receive))
        return BeginEpisodeResponse(
            episode_id=begun.episode_id,
            base_url=model_url(request),
            api_key=begun.api_key,
            model=service.model_name,
            weight_version=begun.weight_version,
            deadline_s=service.episodes.job.episode_timeout_s,
            lease_s=body.lease_s,
            is_greedy=begun.is_greedy,
        )

    @router.post(
        "/episodes/{episode_id}/end", summary="End an episode with its reward", responses=errors(404, 409, 503, 507)
    )
    async def end(episode_id: str, body: EndEpisodeRequest) -> EndEpisodeResponse:
        """End an episode exactly once. The result is durable before the answer.

        The same payload again gets the same answer, with `replayed`. Another payload gets 409 `idempotency_mismatch`.
        An episode that expired or was aborted gets 409 `episode_ended` with its outcome. While no engine runs, only an
        end that was recorded before is answered.
        """
        service = served()
        if service is None:
            ended = await _replay_end(served, ledger, episode_id, body)
        else:
            ended = await service.episodes.end(episode_id, body)
        return view_receipt(ended, ledger.receipt())


def add_heartbeat_routes(router: APIRouter, served: Served, ledger: Ledger) -> None:
    """Add the routes that keep episodes alive."""

    @router.post(
        "/episodes/{episode_id}/heartbeat",
        summary="Keep one episode alive",
        responses=errors(404, 409, 503, 507),
    )
    async def heartbeat(episode_id: str) -> EpisodeView:
        """Renew the lease and the idle timeout of an episode. If it is not running, the answer is 409."""
        service = served()
        if service is None:
            raise _over(await ledger.episode(episode_id), served)
        service.episodes.heartbeat(episode_id)
        return view_episode(service.episodes.as_present(await ledger.episode(episode_id)))

    @router.post("/heartbeat", summary="Keep all episodes of a client alive", responses=errors(503))
    async def heartbeat_client(body: HeartbeatRequest) -> HeartbeatResponse:
        """Renew the leases of the listed episodes, but not their idle timeouts.

        So an agent that hangs in a live client still times out. The answer names the listed episodes that are not
        running, with the reasons, and warnings about the client.
        """
        episodes = served.require().episodes
        ended = episodes.heartbeat_client(body.client_id, body.episode_ids)
        return HeartbeatResponse(ended=ended, warnings=episodes.warnings_about(body.client_id))


def add_judgement_routes(router: APIRouter, served: Served, ledger: Ledger) -> None:
    """Add the routes that abort an episode, revise its reward, or agree that the batch is complete."""

    @router.post("/episodes/{episode_id}/abort", summary="Abort an episode", responses=errors(404, 409, 503, 507))
    async def abort(episode_id: str, body: AbortEpisodeRequest | None = None) -> EpisodeView:
        """Abort an episode after a system error, which is never a reward.

        The episode is counted under `reason` and not trained. Idempotent.
        """
        service = served()
        if service is not None:
            given = body or AbortEpisodeRequest()
            await service.episodes.abort(episode_id, given.reason, is_final=given.final)
        row = await ledger.episode(episode_id)
        if row.state is not EpisodeState.ABORTED:
            raise _over(row, served)
        return view_episode(row)

    @router.post("/episodes/{episode_id}/reward", summary="Revise a reward", responses=errors(404, 409, 503, 507))
    async def revise_reward(episode_id: str, body: ReviseRewardRequest) -> EpisodeView:
        """Change the reward of an ended train episode, until its batch is closed. The earlier one stays on record."""
        return view_episode(await served.require().episodes.revise(episode_id, body))

    @router.post("/batch/agree", summary="Agree that the present batch is complete", responses=errors(503))
    async def agree(body: AgreeRequest) -> AgreeResponse:
        """Record that this client has no more episodes for the present batch.

        The stop rules `any_client_agrees` and `all_clients_agree` use it, until the batch is closed.
        """
        agreed, will_close = served.require().episodes.agree(body.client_id)
        return AgreeResponse(agreed=list(agreed), will_close=will_close)


def add_state_route(router: APIRouter, served: Served, ledger: Ledger) -> None:
    @router.get("/episodes/{episode_id}", summary="One episode, token by token", responses=errors(404, 507))
    async def get_episode(episode_id: str, request: Request) -> EpisodeDetail:
        """Return an episode with its turns and the samples they merge to.

        A token of the role rollout gets no turns and no samples.
        """
        row = await ledger.episode(episode_id)
        service = served()
        row = row if service is None else service.episodes.as_present(row)
        if role_of(request) not in READERS:
            return view_state(row)
        turns = await ledger.turns(episode_id)
        # Merging and decoding a long episode takes long, so a thread does it while other calls go on.
        return await asyncio.to_thread(view_detail, row, turns, _codec(served))


def add_record_routes(router: APIRouter, served: Served, ledger: Ledger) -> None:
    """Add the routes that read the records of every episode on this server."""

    @router.get("/episodes", summary="Episodes of every job, newest first", responses=errors(507))
    async def list_episodes(query: Annotated[EpisodeQuery, Query()]) -> EpisodePage:
        found = await ledger.episodes(**query.model_dump())
        return EpisodePage(episodes=[view_episode(row) for row in found.episodes], next_cursor=found.next_cursor)


async def _replay_end(served: Served, ledger: Ledger, episode_id: str, body: EndEpisodeRequest) -> EndReceipt:
    """Return the receipt of an earlier end, while no engine runs.

    Raises EpisodeEnded or IdempotencyMismatch as the ledger does, and as `_over` for an episode that has not ended.
    """
    row = await ledger.episode(episode_id)
    if row.state is EpisodeState.RUNNING:
        raise _over(row, served)
    return await ledger.end_episode(ending_of(episode_id, body))


def _over(row: EpisodeRow, served: Served) -> EpisodeEnded | FailedEngine | EngineNotReady:
    """Return the error for a call about an episode while no engine runs."""
    if row.state is EpisodeState.RUNNING:
        return served.lifecycle.refusal()
    why = f" ({row.outcome})" if row.outcome else ""
    return EpisodeEnded(f"episode {row.episode_id} is {row.state}{why}")


def _codec(served: Served) -> Codec | None:
    service = served()
    return None if service is None else service.codec


def model_url(request: Request) -> str:
    """Return the URL of the model routes, with the host that the caller used, as its agent can reach that host too."""
    scope = request.scope
    for name, value in scope["headers"]:
        if name == b"host":
            return f"{scope['scheme']}://{value.decode('latin-1')}{scope['root_path']}/v1"
    host, port = scope["server"]
    return f"{scope['scheme']}://{host}:{port}{scope['root_path']}/v1"
