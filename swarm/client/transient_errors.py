"""Which errors of an agent say that another attempt may succeed.

Place in the flow: the runner asks for each attempt that failed, and so does the process of a foreign program, which
loads little else of the client. This module knows nothing of episodes or tasks.
"""

from __future__ import annotations

import httpx

from swarm.errors import EpisodeEnded, ServerUnreachable, Unauthorized, Unavailable

# Unauthorized (401) and EpisodeEnded (409) are how an agent learns in mid-episode that its episode was given up.
_TRANSIENT = (
    Unavailable, ServerUnreachable, EpisodeEnded, Unauthorized, httpx.TransportError, ConnectionError, TimeoutError,
)  # fmt: skip
_TRANSIENT_STATUSES = frozenset({401, 408, 409, 429, 500, 502, 503, 504})


def is_transient(error: BaseException) -> bool:
    """Whether another attempt may succeed: the server was away or lost the episode, or a connection broke.

    SDKs wrap what happened: their `status_code`, that of their `response`, and the causes of the error are looked at
    too.
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
