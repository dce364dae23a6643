"""The calls of an episode as plans: begin, end, abort, revise its reward, heartbeat, and read its record.

Place in the flow: the clients do the I/O for these plans, as for those of calls.py. The plans also keep the leases of
the client up to date. They wait for a server that restarts meanwhile. This module knows nothing of threads or event
loops.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from swarm.client.episode import Credentials, EpisodeSampling, credentials_of
from swarm.client.heartbeat import BEAT_LIMIT_S, Leases
from swarm.client.plans.calls import checked
from swarm.client.plans.exchange import Call, Plan, Server, exchange
from swarm.errors import Conflict, EpisodeEnded, NotFound
from swarm.schemas import (
    API_PREFIX,
    AbortEpisodeRequest,
    BeginEpisodeRequest,
    BeginEpisodeResponse,
    EndEpisodeRequest,
    EndEpisodeResponse,
    EpisodeDetail,
    EpisodePage,
    EpisodeView,
    HeartbeatRequest,
    HeartbeatResponse,
    ReviseRewardRequest,
)
from swarm.types import EpisodeType, Task, WorkflowOutput

logger = logging.getLogger(__name__)

# The longest wait of a begin on the server, because proxies cut connections that are silent for a minute.
MAX_WAIT_S = 25.0
# The most episodes that one heartbeat may list.
MAX_LISTED = 20_000

_PREFIX = f"{API_PREFIX}/episodes"


def begin_episode(
    server: Server,
    leases: Leases,
    *,
    client_id: str,
    episode_type: EpisodeType | str,
    idle_timeout_s: float,
    task_id: str | None,
    data_source: str,
    lease_s: float | None,
    wait_timeout_s: float,
    sampling: EpisodeSampling,
) -> Plan[tuple[str, Credentials]]:
    max_wait_s = max(0.0, min(MAX_WAIT_S, wait_timeout_s))
    body = checked(
        lambda: BeginEpisodeRequest(
            begin_secret=secrets.token_urlsafe(24),
            episode_type=EpisodeType(episode_type),
            client_id=client_id,
            task_id=task_id,
            data_source=data_source,
            lease_s=lease_s,
            idle_timeout_s=idle_timeout_s,
            wait_s=max_wait_s,
            **sampling,
        )
    )
    call = Call(
        "POST",
        f"{_PREFIX}/begin",
        body,
        patience_s=wait_timeout_s,
        answer_s=max_wait_s,
    )
    begun = yield from exchange(server, call, BeginEpisodeResponse)
    leases.hold(begun.episode_id, lease_s)
    return begun.episode_id, credentials_of(begun, server.url)


def end_episode(
    server: Server,
    leases: Leases,
    *,
    client_id: str,
    task: Task,
    episode_id: str,
    output: WorkflowOutput,
    wait_timeout_s: float,
) -> Plan[EndEpisodeResponse]:
    refuse_lost(leases, episode_id)
    body = checked(lambda: EndEpisodeRequest(**reported(client_id, task, episode_id, output)))
    leases.end(episode_id)
    call = Call(
        "POST",
        path_of(episode_id, "/end"),
        body,
        patience_s=max(server.timeout_s, wait_timeout_s),
    )
    try:
        receipt = yield from exchange(server, call, EndEpisodeResponse)
    except (Conflict, NotFound):
        leases.release(episode_id)
        raise
    leases.release(episode_id)
    return receipt


def reported(client_id: str, task: Task, episode_id: str, output: WorkflowOutput) -> dict[str, Any]:
    """Return the fields of a reported result, for the request body."""
    return {
        "task_id": task.task_id,
        "reward": output.reward,
        "is_success": output.is_success,
        "turn_rewards": None if output.turn_rewards is None else list(output.turn_rewards),
        "rewards": None if output.rewards is None else dict(output.rewards),
        "replies": None if output.replies is None else list(output.replies),
        "metadata": dict(output.metadata),
        "client_id": client_id,
        "idempotency_key": episode_id,
    }


def abort_episode(server: Server, leases: Leases, episode_id: str, reason: str, final: bool) -> Plan[EpisodeView]:
    body = checked(lambda: AbortEpisodeRequest(reason=reason, final=final))
    # The heartbeats end also if the abort fails. The server then ends the episode when its lease is over.
    leases.release(episode_id)
    return (yield from exchange(server, Call("POST", path_of(episode_id, "/abort"), body), EpisodeView))


def revise_reward(
    server: Server,
    episode_id: str,
    *,
    reward: float,
    reason: str,
    is_success: bool | None,
    turn_rewards: Sequence[float] | None,
    rewards: Mapping[str, float] | None,
) -> Plan[EpisodeView]:
    given: dict[str, Any] = {"reward": reward, "reason": reason}
    if is_success is not None:
        given["is_success"] = is_success
    if turn_rewards is not None:
        given["turn_rewards"] = list(turn_rewards)
    if rewards is not None:
        given["rewards"] = dict(rewards)
    body = checked(lambda: ReviseRewardRequest(**given))
    return exchange(server, Call("POST", path_of(episode_id, "/reward"), body), EpisodeView)


def heartbeat(server: Server, leases: Leases, episode_id: str) -> Plan[EpisodeView]:
    refuse_lost(leases, episode_id)
    return (yield from exchange(server, Call("POST", path_of(episode_id, "/heartbeat")), EpisodeView))


def heartbeat_all(server: Server, leases: Leases, client_id: str, episode_ids: Sequence[str]) -> Plan[None]:
    """Send one heartbeat for all the episodes. It is not repeated, because the next one follows soon."""
    quick = replace(server, timeout_s=min(server.timeout_s, BEAT_LIMIT_S))
    for start in range(0, len(episode_ids), MAX_LISTED):
        body = HeartbeatRequest(client_id=client_id, episode_ids=list(episode_ids[start : start + MAX_LISTED]))
        call = Call("POST", f"{API_PREFIX}/heartbeat", body, patience_s=0.0)
        answer = yield from exchange(quick, call, HeartbeatResponse)
        lost = leases.lose(answer.ended)
        if lost:
            logger.warning(
                "the server aborted %d episodes; the first is %s: %s", len(lost), lost[0], answer.ended[lost[0]]
            )
        for warning in leases.unheard(answer.warnings):
            logger.warning("the server warns about client %s: %s", client_id, warning)


def episode(server: Server, episode_id: str) -> Plan[EpisodeDetail]:
    return exchange(server, Call("GET", path_of(episode_id)), EpisodeDetail)


def episodes(server: Server, filters: Mapping[str, str | None], limit: int) -> Plan[list[EpisodeView]]:
    """Read the episodes page by page, until `limit` or the end of the list."""
    query: dict[str, str | int] = {name: value for name, value in filters.items() if value is not None}
    found: list[EpisodeView] = []
    while len(found) < limit:
        query["limit"] = min(1000, limit - len(found))
        page = yield from exchange(server, Call("GET", _PREFIX, query=dict(query)), EpisodePage)
        found.extend(page.episodes)
        if page.next_cursor is None:
            break
        query["cursor"] = page.next_cursor
    return found


def refuse_lost(leases: Leases, episode_id: str) -> None:
    if (reason := leases.lost(episode_id)) is not None:
        raise EpisodeEnded(f"episode {episode_id} is over ({reason}): begin another one")


def path_of(episode_id: str, suffix: str = "") -> str:
    return f"{_PREFIX}/{quote(episode_id, safe='')}{suffix}"
