"""The calls of a two-phase commit as plans: prepare and commit an episode that counts on all its servers or on none.

Place in the flow: the clients do the I/O for these plans. team_calls.py decides their order. This module knows one
server at a time.
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
    """Prepare the end of an episode. It keeps its lease until it is committed, aborted or released."""
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
