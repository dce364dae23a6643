"""The faults of many attempts: each kind is logged once with its traceback, and counted."""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter

from swarm.errors import SwarmError

logger = logging.getLogger(__name__)

_VARYING = re.compile(r"'[^']*'|\"[^\"]*\"|\S*\d\S*")
"""The parts of a message that may differ between attempts: quoted texts, and words with a number."""

_Kind = tuple[type[BaseException], str, int, str]


class FaultLog:
    """A log of faults, safe to use from threads. Two faults are of one kind if the same line raised the same error."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = Counter[_Kind]()
        self._first: dict[_Kind, str] = {}

    def __enter__(self) -> FaultLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, attempt: str, error: BaseException) -> None:
        """Count the fault of an attempt, and log it if it is the first of its kind."""
        root = _root_of(error)
        kind = _kind_of(root)
        with self._lock:
            self._counts[kind] += 1
            is_first = self._counts[kind] == 1
            self._first.setdefault(kind, _in_one_line(root))
        if is_first:
            # An error of this library says in its message what is wrong, and its traceback shows no code of the user.
            trace = None if isinstance(root, SwarmError) else root
            logger.warning("%s failed: %s", attempt, _in_one_line(error), exc_info=trace)

    def close(self) -> None:
        """Log how often each fault came that came more than once, and forget them."""
        with self._lock:
            counts, self._counts = self._counts, Counter[_Kind]()
            first, self._first = self._first, {}
        for kind, count in counts.items():
            if count > 1:
                logger.warning("%d attempts failed in this way; the first: %s", count, first[kind])


def _in_one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _root_of(error: BaseException) -> BaseException:
    """Return the first error of a chain of causes. The code of a user may close the chain to a circle."""
    seen: set[int] = set()
    while error.__cause__ is not None and id(error) not in seen:
        seen.add(id(error))
        error = error.__cause__
    return error


def _kind_of(error: BaseException) -> _Kind:
    """Return the type of an error, the line that raised it, and for an error of this library the fixed words."""
    trace, file, line = error.__traceback__, "", 0
    while trace is not None:
        file, line, trace = trace.tb_frame.f_code.co_filename, trace.tb_lineno, trace.tb_next
    # One line of the library may report many faults, for example all those of an environment in another process.
    words = _VARYING.sub("", error.message) if isinstance(error, SwarmError) else ""
    return type(error), file, line, words
