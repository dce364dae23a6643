"""The settings of a job that can change while it runs, and the resolved job of every step after such changes.

Place in the flow: beside the job. running_job.py checks changes against the tables here, the ledger records them, and
the docs show the tables. Recovery asks for the settings of each trained step. The module is pure: it does not know the
ledger, batches, or the parts that carry out a setting.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain, groupby
from types import MappingProxyType
from typing import Any, Final

from swarm.errors import BadRequest, JobInvalid
from swarm.job import TrainJob, build_job
from swarm.spelling import did_you_mean


class Reader(StrEnum):
    """The time at which a setting is read, which decides the first step that can have a change of it.

    BATCH settings are read from the first episode of a batch on and never change within one. A change takes effect with
    the batch after the present one. STEP settings are read when a batch is trained, or later. A change takes effect
    with the next batch that is closed.
    """

    BATCH = "batch"
    STEP = "step"


@dataclass(frozen=True, slots=True)
class LiveSetting:
    """A setting that can change while the job runs. `on_verl` is false if the engine verl cannot change it."""

    reader: Reader
    on_verl: bool


_COLLECTED: Final = (
    "batch_size", "num_repeat", "stop_rule", "min_group", "drain_timeout_s", "batch_timeout_s", "group_timeout_s",
    "stall_timeout_s", "max_staleness", "mixture", "episode_timeout_s", "temperature",
)  # fmt: skip
_COUNTED: Final = (
    "total_steps", "save_freq", "keep_last", "keep_best", "keep_best_metric", "eval_every", "eval_episodes",
    "eval_timeout_s", "guard",
)  # fmt: skip
_LEARNED: Final = (
    "lr", "lr_warmup_steps", "lr_scheduler_type", "min_lr_ratio", "weight_decay", "betas", "grad_clip", "ppo_epochs",
    "mini_batch_num", "ppo_max_token_len", "norm_adv_by_std_in_grpo", "gamma", "lam", "critic_lr", "critic_warmup",
    "cliprange_value", "gdpo_reward_weights", "policy_loss", "clip_ratio",
    "clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "loss_agg_mode", "loss_scale_factor", "entropy_coeff",
    "rollout_is", "rollout_is_threshold", "dro_beta", "loss_type", "rollout_is_batch_normalize", "rollout_rs",
    "rollout_rs_threshold", "kl_loss_coef", "kl_loss_type",
)  # fmt: skip

LIVE: Final[Mapping[str, LiveSetting]] = MappingProxyType(
    {
        **dict.fromkeys(_COLLECTED, LiveSetting(Reader.BATCH, on_verl=True)),
        # On verl, one aggregation mode of the loss divides by it, and verl's processes are built with that divisor.
        "max_response_length": LiveSetting(Reader.BATCH, on_verl=False),
        **dict.fromkeys(_COUNTED, LiveSetting(Reader.STEP, on_verl=True)),
        # verl's processes are built with their optimizer and their loss.
        **dict.fromkeys(_LEARNED, LiveSetting(Reader.STEP, on_verl=False)),
    }
)
"""The settings that can change while a job runs."""

_NEW_RUN: Final = 'sync the changed job with resume="weights", which begins a new run from the present weights'
_EXPORT: Final = "write the whole model with swarm export --merge-lora, and begin a new run with a job of that model"

FIXED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "algorithm": f"networks and episodes are set up for it: {_NEW_RUN}",
        "gdpo_reward_keys": f"recorded episodes have only these rewards: {_NEW_RUN}",
        "project_name": "it names the run: sync a job with another name, which begins a new run",
        "experiment_name": "it names the run: sync a job with another name, which begins a new run",
        "engine": f"the processes of the engine hold the weights: {_NEW_RUN}",
        "model": "the run trains the weights of this model: sync a job with the other model, which begins a new run",
        "resume_from": "the run began at this checkpoint, or at its model: sync a job with the other resume_from, which"
        " begins a new run",
        "n_gpu": f"the engine has taken its GPUs: {_NEW_RUN}",
        "dtype": f"the engine has loaded the weights with it: {_NEW_RUN}",
        "seed": f"every step draws random numbers from it: {_NEW_RUN}",
        "use_kl_loss": "the reference weights are copied when a run begins: begin a run with use_kl_loss: true and"
        " kl_loss_coef: 0, and change kl_loss_coef",
        "share_prefixes": f"the engine is built with it: {_NEW_RUN}",
        "enable_gradient_checkpointing": f"the engine is built with it: {_NEW_RUN}",
        "eval_env": "the evaluator is started with the run: start swarm eval --follow beside the run",
        "lora_rank": f"the adapter is part of the model: {_EXPORT}",
        "lora_alpha": f"the adapter is part of the model: {_EXPORT}",
        "lora_target_modules": f"the adapter is part of the model: {_EXPORT}",
        "max_model_len": f"the engine is built for it: {_NEW_RUN}",
        "tool_parser": f"recorded turns were parsed with it: {_NEW_RUN}",
        "reasoning_parser": f"recorded turns were parsed with it: {_NEW_RUN}",
        "sampler": f"the processes of the sampler hold the weights: {_NEW_RUN}",
        "sampler_options": f"the processes of the sampler are built with these options: {_NEW_RUN}",
        "verl": f"verl's processes are built with these options: {_NEW_RUN}",
    }
)
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
                    f"{name} cannot change while engine verl runs, as its processes are built with it: {_NEW_RUN}",
                    param=name,
                )
            if name == "total_steps" and timeline.job.has_schedule:
                raise BadRequest(
                    "total_steps cannot change while engine verl runs with a learning rate schedule, as its processes"
                    f" are built with it: {_NEW_RUN}",
                    param=name,
                )


def as_bad_request(error: JobInvalid) -> BadRequest:
    """Return the error for the caller whose change would make the job invalid."""
    return BadRequest(error.message.removeprefix("job: "), param=error.param)
