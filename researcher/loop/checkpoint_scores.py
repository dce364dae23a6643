"""The scores of checkpoints of finished runs, measured on as many free servers as there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from experiments_db import Run
from researcher.execution.storage import is_storage_outage
from researcher.loop.deps import Deps
from researcher.loop.outages import note_servers, wait_a_round
from researcher.servers.server_pool import Slot, is_outage

WAIT_S = 1.0
MAX_FAILURES = 3
"""Failures on servers that answer and have the checkpoint, after which a score counts as impossible to measure."""


@dataclass(frozen=True, slots=True)
class CheckpointScore:
    """One score to be measured: `key` is unique among all, and `name` is for people.

    `measure` is called with the run and the address of a server.
    """

    key: str
    name: str
    run: Run
    measure: Callable[[Run, str], None]


def score_checkpoints(deps: Deps, wanted: Sequence[CheckpointScore]) -> None:
    """Measure all scores; a score that fails too often is given up with a warning.

    A score whose server is out waits for the server, for as long as the study allows an outage, unless another server
    has the checkpoint too.

    Raises Drained if the study is asked to stop meanwhile, ServerProblem once no server can answer. Scores measured
    before stay stored.
    """
    pending = [_Pending(score) for score in wanted]
    busy: list[tuple[_Pending, Slot]] = []
    try:
        _measure_all(deps, pending, busy)
    except Exception:
        # The node may be repeated, and its servers must be free then.
        for each, slot in busy:
            deps.background.await_end(each.score.key)
            deps.pool.give_back(slot)
        raise


def _measure_all(deps: Deps, pending: list[_Pending], busy: list[tuple[_Pending, Slot]]) -> None:
    """Measure what is pending; `busy` holds what is being measured at each moment."""
    while pending or busy:
        note_servers(deps)
        for each in list(pending):
            if (slot := each.find_slot(deps)) is not None:
                pending.remove(each)
                busy.append((each, slot))
                each.submit(deps, str(slot.url))
            elif each.is_lost(deps):
                pending.remove(each)
        wait_a_round(deps, WAIT_S)
        deps.background.check()
        for each, slot in list(busy):
            if (task := deps.background.take(each.score.key)) is None:
                continue
            busy.remove((each, slot))
            deps.pool.give_back(slot)
            if (error := task.exception()) is not None and each.goes_on(deps, slot, error):
                pending.append(each)


@dataclass(slots=True)
class _Pending:
    """A score that is still to be measured: its failures so far, and the servers that do not have its checkpoint."""

    score: CheckpointScore
    failures: int = 0
    without: set[str] = field(default_factory=set[str])

    def find_slot(self, deps: Deps) -> Slot | None:
        """Return a free server that may have the checkpoint, now taken; None if there is none."""
        slot = deps.pool.take(frozenset(self.without))
        if slot is None or str(slot.url) not in self.without:
            return slot
        deps.pool.give_back(slot)
        return None

    def submit(self, deps: Deps, url: str) -> None:
        score = self.score
        deps.background.submit(score.key, lambda: score.measure(score.run, url))

    def is_lost(self, deps: Deps) -> bool:
        """Return whether no server will have the checkpoint any more, and log a warning if so."""
        url = self.score.run.server_url
        others = {str(slot.url) for slot in deps.pool.slots if slot.is_answering}
        if not others <= self.without or not deps.pool.is_lost(url):
            return False
        self._note(deps, f"its weights lie on {url}, which has not answered for longer than --max-outage-hours")
        return True

    def goes_on(self, deps: Deps, slot: Slot, error: BaseException) -> bool:
        """Return whether to try again after a failure, and log a warning if not."""
        if is_outage(error):
            deps.pool.report_outage(slot, error)
            return True
        if is_storage_outage(error):
            return True
        if not slot.is_local and slot.url != self.score.run.server_url and self._has_home(deps):
            self.without.add(str(slot.url))
            return True
        self.failures += 1
        if self.failures < MAX_FAILURES:
            return True
        self._note(deps, str(error))
        return False

    def _note(self, deps: Deps, reason: str) -> None:
        run = self.score.run
        deps.log.warn("run.unscored", f"{run.id} has no {self.score.name}: {reason}", run_id=run.id)

    def _has_home(self, deps: Deps) -> bool:
        return any(slot.url == self.score.run.server_url for slot in deps.pool.slots)
