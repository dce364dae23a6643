"""The run of checks in parallel, each within its time limit, and the table of their findings."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

logger = logging.getLogger(__name__)


class Health(StrEnum):
    """The verdict of a check. WARN: a server runs, but slower, less safely or with a part missing. FAIL: it cannot."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """The result of a check: one line about the present state, and one with a remedy unless it is OK."""

    verdict: Health
    message: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class TimedFinding:
    name: str
    finding: CheckFinding
    seconds: float

    def as_json(self) -> dict[str, Any]:
        return {"check": self.name, **asdict(self.finding), "seconds": round(self.seconds, 3)}


def ok(message: str) -> CheckFinding:
    return CheckFinding(Health.OK, message)


def warn(message: str, remedy: str) -> CheckFinding:
    return CheckFinding(Health.WARN, message, remedy)


def fail(message: str, remedy: str) -> CheckFinding:
    return CheckFinding(Health.FAIL, message, remedy)


QUICK_S = 10.0
_STUCK = fail("did not answer in time", "check the disk, the load of this machine, and its system log")


@dataclass(frozen=True, slots=True)
class Check:
    """A check to run; `if_late` is its finding if `run` takes longer than `limit_s` seconds."""

    name: str
    run: Callable[[], CheckFinding]
    limit_s: float = QUICK_S
    if_late: CheckFinding = _STUCK


def examine(checks: Sequence[Check]) -> list[TimedFinding]:
    """Run all checks at once; return their outcomes in the given order, after the longest `limit_s` at the latest."""
    began = time.monotonic()
    started = [(check, _start(check)) for check in checks]
    outcomes: list[TimedFinding] = []
    for check, future in started:
        left_s = began + check.limit_s - time.monotonic()
        try:
            outcomes.append(future.result(timeout=max(0.0, left_s)))
        except TimeoutError:
            outcomes.append(TimedFinding(check.name, check.if_late, check.limit_s))
    return outcomes


def worst(outcomes: Sequence[TimedFinding]) -> Health:
    found = {outcome.finding.verdict for outcome in outcomes}
    return next((verdict for verdict in (Health.FAIL, Health.WARN) if verdict in found), Health.OK)


def _start(check: Check) -> Future[TimedFinding]:
    future: Future[TimedFinding] = Future()

    def run() -> None:
        began = time.monotonic()
        try:
            finding = check.run()
        except Exception as error:  # the boundary: a check can fail in any way on a broken machine
            logger.info("check %s raised an error", check.name, exc_info=error)
            finding = fail(f"the check raised {type(error).__name__}: {error}", "run again with --verbose")
        future.set_result(TimedFinding(check.name, finding, time.monotonic() - began))

    # A daemon thread, because a thread in a system call cannot be ended and would keep the process from ending.
    threading.Thread(target=run, name=f"check {check.name}", daemon=True).start()
    return future


STYLES = {Health.OK: "green", Health.WARN: "yellow", Health.FAIL: "bold red"}


def table_of(outcomes: Sequence[TimedFinding]) -> RenderableType:
    """Return a table with one row for each check, its remedy below its finding, and a last line with the totals."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for outcome in outcomes:
        finding = outcome.finding
        text = Text(finding.message)
        if finding.remedy is not None:
            text.append(f"\n-> {finding.remedy}", style="bold")
        table.add_row(Text(finding.verdict.value, style=STYLES[finding.verdict]), outcome.name, text)
    return Group(table, Text(_sum(outcomes), style="dim"))


def _sum(outcomes: Sequence[TimedFinding]) -> str:
    counts = {verdict: sum(outcome.finding.verdict is verdict for outcome in outcomes) for verdict in Health}
    return ", ".join(f"{count} {verdict.value}" for verdict, count in counts.items() if count)
