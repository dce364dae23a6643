"""Episode routes: begin, end, abort, heartbeat, and reading what was recorded.

Place in the flow: HTTP to the rollout of the started job. It holds no state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Query, Request

from swarm.errors import EngineNotReady, EpisodeEnded
from swarm.gateway.inference import ModelService
from swarm.gateway.views import view_detail, view_episode
from swarm.ledger import Ledger
from swarm.schemas import (
    API_PREFIX,
    AbortEpisodeRequest,
    BeginEpisodeRequest,
    BeginEpisodeResponse,
    EndEpisodeRequest,
    EndEpisodeResponse,
    EpisodeDetail,
    EpisodePage,
    EpisodeState,
    EpisodeView,
)
from swarm.types import EpisodeType

PREFIX = f"{API_PREFIX}/episodes"

Served = Callable[[], ModelService | None]
"""The model being served, or None while the engine is off."""


def episode_router(served: Served, ledger: Ledger) -> APIRouter:
    """What a client does with its episodes."""
    router = APIRouter(prefix=PREFIX, tags=["episodes"])

    def service() -> ModelService:
        current = served()
        if current is None:
            raise EngineNotReady("no engine is running: sync a job and start the engine first", retry_after_s=2)
        return current

    async def view(episode_id: str) -> EpisodeView:
        current = served()
        last_seen_at = None if current is None else current.rollout.last_seen(episode_id)
        return view_episode(await ledger.episode(episode_id), last_seen_at)

    @router.post("/begin", status_code=201)
    async def begin(body: BeginEpisodeRequest, request: Request) -> BeginEpisodeResponse:
        current = service()
        begun = await current.rollout.begin(body)
        return BeginEpisodeResponse(
            episode_id=begun.episode_id,
            base_url=f"{str(request.base_url).rstrip('/')}/v1",
            api_key=begun.api_key,
            model=current.model_name,
            weight_version=begun.weight_version,
            deadline_s=current.rollout.job.episode_timeout_s,
        )

    @router.post("/{episode_id}/end")
    async def end(episode_id: str, body: EndEpisodeRequest) -> EndEpisodeResponse:
        current = served()
        if current is None:
            row = await ledger.episode(episode_id)
            raise EpisodeEnded(f"episode {episode_id} is {row.state} ({row.outcome or 'engine stopped'})")
        ended = await current.rollout.end(episode_id, body)
        return EndEpisodeResponse(
            episode_id=episode_id,
            state=ended.state,
            outcome=ended.outcome,
            batch_id=ended.batch_id,
            replayed=ended.replayed,
            weight_versions=list(ended.weight_versions),
        )

    @router.post("/{episode_id}/abort")
    async def abort(episode_id: str, body: AbortEpisodeRequest | None = None) -> EpisodeView:
        await service().rollout.abort(episode_id, (body or AbortEpisodeRequest()).reason)
        return await view(episode_id)

    @router.post("/{episode_id}/heartbeat")
    async def heartbeat(episode_id: str) -> EpisodeView:
        service().rollout.heartbeat(episode_id)
        return await view(episode_id)

    return router


def record_router(served: Served, ledger: Ledger) -> APIRouter:
    """Reading what was recorded, of any episode of this server."""
    router = APIRouter(prefix=PREFIX, tags=["episodes"])

    @router.get("")
    async def list_episodes(
        state: EpisodeState | None = None,
        episode_type: EpisodeType | None = None,
        client_id: str | None = None,
        task_id: str | None = None,
        batch_id: str | None = None,
        cursor: str | None = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    ) -> EpisodePage:
        found = await ledger.episodes(
            state=state,
            episode_type=episode_type,
            client_id=client_id,
            task_id=task_id,
            batch_id=batch_id,
            cursor=cursor,
            limit=limit,
        )
        return EpisodePage(episodes=[view_episode(row) for row in found.episodes], next_cursor=found.next_cursor)

    @router.get("/{episode_id}")
    async def get_episode(episode_id: str) -> EpisodeDetail:
        row = await ledger.episode(episode_id)
        current = served()
        return view_detail(row, await ledger.turns(episode_id), None if current is None else current.codec)

    return router
