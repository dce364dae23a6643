"""A disk that is full or a database that is locked: which errors say so, and the wait until it is not any more.

Place in the flow: session.py begins its work anew once `await_storage` returns, as after a crash; monitor, evaluate and
checkpoint_scores have work in the background done again that met such an error, for it says nothing of a run. This
module knows neither.
"""

from __future__ import annotations

import errno
import logging
import sqlite3
import time
from collections.abc import Callable

from experiments_db import StoreUnavailable

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
PATIENCE_S = 86_400.0
"""A day: what is not mended by then needs a person, who resumes the study."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def is_storage_outage(error: BaseException) -> bool:
    """Whether nothing is wrong but that something could not be written or read now."""
    if isinstance(error, StoreUnavailable):
        return error.may_pass
    # The checkpoints of the loop are in a database of their own, which LangGraph's saver writes.
    return isinstance(error, sqlite3.OperationalError) or (isinstance(error, OSError) and error.errno in _FULL)


def await_storage(
    try_to_store: Callable[[], object], error: BaseException, *, sleep: Callable[[float], None] = time.sleep
) -> float:
    """Return, once `try_to_store` raises no storage outage, for how many seconds that took; `error` was the first.

    Raises what `try_to_store` raises: any other error at once, an outage once it has lasted for PATIENCE_S.
    """
    logger.warning("the study waits until it can be stored: %s", " ".join(str(error).split()))
    began, pause_s = time.monotonic(), FIRST_PAUSE_S
    while True:
        sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        try:
            try_to_store()
        except Exception as still:
            if not is_storage_outage(still) or time.monotonic() - began > PATIENCE_S:
                raise
        else:
            return time.monotonic() - began
