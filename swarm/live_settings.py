"""The settings of a job that can change while it runs, and the resolved job of every step after such changes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any, Final

from swarm.errors import BadRequest, JobInvalid
from swarm.job import NEW_RUN, TRAITS, Reader, TrainJob, build_job
from swarm.spelling import did_you_mean

LIVE: Final = {name: traits for name, traits in TRAITS.items() if traits.reader is not None}
"""The settings that can change while a job runs."""
FIXED: Final = {name: traits.fixed for name, traits in TRAITS.items() if traits.reader is None}
"""The settings that cannot change while a job runs, each with the reason and the way out."""


@dataclass(frozen=True, slots=True)
class JobChange:
    """One change of a running job: `settings` take effect at step `at_step`. Revisions of a run count from 1."""

    revision: int
    at_step: int
    settings: Mapping[str, Any]


class JobTimeline:
    """A job and the changes of its run, each with the step at which it takes effect.

    Of two changes at the same step, the one with the higher revision wins. Raise JobInvalid if a change makes the job
    of a step invalid.
    """

    def __init__(self, job: TrainJob, changes: Sequence[JobChange] = ()) -> None:
        self.job = job
        self.changes = tuple(changes)
        self._begins: list[int] = []
        self._stages: list[TrainJob] = []
        given: dict[str, Any] = job.model_dump(mode="json")
        self._add_stage(0, job)
        in_order = sorted(self.changes, key=lambda each: (each.at_step, each.revision))
        for at_step, together in groupby(in_order, key=lambda each: each.at_step):
            for change in together:
                given |= change.settings
            self._add_stage(at_step, None, given)
        self._given = given

    @property
    def revision(self) -> int:
        """The number of changes."""
        return len(self.changes)

    @property
    def final(self) -> TrainJob:
        """The job as given, with all changes."""
        return build_job(self._given) if self.changes else self.job

    @property
    def has_changed_end(self) -> bool:
        """True if one of the changes names `total_steps`."""
        return any("total_steps" in change.settings for change in self.changes)

    @property
    def breaks(self) -> Sequence[int]:
        """The steps at which a change takes effect."""
        return self._begins[1:]

    def at(self, step: int) -> TrainJob:
        """Return the resolved job of a step."""
        return self._stages[bisect_right(self._begins, step) - 1]

    def settings_of(self, step: int) -> dict[str, Any]:
        """Return the settings of a step that differ from the job as given. Both are resolved.

        If the learning rate has a schedule, `total_steps` is always included, as a client may later sync the job with
        more steps.
        """
        present, first = self.at(step), self._stages[0]
        if present is first:
            return {}
        changed = {name for name in LIVE if getattr(present, name) != getattr(first, name)}
        if present.lr_scheduler_type != "constant":
            changed.add("total_steps")
        return present.model_dump(mode="json", include=changed)

    def last_step(self, done: int) -> int | None:
        """Return the step after which the job is complete when `done` steps are done. None means that it never is."""
        for begin in chain([done + 1], (step for step in self.breaks if step > done + 1)):
            following = next((step for step in self.breaks if step > begin), None)
            total = self.at(begin).total_steps
            last = None if total is None else max(total, begin - 1)
            # The settings of the step after a step decide whether that step is the last one.
            if last is not None and (following is None or last + 1 < following):
                return last
        return None

    def extended(self, job: TrainJob) -> JobTimeline:
        """Return a timeline of `job`, which has other `total_steps`, with the same changes."""
        return JobTimeline(job, self.changes)

    def with_change(self, at_step: int, settings: Mapping[str, Any]) -> JobTimeline:
        return JobTimeline(self.job, [*self.changes, JobChange(self.revision + 1, at_step, dict(settings))])

    def differs(self, other: JobTimeline, from_step: int) -> bool:
        """Return whether any step from `from_step` on has another job than in `other`."""
        steps = {from_step, *(step for step in (*self.breaks, *other.breaks) if step > from_step)}
        return any(self.at(step) != other.at(step) for step in steps)

    def is_meant_by(self, job: TrainJob) -> bool:
        """Return whether `job` is the job of this run, as it was given or with all changes."""
        return job.means(self.job) or job.means(self.final)

    def is_extended_by(self, job: TrainJob) -> bool:
        """Return whether `job` is the job of this run with more steps, as it was given or with all changes."""
        final = self.final
        if final.has_schedule:
            return False
        return job.extends(self.job.model_copy(update={"total_steps": final.total_steps})) or job.extends(final)

    def _add_stage(self, begin: int, job: TrainJob | None, given: Mapping[str, Any] | None = None) -> None:
        resolved = (job or build_job(dict(given or {}))).resolve()
        if self._begins and self._begins[-1] == begin:
            self._stages[-1] = resolved
        else:
            self._begins.append(begin)
            self._stages.append(resolved)


def with_settings(job: TrainJob, settings: Mapping[str, Any]) -> TrainJob:
    """Return a resolved job with the settings of a step that `JobTimeline.settings_of` returned."""
    return build_job({**job.model_dump(mode="json"), **settings}) if settings else job


def earliest_step(settings: Mapping[str, Any], filling: int) -> int:
    """Return the first step that can have a change. `filling` is the step whose batch is being collected."""
    return filling + any(LIVE[name].reader is Reader.BATCH for name in settings)


def check_names(settings: Mapping[str, Any]) -> None:
    """Raise BadRequest for the first setting that does not exist or cannot change while a job runs."""
    if not settings:
        raise BadRequest("no setting named: give at least one, such as lr", param="settings")
    for name in settings:
        if name in FIXED:
            raise BadRequest(f"{name} cannot change while the job runs: {FIXED[name]}", param=name)
        if name not in LIVE:
            raise BadRequest(f"{name}: unknown setting{did_you_mean(name, TrainJob.model_fields)}", param=name)


def check_effect(before: TrainJob, after: TrainJob, settings: Mapping[str, Any]) -> None:
    """Raise BadRequest for the first of these settings that acts neither in the job before the change nor after it.

    A change that ends what a setting acts on may set it back, or bound how what is under way ends.
    """
    for name in settings:
        if (reason := after.why_without_effect(name)) and before.find_lacking(name):
            raise BadRequest(reason, param=name)


def check_engine(timeline: JobTimeline) -> None:
    """Raise BadRequest for a change that the job's engine cannot make, even if another change implies it."""
    if timeline.job.chosen_engine != "verl":
        return
    for step in timeline.breaks:
        if (timeline.at(step).total_steps or step) < step:
            # The job ends before this step, so the engine never sees the change.
            continue
        for name in timeline.settings_of(step):
            if not LIVE[name].on_verl:
                raise BadRequest(
                    f"{name} cannot change while engine verl runs, as its processes are built with it: {NEW_RUN}",
                    param=name,
                )
            if name == "total_steps" and timeline.job.has_schedule:
                raise BadRequest(
                    "total_steps cannot change while engine verl runs with a learning rate schedule, as its processes"
                    f" are built with it: {NEW_RUN}",
                    param=name,
                )


def as_bad_request(error: JobInvalid) -> BadRequest:
    """Return the error for the caller whose change would make the job invalid."""
    return BadRequest(error.message.removeprefix("job: "), param=error.param)
