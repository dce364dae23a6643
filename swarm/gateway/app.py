"""The ASGI application of one server: `create_app` puts routers, guards and error handlers together."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import APIRouter
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from starlette.middleware.exceptions import ExceptionMiddleware

from swarm.gateway.control.episode_routes import (
    add_heartbeat_routes,
    add_judgement_routes,
    add_life_routes,
    add_record_routes,
    add_state_route,
)
from swarm.gateway.control.evaluation_routes import add_evaluation_routes, add_score_route
from swarm.gateway.control.event_routes import EventStreams, add_event_routes
from swarm.gateway.control.prometheus import add_prometheus_route
from swarm.gateway.control.server_routes import (
    Control,
    add_command_routes,
    add_history_routes,
    add_job_routes,
    add_status_routes,
    health_router,
)
from swarm.gateway.control.study_routes import add_launch_record_route, add_study_routes
from swarm.gateway.control.transaction_routes import add_transaction_routes, transaction_router
from swarm.gateway.dialects.anthropic.routes import MESSAGES, count_router
from swarm.gateway.dialects.chat.reply import CHAT
from swarm.gateway.dialects.completions.reply import COMPLETIONS
from swarm.gateway.dialects.endpoint import model_router
from swarm.gateway.dialects.models import models_router
from swarm.gateway.dialects.responses.reply import RESPONSES
from swarm.gateway.dialects.tables import describe_bodies
from swarm.gateway.dialects.tokenize import tokenize_router
from swarm.gateway.http.audit import AuditLog
from swarm.gateway.http.auth import CLIENTS, COMMANDERS, EVERYBODY, READERS, PathKeys, TokenGuard
from swarm.gateway.http.errors import install_error_handlers
from swarm.gateway.http.middleware import InputLimits, RequestMiddleware, Traffic
from swarm.gateway.http.openapi import SwarmApi
from swarm.gateway.http.plain_paths import PlainPaths
from swarm.gateway.http.routes import Gate
from swarm.gateway.served import Served
from swarm.ledger import Ledger
from swarm.run.lifecycle import EngineLifecycle


@dataclass(frozen=True, slots=True)
class RouteDependencies:
    """Everything that the routes call. `served` returns None while no engine runs."""

    control: Control
    served: Served
    lifecycle: EngineLifecycle
    ledger: Ledger
    guard: TokenGuard
    events: EventStreams
    max_body_bytes: int
    version: str


def create_app(deps: RouteDependencies) -> SwarmApi:
    """Return the ASGI app of one server.

    Control and episode routes need a token whose role allows the call, if the server has tokens. Model routes need the
    key of a running episode, in a header or in the path. Health routes need nothing.
    """
    app = SwarmApi(
        request_bodies=describe_bodies,
        title="swarm",
        version=deps.version,
        summary="Reinforcement learning for LLM agents as a service",
    )
    traffic = Traffic()
    # The router tries them in this order, so the most frequent come first.
    routers = (
        *(model_router(deps.served, dialect) for dialect in (CHAT, MESSAGES, COMPLETIONS, RESPONSES)),
        count_router(deps.served),
        models_router(deps.served),
        tokenize_router(deps.served),
        *_guarded(deps, traffic),
        health_router(deps.lifecycle),
        transaction_router(deps.served, deps.ledger),
    )
    # Added directly, as their prefixes are complete: `include_router` would wrap each route once more.
    app.router.routes[:0] = [route for router in routers for route in router.routes]
    install_error_handlers(app)
    # Replaces FastAPI's own stack, which takes five times as long: it handles errors a second time and adds a limit.
    rest = ExceptionMiddleware(AsyncExitStackMiddleware(app.router), handlers=app.exception_handlers)
    routes = PathKeys(PlainPaths(rest, app.router.routes))
    app.middleware_stack = RequestMiddleware(routes, InputLimits(deps.max_body_bytes), traffic)
    return app


def _guarded(deps: RouteDependencies, traffic: Traffic) -> list[APIRouter]:
    gate = Gate(deps.guard, AuditLog(deps.ledger), deps.control.lease.check, deps.control.lost.check)
    life = gate.router(CLIENTS, "episodes")
    add_life_routes(life, deps.served, deps.ledger)
    add_heartbeat_routes(life, deps.served, deps.ledger)
    add_judgement_routes(life, deps.served, deps.ledger)
    add_transaction_routes(life, deps.served, deps.ledger)
    scores = gate.router(CLIENTS, "evaluations")
    add_evaluation_routes(scores, deps.control)
    status = gate.router(EVERYBODY, "control")
    add_status_routes(status, deps.control, deps.served, deps.ledger)
    state = gate.router(EVERYBODY, "episodes")
    add_state_route(state, deps.served, deps.ledger)
    records = gate.router(READERS, "records")
    add_record_routes(records, deps.served, deps.ledger)
    add_history_routes(records, deps.ledger)
    add_score_route(records, deps.ledger)
    add_launch_record_route(records, deps.control)
    add_event_routes(records, deps.events)
    commands = gate.router(COMMANDERS, "control")
    add_job_routes(commands, deps.control)
    add_command_routes(commands, deps.control, deps.served, deps.lifecycle, deps.ledger)
    add_study_routes(commands, deps.control, deps.lifecycle)
    scrape = gate.router(READERS, "health", prefix="")
    add_prometheus_route(scrape, deps.control, deps.served, deps.ledger, deps.events, traffic)
    return [life, scores, status, state, records, commands, scrape]
