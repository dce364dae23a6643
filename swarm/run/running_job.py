"""The job of the current run: its settings at each step, and the changes that are made while it runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from swarm.errors import BadRequest, JobInvalid, RevisionConflict
from swarm.job import TrainJob
from swarm.live_settings import (
    JobChange,
    JobTimeline,
    as_bad_request,
    check_effect,
    check_engine,
    check_names,
    earliest_step,
)

logger = logging.getLogger(__name__)

Record = Callable[[JobChange], Awaitable[None]]
"""A function that makes a change durable."""


class RunningJob:
    """The job of the current run. Use it from one event loop.

    `record` is called before a change takes effect, and `check` for each job that results from a change. `filling` is
    the step whose batch is being collected. The code that closes or reopens a batch reports it by `fill`.
    """

    def __init__(
        self,
        timeline: JobTimeline,
        record: Record,
        *,
        filling: int = 1,
        check: Callable[[TrainJob], None] | None = None,
    ) -> None:
        self.timeline = timeline
        self.filling = filling
        self.closing = asyncio.Lock()
        """The lock for recording a change and for closing a batch, so that the two never overlap."""
        self._record = record
        self._check = check
        self._listeners: list[Callable[[], None]] = []

    def at(self, step: int) -> TrainJob:
        """Return the resolved job of a step."""
        return self.timeline.at(step)

    def fill(self, step: int) -> None:
        """Record that the batch of this step is now being collected."""
        self.filling = step

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener` after every change."""
        self._listeners.append(listener)

    def extend(self, job: TrainJob) -> None:
        """Continue to the end of `job`, which is this job with other `total_steps`."""
        self.timeline = self.timeline.extended(job)
        self._notify()

    async def take_over(self, changed: JobTimeline, record: Callable[[], Awaitable[None]]) -> None:
        """Put a timeline with further changes into force, once `record` has made them durable.

        The changes may begin at earlier steps, which are then done anew. Raise RevisionConflict if the job was changed
        meanwhile.
        """
        async with self.closing:
            if changed.changes[: self.timeline.revision] != self.timeline.changes:
                raise RevisionConflict(f"the job is at revision {self.timeline.revision}: somebody has changed it")
            await record()
            self.timeline = changed
        self._notify()

    async def change(
        self, settings: Mapping[str, Any], *, at_step: int | None = None, expected_revision: int | None = None
    ) -> None:
        """Change settings from a step on, by default from the first step that can still take them; durable on return.

        A change without effect is not recorded. With an `expected_revision` the change is made only once, also if the
        call is repeated. Raise BadRequest for a setting that cannot change, for a step that is past or never comes,
        and for a job that would not be valid. Raise RevisionConflict if the job is at another revision.
        """
        check_names(settings)
        async with self.closing:
            if expected_revision is not None and expected_revision != self.timeline.revision:
                self._require_repetition(expected_revision, settings, at_step)
                return
            begin = self._begin_of(settings, at_step)
            changed = await self._checked(begin, settings)
            if not changed.differs(self.timeline, begin):
                return
            await self._record(changed.changes[-1])
            self.timeline = changed
        logger.info("from step %d on: %s", begin, ", ".join(f"{name} {value}" for name, value in settings.items()))
        self._notify()

    def _begin_of(self, settings: Mapping[str, Any], at_step: int | None) -> int:
        earliest = earliest_step(settings, self.filling)
        if at_step is not None and at_step < earliest:
            raise BadRequest(
                f"at_step {at_step} is past or under way: give {earliest} or later",
                param="at_step",
            )
        return at_step or earliest

    async def _checked(self, begin: int, settings: Mapping[str, Any]) -> JobTimeline:
        try:
            changed = self.timeline.with_change(begin, settings)
            check_effect(self.timeline.at(begin), changed.at(begin), settings)
            check_engine(changed)
            if self._check is not None:
                await asyncio.to_thread(self._check, changed.at(begin))
        except JobInvalid as error:
            raise as_bad_request(error) from error
        last = changed.last_step(self.filling - 1)
        # The job may be set to end with the current step. No other change makes sense for a step that never comes.
        ends_here = dict(settings) == {"total_steps": self.filling - 1}
        if last is not None and last < begin and not ends_here:
            raise BadRequest(
                f"the job ends after {last} steps, before step {begin}: {_remedy(settings, begin)}",
                param="total_steps" if "total_steps" in settings else "at_step",
            )
        return changed

    def _require_repetition(self, expected: int, settings: Mapping[str, Any], at_step: int | None) -> None:
        """Raise RevisionConflict unless this very change was made when the job was at that revision."""
        changes = self.timeline.changes
        made = changes[expected] if expected < len(changes) else None
        is_same = made is not None and dict(made.settings) == dict(settings)
        if made is None or not is_same or at_step not in {None, made.at_step}:
            raise RevisionConflict(
                f"the job is at revision {len(changes)}, not {expected}: somebody has changed it; read it (GET"
                " /v1/swarm/job) and decide again",
                param="expected_revision",
            )

    def _notify(self) -> None:
        for listener in list(self._listeners):
            listener()


def _remedy(settings: Mapping[str, Any], begin: int) -> str:
    """Say how to change a job that ends before the step at which these settings would take effect."""
    total = settings.get("total_steps")
    if total is not None and total >= begin:
        return "change total_steps alone first, and the other settings after it"
    return f"give total_steps as well, of {begin} or more"
