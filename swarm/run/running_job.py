"""The job of one run while it runs: what holds for each step, and the changes that are made to it.

Place in the flow: made by server/build.py from the job and from the changes on record. Rollout and training loop ask it
for the job of a step; a change is on record before it holds. It knows nothing of HTTP, episodes or weights.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from swarm.errors import BadRequest, JobInvalid, RevisionConflict
from swarm.job import TrainJob
from swarm.live_settings import JobChange, JobTimeline, as_bad_request, check_engine, check_names, earliest_step

logger = logging.getLogger(__name__)

Record = Callable[[JobChange], Awaitable[None]]
"""Makes a change durable."""


class RunningJob:
    """Used from one event loop. `record` is called before a change holds, `check` for every job that a change makes.

    `filling` is the step whose batch is being collected; whoever seals or takes back a batch says so by `fill`.
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
        self.sealing = asyncio.Lock()
        """Held while a change is recorded, and while a batch is sealed, so that no step lies between the two."""
        self._record = record
        self._check = check
        self._listeners: list[Callable[[], None]] = []

    def at(self, step: int) -> TrainJob:
        """The job that holds for a step, resolved."""
        return self.timeline.at(step)

    def fill(self, step: int) -> None:
        """The batch of this step is being collected from here on."""
        self.filling = step

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call `listener` right after every change."""
        self._listeners.append(listener)

    def extend(self, job: TrainJob) -> None:
        """Go on to the end of `job`, which is the one as given with other `total_steps`."""
        self.timeline = self.timeline.extended(job)
        self._tell()

    async def change(
        self, settings: Mapping[str, Any], *, at_step: int | None = None, expected_revision: int | None = None
    ) -> None:
        """Change settings from a step on, by default the first that can have them; durable on return.

        What changes nothing is not recorded. With an `expected_revision` the change is made once: sent again, it finds
        itself done. Raises BadRequest by name for a setting that cannot change, a step that is past or never comes, or
        a job that would not be sound; RevisionConflict if the job is at another revision.
        """
        check_names(settings)
        async with self.sealing:
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
        self._tell()

    def _begin_of(self, settings: Mapping[str, Any], at_step: int | None) -> int:
        earliest = earliest_step(settings, self.filling)
        if at_step is not None and at_step < earliest:
            raise BadRequest(
                f"at_step {at_step} is past or under way: the first step that can have this is {earliest}",
                param="at_step",
            )
        return at_step or earliest

    async def _checked(self, begin: int, settings: Mapping[str, Any]) -> JobTimeline:
        try:
            changed = self.timeline.with_change(begin, settings)
            check_engine(changed)
            if self._check is not None:
                await asyncio.to_thread(self._check, changed.at(begin))
        except JobInvalid as error:
            raise as_bad_request(error) from error
        last = changed.last_step(self.filling - 1)
        # The job may end with the step that is done or in work; nothing else can be asked of a step that never comes.
        ends_here = dict(settings) == {"total_steps": self.filling - 1}
        if last is not None and last < begin and not ends_here:
            raise BadRequest(
                f"step {begin} will not come: the job is complete after {last} steps; give total_steps as well, of"
                f" {begin} or more",
                param="total_steps" if "total_steps" in settings else "at_step",
            )
        return changed

    def _require_repetition(self, expected: int, settings: Mapping[str, Any], at_step: int | None) -> None:
        """Raises RevisionConflict unless this very change was made when the job was at that revision."""
        changes = self.timeline.changes
        made = changes[expected] if expected < len(changes) else None
        is_same = made is not None and dict(made.settings) == dict(settings)
        if made is None or not is_same or at_step not in {None, made.at_step}:
            raise RevisionConflict(
                f"the job is at revision {len(changes)}, not {expected}: somebody has changed it; read it (GET"
                " /v1/swarm/job) and decide again",
                param="expected_revision",
            )

    def _tell(self) -> None:
        for listener in list(self._listeners):
            listener()
