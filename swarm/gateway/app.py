"""create_app: the routers, the guards and the error handlers of one server, wired.

Place in the flow: the only module that knows all routes. What they do is in the routers' modules.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Depends, FastAPI

from swarm.engine.state import EngineLifecycle
from swarm.gateway.auth import TokenGuard
from swarm.gateway.control import Control, control_router, health_router
from swarm.gateway.episodes import Served, episode_router, record_router
from swarm.gateway.errors import install_error_handlers
from swarm.gateway.limits import BodyLimit, RequestIds
from swarm.gateway.models import model_router
from swarm.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Deps:
    """Everything the routes call. `served` is None-valued while no engine runs."""

    control: Control
    served: Served
    lifecycle: EngineLifecycle
    ledger: Ledger
    token: str | None
    max_body_bytes: int
    version: str


def create_app(deps: Deps) -> FastAPI:
    """The ASGI app of one server. Control and episode routes want the token, if there is one; model routes want the
    key of a running episode; health routes want nothing."""
    app = FastAPI(title="swarm", version=deps.version, summary="Reinforcement learning for LLM agents as a service")
    guard = [Depends(TokenGuard(deps.token))]
    app.include_router(health_router(deps.lifecycle))
    app.include_router(control_router(deps.control, deps.lifecycle, deps.ledger), dependencies=guard)
    app.include_router(episode_router(deps.served, deps.ledger), dependencies=guard)
    app.include_router(record_router(deps.served, deps.ledger), dependencies=guard)
    app.include_router(model_router(deps.served))
    install_error_handlers(app)
    app.add_middleware(BodyLimit, max_bytes=deps.max_body_bytes)
    app.add_middleware(RequestIds)
    return app
