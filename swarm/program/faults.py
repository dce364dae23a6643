"""Whose fault a failed attempt is: the program's or the system's.

Place in the flow: training.py asks for each attempt of a score that failed. What the system broke is made again, what
the program broke scores the worst value. The word of the program decides nothing here: the session says whether the
environment failed, and the server whether it did. This module knows nothing of rewards.
"""

from __future__ import annotations

from swarm.client import Credentials, SwarmClient
from swarm.errors import (
    BadRequest,
    EngineFailure,
    EnvironmentFailure,
    EnvironmentInvalid,
    ProgramFailure,
    SandboxUnavailable,
    SwarmError,
    Unavailable,
)
from swarm.program.attempts import RecordedSession
from swarm.schemas import EngineState, EpisodeState


class ServerWatch:
    """What the driver knows of its server by its own calls. Used by many threads."""

    def __init__(self, client: SwarmClient) -> None:
        self._client = client
        self.started_at = client.status().started_at

    def failure_since(self, started_at: float) -> SwarmError | None:
        """Return the server's own failure since it said `started_at`; None if it had none.

        A server that cannot be asked has failed.
        """
        try:
            status = self._client.status()
        except SwarmError as error:
            return error
        self.started_at = status.started_at
        if status.started_at != started_at:
            return Unavailable("the server was started again")
        if status.state in (EngineState.FAILED, EngineState.OFFLINE):
            return EngineFailure(f"the engine is {status.state}: {status.reason or 'stopped'}")
        return None

    def failure_in(self, credentials: Credentials, started_at: float) -> SwarmError | None:
        """Return the server's own failure during one attempt, which began when it said `started_at`."""
        if (failure := self.failure_since(started_at)) is not None:
            return failure
        try:
            episode = self._client.episode(credentials.episode_id).episode
        except SwarmError as error:
            return error
        if episode.state is EpisodeState.ABORTED:
            return Unavailable(f"the server gave the episode up: {episode.outcome}")
        if failed := episode.usage.system_failures:
            return Unavailable(f"the server failed {failed} model calls of the attempt")
        return None


def fault_of(error: Exception, session: RecordedSession | None, server: SwarmError | None) -> SwarmError:
    """The error that stands for a failed attempt: ProgramFailure, or one of the system's.

    `server` is the failure that the driver itself saw of the server. An answer that the environment refused is no
    failure of the environment.
    """
    if session is not None and session.failure is not None:
        failure = session.failure
        if isinstance(failure, EnvironmentFailure):
            return failure
        if isinstance(failure, BadRequest) and not isinstance(failure, EnvironmentInvalid):
            return ProgramFailure(f"the environment refused an answer of the program: {failure}")
        return EnvironmentFailure(f"the environment raised {type(failure).__name__}: {failure}")
    if isinstance(error, SandboxUnavailable):
        return error
    if server is not None:
        return server
    if isinstance(error, ProgramFailure):
        return error
    return ProgramFailure(f"the program raised {type(error).__name__}: {error}")
