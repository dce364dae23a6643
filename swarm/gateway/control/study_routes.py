"""Routes for whoever runs studies: the lease of the server, and runs that are started only once.

Place in the flow: HTTP to `Control`, as server_routes.py. Thin: parse, call the server, render.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from swarm.gateway.control.server_routes import Control
from swarm.gateway.http.openapi import errors
from swarm.gateway.http.query_strings import LaunchQuery
from swarm.run.lifecycle import EngineLifecycle
from swarm.schemas import Acknowledged, LaunchPage, LaunchRequest, LaunchView, LeaseRequest, LeaseView


def add_study_routes(router: APIRouter, control: Control, lifecycle: EngineLifecycle) -> None:
    """What only a commander may do."""

    @router.put("/lease", summary="Take the server for a study, or renew that", responses=errors(409, 507))
    async def take_lease(body: LeaseRequest) -> LeaseView:
        """Ends `ttl_s` seconds after the last renewal. While another study has the server 409 `server_leased`, which
        names it. Commands without `x-swarm-lease` are carried out all the same: a lease keeps studies apart."""
        return await control.lease.take(body)

    @router.delete("/lease", summary="Give the server back", responses=errors(409, 507))
    async def release_lease() -> Acknowledged:
        """Idempotent."""
        await control.lease.release()
        return Acknowledged(state=lifecycle.state)

    @router.post("/launch", summary="Start a job as a new run, once", responses=errors(409, 507))
    async def launch(body: LaunchRequest) -> LaunchView:
        """Answers at once; the status says when it is ROLLING, or FAILED and why. The same key again starts nothing and
        answers what became of the run. While something else runs 409 `launch_conflict`, which names it."""
        return await control.launch(body.key, body.job)


def add_launch_record_route(router: APIRouter, control: Control) -> None:
    """What everybody who reads may know."""

    @router.get("/launches", summary="What became of launched runs, newest first", responses=errors(507))
    async def get_launches(query: Annotated[LaunchQuery, Query()]) -> LaunchPage:
        """With `key` that run alone: nothing if this server never launched it."""
        return LaunchPage(launches=await control.launches(query.key, query.limit))
