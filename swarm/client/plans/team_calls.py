"""The plans of a team of clients, without I/O.

Place in the flow: SwarmTeam and AsyncSwarmTeam do the I/O for these plans, so that the two cannot differ. A plan yields
a client's name and an action. The team sends the result back into the plan, or throws the error in. The plan returns
the result of the whole. It knows nothing of requests.

The first client is the coordinator. Its episode is prepared before all others, so that it can answer a server that asks
it. Its commit or its abort decides for all.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from swarm.client.episode import Credentials, log_failed_abort
from swarm.errors import BadRequest, Conflict, NotFound, ServerUnreachable, SwarmError, Unavailable
from swarm.schemas import EndEpisodeResponse, EpisodeState
from swarm.types import Task, WorkflowOutput

logger = logging.getLogger(__name__)

T = TypeVar("T")

Begun = Mapping[str, tuple[str, Credentials]]
"""Episode id and credentials by the name of the client."""


@dataclass(frozen=True, slots=True)
class ClientAction:
    """An `action` for the client `name`: a function that takes the client. An AsyncSwarmClient's result is awaited."""

    name: str
    action: Callable[[Any], Any]


TeamPlan = Generator[ClientAction, Any, T]


def begin_all(names: Sequence[str], begin: Callable[[Any], Any]) -> TeamPlan[dict[str, tuple[str, Credentials]]]:
    begun: dict[str, tuple[str, Credentials]] = {}
    try:
        for name in names:
            begun[name] = yield ClientAction(name, begin)
    except BaseException:
        yield from abort_all({name: episode_id for name, (episode_id, _) in begun.items()}, "not_begun_everywhere")
        raise
    return begun


def end_all(
    urls: Mapping[str, str],
    task: Task,
    episodes: Mapping[str, str],
    outputs: Mapping[str, WorkflowOutput],
    transaction_id: str,
    wait_timeout: float,
) -> TeamPlan[dict[str, EndEpisodeResponse]]:
    """Prepare all episodes, then commit all. `urls` are the servers' addresses, the coordinator's first."""
    names = list(urls)
    _require_names("episodes", names, episodes)
    _require_names("outputs", names, outputs)
    try:
        for name in names:
            coordinator = None if name == names[0] else urls[names[0]]
            yield _prepare(name, task, episodes[name], outputs[name], transaction_id, coordinator, wait_timeout)
    except BaseException:
        yield from abort_all({name: episodes[name] for name in names}, "not_prepared_everywhere")
        raise
    return (yield from _commit_all(names, episodes, transaction_id, wait_timeout))


def abort_all(episodes: Mapping[str, str], reason: str) -> TeamPlan[None]:
    """Abort all episodes. If a call fails, the server aborts the episode later, or asks the coordinator."""
    for name, episode_id in episodes.items():
        try:
            yield _abort(name, episode_id, reason)
        except SwarmError as error:
            log_failed_abort(episode_id, error)


def new_transaction_id() -> str:
    """Return a random secret of 256 bits."""
    return secrets.token_urlsafe(32)


def _commit_all(
    names: Sequence[str], episodes: Mapping[str, str], transaction_id: str, wait_timeout: float
) -> TeamPlan[dict[str, EndEpisodeResponse]]:
    first, *others = names
    try:
        receipts: dict[str, EndEpisodeResponse] = {
            first: (yield _commit(first, episodes[first], transaction_id, wait_timeout))
        }
    except (Conflict, NotFound):
        yield from abort_all({name: episodes[name] for name in others}, "transaction_aborted")
        raise
    except BaseException:
        # It is not known here whether the commit reached the server. The servers decide among themselves.
        for name in names:
            yield _release(name, episodes[name])
        raise
    failure: SwarmError | None = None
    for name in others:
        try:
            receipts[name] = yield _commit(name, episodes[name], transaction_id, wait_timeout)
        except (ServerUnreachable, Unavailable) as error:
            logger.warning("%s did not answer and will commit by itself once it is back: %s", name, error.message)
            yield _release(name, episodes[name])
            receipts[name] = EndEpisodeResponse(
                episode_id=episodes[name], state=EpisodeState.PREPARED, outcome=None, batch_id=None, replayed=False
            )
        except (Conflict, NotFound) as error:
            # The decision is made, so the other servers still have to commit.
            logger.error("%s could not commit, although the coordinator has: %s", name, error.message)
            failure = failure or error
    if failure is not None:
        raise failure
    return receipts


def _prepare(
    name: str,
    task: Task,
    episode_id: str,
    output: WorkflowOutput,
    transaction_id: str,
    coordinator: str | None,
    wait_timeout: float,
) -> ClientAction:
    return ClientAction(
        name,
        lambda client: client.prepare_episode(
            task,
            episode_id,
            output,
            transaction_id=transaction_id,
            coordinator=coordinator,
            wait_timeout=wait_timeout,
        ),
    )


def _commit(name: str, episode_id: str, transaction_id: str, wait_timeout: float) -> ClientAction:
    return ClientAction(
        name, lambda client: client.commit_episode(episode_id, transaction_id, wait_timeout=wait_timeout)
    )


def _abort(name: str, episode_id: str, reason: str) -> ClientAction:
    return ClientAction(name, lambda client: client.abort_episode(episode_id, reason))


def _release(name: str, episode_id: str) -> ClientAction:
    return ClientAction(name, lambda client: client.release_episode(episode_id))


def _require_names(what: str, names: Sequence[str], given: Mapping[str, object]) -> None:
    if set(given) != set(names):
        raise BadRequest(f"{what}: give one for each of {', '.join(names)}, not for {', '.join(given) or 'none'}")
