"""The test for transient errors: those after which another attempt may succeed."""

from __future__ import annotations

import httpx

from swarm.errors import EpisodeEnded, ServerUnreachable, Unauthorized, Unavailable

# When the server aborts an episode, the agent's next call gets Unauthorized (401) or EpisodeEnded (409).
_TRANSIENT = (
    Unavailable, ServerUnreachable, EpisodeEnded, Unauthorized, httpx.TransportError, ConnectionError, TimeoutError,
)  # fmt: skip
_TRANSIENT_STATUSES = frozenset({401, 408, 409, 429, 500, 502, 503, 504})


def is_transient(error: BaseException) -> bool:
    """Return whether another attempt may succeed.

    This is so if the server did not answer or aborted the episode, or if a connection broke. SDKs wrap such errors.
    Therefore the `status_code` of the error or of its `response` counts too, and so do those of its causes.
    """
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        status = getattr(cause, "status_code", None) or getattr(getattr(cause, "response", None), "status_code", None)
        if isinstance(cause, _TRANSIENT) or status in _TRANSIENT_STATUSES:
            return True
        seen.add(id(cause))
        cause = cause.__cause__
    return False
