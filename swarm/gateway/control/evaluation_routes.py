"""Routes of evaluations on held-out tasks: claim one that is due, renew the claim, end it, and read the scores."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from swarm.gateway.control.server_routes import Control
from swarm.gateway.control.views import view_evaluation
from swarm.gateway.http.openapi import errors
from swarm.gateway.http.query_strings import EvaluationQuery
from swarm.gateway.http.routes import until_left
from swarm.ledger import EvaluationReport, Ledger
from swarm.schemas import (
    ClaimedEvaluation,
    ClaimEvaluationRequest,
    EndEvaluationRequest,
    EvaluationPage,
    EvaluationView,
    RecordEvaluationRequest,
    RenewEvaluationRequest,
)


def add_evaluation_routes(router: APIRouter, control: Control) -> None:
    """Add the routes that an evaluator calls."""

    @router.post("/evaluations/claim", summary="Claim the evaluation that is due", responses=errors(503, 507))
    async def claim(body: ClaimEvaluationRequest, request: Request) -> ClaimedEvaluation:
        """Claim the evaluation that is due.

        The call waits up to `wait_s` for one. An evaluation that the caller has claimed before is returned again. The
        answer is null if none is due. `is_over` is true once the job and all its evaluations are complete.
        """
        evaluations = control.evaluations()
        row = await evaluations.claim(body.client_id, body.lease_s, body.wait_s, lambda: until_left(request.receive))
        view = None if row is None else view_evaluation(row)
        return ClaimedEvaluation(evaluation=view, is_over=row is None and evaluations.is_over)

    @router.post("/evaluations/heartbeat", summary="Renew a claimed evaluation", responses=errors(409, 503))
    async def renew(body: RenewEvaluationRequest) -> EvaluationView:
        """Renew the lease of a claimed evaluation.

        The answer is 409 if the caller's claim of this step's evaluation is over.
        """
        return view_evaluation(control.evaluations().renew(body.step, body.client_id))

    @router.post("/evaluations/end", summary="End a claimed evaluation", responses=errors(404, 409, 503, 507))
    async def end(body: EndEvaluationRequest) -> EvaluationView:
        """End an evaluation exactly once: it is durable before the answer, and the same report gets the same answer.

        The server computes the score from the rewards on record. An episode is refused by name if other weights
        sampled it, or if it was begun before the evaluation was due. Without episodes the evaluation is abandoned.
        """
        report = EvaluationReport(body.client_id, tuple(body.episode_ids), body.failures, body.reason)
        return view_evaluation(await control.evaluations().end(body.step, report))

    @router.post("/evaluations/record", summary="Record a score that was not due", responses=errors(409, 503, 507))
    async def record(body: RecordEvaluationRequest) -> EvaluationView:
        """Record a score of the served weights that a client measured on its own, exactly once.

        The server computes it from the rewards on record, and refuses episodes that other weights sampled. The answer
        is 409 if other weights are served by now, or if the weights have an evaluation.
        """
        report = EvaluationReport(body.client_id, tuple(body.episode_ids), body.failures, None)
        return view_evaluation(await control.evaluations().record(body.step, report))


def add_score_route(router: APIRouter, ledger: Ledger) -> None:
    @router.get("/evaluations", summary="Evaluations of the present job, by step", responses=errors(507))
    async def get_evaluations(query: Annotated[EvaluationQuery, Query()]) -> EvaluationPage:
        """Return the evaluations of the present job: done ones with their score, due ones, and ones without a score."""
        rows = await ledger.evaluations(query.after_step, query.limit)
        return EvaluationPage(evaluations=[view_evaluation(row) for row in rows])
