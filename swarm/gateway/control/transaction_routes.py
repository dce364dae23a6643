"""Routes of transactions, which end episodes of several servers together or not at all: prepare, commit, outcome."""

from __future__ import annotations

import time

from fastapi import APIRouter

from swarm.gateway.control.views import view_receipt
from swarm.gateway.http.openapi import errors
from swarm.gateway.served import Served
from swarm.ledger import Ledger
from swarm.rollout.transactions.two_phase import counted, state_without_engine, transaction_digest
from swarm.schemas import (
    API_PREFIX,
    CommitEpisodeRequest,
    EndEpisodeResponse,
    PrepareEpisodeRequest,
    Secret,
    TransactionView,
)


def add_transaction_routes(router: APIRouter, served: Served, ledger: Ledger) -> None:
    """Add the routes of the two phases of a commit, for clients."""

    @router.post(
        "/episodes/{episode_id}/prepare",
        summary="End an episode together with those of other servers: first phase",
        responses=errors(404, 409, 503, 507),
    )
    async def prepare(episode_id: str, body: PrepareEpisodeRequest) -> EndEpisodeResponse:
        """Record the result of an episode durably, and close its key.

        The episode goes into a batch once it is committed. Until then it counts as running, so that a batch waits for
        it. Idempotent.
        """
        receipt = await served.require().episodes.transactions.prepare(episode_id, body)
        return view_receipt(receipt, ledger.receipt())

    @router.post(
        "/episodes/{episode_id}/commit",
        summary="End an episode together with those of other servers: second phase",
        responses=errors(404, 409, 507),
    )
    async def commit(episode_id: str, body: CommitEpisodeRequest) -> EndEpisodeResponse:
        """Commit an episode that was prepared.

        On the coordinator this decides that all episodes of the transaction count. The answer is 409 `episode_ended` if
        the transaction was aborted before. Idempotent. The route also works while no engine runs.
        """
        service = served()
        if service is not None:
            committed = await service.episodes.transactions.commit(episode_id, body.transaction_id)
            return view_receipt(committed, ledger.receipt())
        receipt = await ledger.commit_episode(
            episode_id, transaction_sha256=transaction_digest(body.transaction_id), ended_at=time.time()
        )
        return view_receipt(counted(receipt), ledger.receipt())


def transaction_router(served: Served, ledger: Ledger) -> APIRouter:
    """Return the router by which servers ask for the outcome of a transaction.

    Servers have no tokens of one another, so the route needs none. The transaction id is a secret of the client, and it
    gives access to nothing else.
    """
    router = APIRouter(prefix=API_PREFIX, tags=["episodes"])

    @router.get("/transactions/{transaction_id}", summary="The outcome of a transaction", responses=errors(400, 507))
    async def get_transaction(transaction_id: Secret) -> TransactionView:
        """Return the outcome of a transaction as its coordinator knows it.

        If the client has gone silent, the transaction is aborted for good before the answer. A transaction that is not
        on record counts as aborted.
        """
        service = served()
        if service is not None:
            return TransactionView(state=await service.episodes.transactions.state_of(transaction_id))
        return TransactionView(state=await state_without_engine(ledger, transaction_id))

    return router
