"""Routes for the researcher: the lease of the server, and launches, which start a run exactly once."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from swarm.gateway.control.server_routes import Control
from swarm.gateway.http.openapi import errors
from swarm.gateway.http.query_strings import LaunchQuery
from swarm.run.lifecycle import EngineLifecycle
from swarm.schemas import Acknowledged, LaunchPage, LaunchRequest, LaunchView, LeaseRequest, LeaseView


def add_study_routes(router: APIRouter, control: Control, lifecycle: EngineLifecycle) -> None:
    """Add the routes that only a commander may call."""

    @router.put("/lease", summary="Take or renew the lease of the server", responses=errors(409, 507))
    async def take_lease(body: LeaseRequest) -> LeaseView:
        """Take the server for one study, or renew its lease.

        A lease ends `ttl_s` seconds after its last renewal. While another study has the server, the answer is 409
        `server_leased`, which names that study. The lease only keeps studies apart: the server still carries out
        commands without the header `x-swarm-lease`.
        """
        return await control.lease.take(body)

    @router.delete("/lease", summary="Release the lease of the server", responses=errors(409, 507))
    async def release_lease() -> Acknowledged:
        """Release the lease. Idempotent."""
        await control.lease.release()
        return Acknowledged(state=lifecycle.state)

    @router.post("/launch", summary="Start a job as a new run, once", responses=errors(409, 507))
    async def launch(body: LaunchRequest) -> LaunchView:
        """Start a job as a new run, at most once per key.

        The answer comes at once. GET status then shows ROLLING, or FAILED with the reason. The same key again starts
        nothing and returns the outcome of its run. While another run is active, the answer is 409 `launch_conflict`,
        which names it.
        """
        return await control.launch(body.key, body.job)


def add_launch_record_route(router: APIRouter, control: Control) -> None:
    """Add the route that reads launches."""

    @router.get("/launches", summary="The outcomes of launched runs, newest first", responses=errors(507))
    async def get_launches(query: Annotated[LaunchQuery, Query()]) -> LaunchPage:
        """Return the outcomes of launched runs.

        With `key`, the page has that run only. It is empty if this server never launched it.
        """
        return LaunchPage(launches=await control.launches(query.key, query.limit))
