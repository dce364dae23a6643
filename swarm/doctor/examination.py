"""Runs checks side by side, each within its time, and collects what they found.

Place in the flow: below the CLI, above the checks, of which it knows nothing. A check that hangs on a dead disk or a
silent port costs its own time limit and becomes a finding like any other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

logger = logging.getLogger(__name__)


class Health(StrEnum):
    """WARN: it runs, but slower, less safely, or without something optional. FAIL: a server cannot do its work."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of what is, and, unless it is OK, one of what to do."""

    verdict: Health
    message: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """`if_late` is the finding when `run` takes longer than `limit_s` seconds."""

    name: str
    run: Callable[[], Finding]
    limit_s: float
    if_late: Finding


@dataclass(frozen=True, slots=True)
class Outcome:
    name: str
    finding: Finding
    seconds: float

    def as_json(self) -> dict[str, Any]:
        return {"check": self.name, **asdict(self.finding), "seconds": round(self.seconds, 3)}


def ok(message: str) -> Finding:
    return Finding(Health.OK, message)


def warn(message: str, remedy: str) -> Finding:
    return Finding(Health.WARN, message, remedy)


def fail(message: str, remedy: str) -> Finding:
    return Finding(Health.FAIL, message, remedy)


def examine(checks: Sequence[Check]) -> list[Outcome]:
    """Run all at once; returns their outcomes in the order given, after the longest `limit_s` at the latest."""
    began = time.monotonic()
    started = [(check, _start(check)) for check in checks]
    outcomes: list[Outcome] = []
    for check, future in started:
        left_s = began + check.limit_s - time.monotonic()
        try:
            outcomes.append(future.result(timeout=max(0.0, left_s)))
        except TimeoutError:
            outcomes.append(Outcome(check.name, check.if_late, check.limit_s))
    return outcomes


def worst(outcomes: Sequence[Outcome]) -> Health:
    found = {outcome.finding.verdict for outcome in outcomes}
    return next((verdict for verdict in (Health.FAIL, Health.WARN) if verdict in found), Health.OK)


def _start(check: Check) -> Future[Outcome]:
    future: Future[Outcome] = Future()

    def run() -> None:
        began = time.monotonic()
        try:
            finding = check.run()
        except Exception as error:  # a broken machine breaks checks in ways of its own: that is a finding
            logger.info("check %s broke", check.name, exc_info=error)
            finding = fail(f"the check broke: {type(error).__name__}: {error}", "run again with --verbose")
        future.set_result(Outcome(check.name, finding, time.monotonic() - began))

    # A thread in a system call cannot be ended: a daemon at least does not keep the process from ending.
    threading.Thread(target=run, name=f"check {check.name}", daemon=True).start()
    return future
