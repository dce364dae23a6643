"""Routes of held-out scores: claim what is due, say that one lives, end it, and read the curve.

Place in the flow: HTTP to the evaluations of the started job. It holds no state. The episodes that score are begun and
ended as all others, by the routes of episodes.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from swarm.gateway.control.server_routes import Control
from swarm.gateway.control.views import view_evaluation
from swarm.gateway.http.openapi import errors
from swarm.gateway.http.query_strings import EvaluationQuery
from swarm.gateway.http.routes import until_left
from swarm.ledger import Ledger, Report
from swarm.schemas import (
    ClaimedEvaluation,
    ClaimEvaluationRequest,
    EndEvaluationRequest,
    EvaluationPage,
    EvaluationView,
    RenewEvaluationRequest,
)


def add_evaluation_routes(router: APIRouter, control: Control) -> None:
    """What an evaluator calls."""

    @router.post("/evaluations/claim", summary="Score the weights that are due", responses=errors(503, 507))
    async def claim(body: ClaimEvaluationRequest, request: Request) -> ClaimedEvaluation:
        """Held up to `wait_s` until an evaluation is due; one that the caller holds already is given once more. null if
        there is none, with `is_over` once the job is complete and all of them are."""
        evaluations = control.evaluations()
        row = await evaluations.claim(body.client_id, body.lease_s, body.wait_s, lambda: until_left(request.receive))
        view = None if row is None else view_evaluation(row)
        return ClaimedEvaluation(evaluation=view, is_over=row is None and evaluations.is_over)

    @router.post("/evaluations/heartbeat", summary="The evaluator lives", responses=errors(409, 503))
    async def renew(body: RenewEvaluationRequest) -> EvaluationView:
        """Renews its lease. 409 if it does not hold the evaluation of this step any more."""
        return view_evaluation(control.evaluations().renew(body.step, body.client_id))

    @router.post("/evaluations/end", summary="Score the weights of a step", responses=errors(404, 409, 503, 507))
    async def end(body: EndEvaluationRequest) -> EvaluationView:
        """Exactly once, and durable when it is answered: the same report again gets the same answer. The server
        computes the score from the rewards on record; an episode that other weights sampled, or that was begun before
        the evaluation was due, is refused by name. Without episodes the evaluation is abandoned."""
        report = Report(body.client_id, tuple(body.episode_ids), body.failures, body.reason)
        return view_evaluation(await control.evaluations().end(body.step, report))


def add_score_route(router: APIRouter, ledger: Ledger) -> None:
    @router.get("/evaluations", summary="Held-out scores of the present job, by step", responses=errors(507))
    async def get_evaluations(query: Annotated[EvaluationQuery, Query()]) -> EvaluationPage:
        """Those that are done are the curve. Also those that are due, and those of which no score came."""
        rows = await ledger.evaluations(query.after_step, query.limit)
        return EvaluationPage(evaluations=[view_evaluation(row) for row in rows])
