"""The calls of a transaction, as plans: prepare and commit an episode that counts on several servers or on none.

Place in the flow: as episode_calls.py; team.py puts them in order.
"""

from __future__ import annotations

from swarm.client.heartbeat import Leases
from swarm.client.plans.calls import checked
from swarm.client.plans.episode_calls import path_of, refuse_lost, reported
from swarm.client.plans.exchange import Call, Plan, Server, exchange
from swarm.errors import Conflict, NotFound
from swarm.schemas import CommitEpisodeRequest, EndEpisodeResponse, PrepareEpisodeRequest
from swarm.types import Task, WorkflowOutput


def prepare_episode(
    server: Server,
    leases: Leases,
    *,
    client_id: str,
    task: Task,
    episode_id: str,
    output: WorkflowOutput,
    transaction_id: str,
    coordinator: str | None,
    wait_timeout_s: float,
) -> Plan[EndEpisodeResponse]:
    """The lease is kept up until the episode is committed, aborted or released."""
    refuse_lost(leases, episode_id)
    body = checked(
        lambda: PrepareEpisodeRequest(
            **reported(client_id, task, episode_id, output), transaction_id=transaction_id, coordinator=coordinator
        )
    )
    call = Call("POST", path_of(episode_id, "/prepare"), body, patience_s=max(server.timeout_s, wait_timeout_s))
    return (yield from exchange(server, call, EndEpisodeResponse))


def commit_episode(
    server: Server, leases: Leases, episode_id: str, transaction_id: str, wait_timeout_s: float
) -> Plan[EndEpisodeResponse]:
    body = checked(lambda: CommitEpisodeRequest(transaction_id=transaction_id))
    leases.end(episode_id)
    call = Call("POST", path_of(episode_id, "/commit"), body, patience_s=max(server.timeout_s, wait_timeout_s))
    try:
        receipt = yield from exchange(server, call, EndEpisodeResponse)
    except (Conflict, NotFound):
        leases.release(episode_id)
        raise
    leases.release(episode_id)
    return receipt
