"""The cause of a failed attempt: the program or the system."""

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
    """The failures of a server, as the driver sees them by its own calls. Safe to use from threads."""

    def __init__(self, client: SwarmClient) -> None:
        self._client = client
        self.started_at = client.status().started_at

    def failure_since(self, started_at: float) -> SwarmError | None:
        """Return the server's own failure since its start at `started_at`, or None.

        An error of the status call is a failure too.
        """
        try:
            status = self._client.status()
        except SwarmError as error:
            return error
        self.started_at = status.started_at
        if status.started_at != started_at:
            return Unavailable("the server was restarted meanwhile")
        if status.state in (EngineState.FAILED, EngineState.OFFLINE):
            return EngineFailure(f"the engine is {status.state}: {status.reason or 'stopped'}")
        return None

    def failure_in(self, credentials: Credentials, started_at: float) -> SwarmError | None:
        """Return the server's own failure during one attempt, or None. The server had started at `started_at`."""
        if (failure := self.failure_since(started_at)) is not None:
            return failure
        try:
            episode = self._client.episode(credentials.episode_id).episode
        except SwarmError as error:
            return error
        if episode.state is EpisodeState.ABORTED:
            return Unavailable(f"the server aborted the episode: {episode.outcome}")
        if failed := episode.usage.system_failures:
            return Unavailable(f"the server failed {failed} model calls of the attempt, or was too slow")
        return None


def fault_of(error: Exception, session: RecordedSession | None, server: SwarmError | None) -> SwarmError:
    """Return the error of a failed attempt: a ProgramFailure, or an error of the system.

    `server` is the server's failure that the driver itself has seen, if any. If the environment refused an answer, that
    is a failure of the program.
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
