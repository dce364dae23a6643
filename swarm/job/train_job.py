"""`TrainJob`, the checked settings of a training run, and how it is read from a file or from data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self, cast

import yaml
from pydantic import ModelWrapValidatorHandler, ValidationError, model_validator

from swarm.errors import JobInvalid
from swarm.estimators import ESTIMATORS
from swarm.external_samplers import EXTERNAL_SAMPLERS
from swarm.job.checks import check_estimator, check_loss, check_mixture, check_supervision
from swarm.job.learning_rate import CRITIC_LR_DEFAULT, LR_OF_BUNDLED_MODELS, default_lr, default_sft_lr
from swarm.job.settings import (
    AGGREGATION_BY_LOSS,
    RESPONSE_TOKENS,
    TRAITS,
    JobSettings,
    RolloutIS,
    SamplerKind,
)
from swarm.job.traits import Need
from swarm.spelling import with_hints

LEFT_OUT: Final[tuple[Any, ...]] = (None, "auto", {}, [])
"""Values by which a setting is left out as if the job did not name it."""


class TrainJob(JobSettings):
    """One training run of one model. Names and defaults are verl's wherever verl has the setting.

    `resolve` fills in settings that are None. In the aggregation modes a sequence is an episode.
    """

    @model_validator(mode="wrap")
    @classmethod
    def _hint_at_known_settings(cls, data: Any, check: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return check(data)
        except ValidationError as error:
            raise with_hints(error, cls) from None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        # A job that states everything is the record of one: settings that nothing reads are there as well.
        if self.model_fields_set != type(self).model_fields.keys():
            for name in (each for each in TRAITS if each in self.model_fields_set):
                if reason := self.why_without_effect(name):
                    raise ValueError(reason)
        if self.min_group is not None and self.min_group > self.num_repeat:
            raise ValueError(f"min_group ({self.min_group}) must not exceed num_repeat ({self.num_repeat})")
        if self.mixture is not None:
            check_mixture(self.mixture)
        if self.mini_batch_num > self.batch_size * self.num_repeat:
            raise ValueError("mini_batch_num must not exceed batch_size * num_repeat")
        if self.chosen_engine != "verl" and self.n_gpu > 1:
            raise ValueError(f"engine {self.engine} uses one GPU at most: set engine to verl for {self.n_gpu}")
        check_estimator(self)
        check_loss(self)
        check_supervision(self)
        self._check_sampler()
        self._check_guard()
        if self.lr_scheduler_type != "constant" and self.total_steps is None:
            raise ValueError(f"lr_scheduler_type {self.lr_scheduler_type} ends at total_steps: set total_steps")
        own = AGGREGATION_BY_LOSS.get(self.policy_loss)
        if own is not None and self.loss_agg_mode not in {None, own}:
            raise ValueError(f"policy_loss {self.policy_loss} aggregates by {own}: leave loss_agg_mode out")
        return self

    def _check_sampler(self) -> None:
        if self.sampler in EXTERNAL_SAMPLERS and self.lora_rank:
            raise ValueError(
                f"sampler {self.sampler} is given whole weights and no adapter: set lora_rank to 0, or sampler to local"
            )

    def _check_guard(self) -> None:
        if self.guard == "rollback" and self.chosen_engine == "verl":
            raise ValueError(
                "guard rollback halves the learning rate, which engine verl cannot while it runs: set guard to stop"
            )
        if self.guard == "stop" and self.has_fixed_end:
            raise ValueError(
                "guard stop ends the training early, which engine verl cannot with a learning rate schedule: set guard"
                " to warn"
            )

    @property
    def _known_sampler(self) -> SamplerKind:
        """The sampler of the job. `auto` becomes local on the CPU. On a GPU only the server can decide it."""
        is_on_cpu = self.chosen_engine == "local" and not self.n_gpu
        return "local" if self.sampler == "auto" and is_on_cpu else self.sampler

    def resolve(self) -> TrainJob:
        """Return the job with all default values filled in, except those that only a server can decide."""
        lr = default_lr(self.model, has_adapter=self.lora_rank > 0) if self.lr is None else self.lr
        return self.model_copy(
            update={
                **self._automatic_where_needed,
                "engine": self.chosen_engine,
                "sampler": self._known_sampler,
                "lr": lr,
                "min_group": min(2, self.num_repeat) if self.min_group is None else self.min_group,
                "loss_agg_mode": self.loss_agg_mode or AGGREGATION_BY_LOSS.get(self.policy_loss, "token-mean"),
                "rollout_is": self.rollout_is or self._automatic_correction,
                "clip_ratio_low": self.clip_ratio if self.clip_ratio_low is None else self.clip_ratio_low,
                "clip_ratio_high": self.clip_ratio if self.clip_ratio_high is None else self.clip_ratio_high,
            }
        )

    @property
    def reply_tokens(self) -> int:
        """The most tokens of a model call that names no limit."""
        return self.max_response_length or RESPONSE_TOKENS

    @property
    def has_sft_term(self) -> bool:
        """True if steps that train on rewards have a supervised loss as well."""
        return self.sft_coeff > 0

    def is_supervised(self, step: int) -> bool:
        """Return whether a step trains on demonstrations alone."""
        return self.demonstrations is not None and step <= self.sft_steps

    def reads_demonstrations(self, step: int) -> bool:
        """Return whether a step trains on demonstrations, alone or beside the rewards."""
        return self.demonstrations is not None and (step <= self.sft_steps or self.has_sft_term)

    @property
    def has_critic(self) -> bool:
        """True if the job also trains a critic, a second model that estimates the value of each token."""
        return ESTIMATORS[self.algorithm].has_critic

    @property
    def has_greedy(self) -> bool:
        """True if each group has one greedy episode, which is the baseline of the others."""
        return ESTIMATORS[self.algorithm].has_greedy

    @property
    def reads_policy(self) -> bool:
        """True if the advantages depend on the policy's probabilities of all tokens."""
        return ESTIMATORS[self.algorithm].reads_policy

    @property
    def _automatic_where_needed(self) -> dict[str, Any]:
        """The defaults of the settings that have one only with their needs, which are all of the algorithm."""
        defaults = {
            name: traits.automatic
            for name, traits in TRAITS.items()
            if traits.automatic is not None and all(self._meets(need) for need in traits.needs)
        }
        if self.has_critic:
            defaults["critic_lr"] = LR_OF_BUNDLED_MODELS.get(self.model, CRITIC_LR_DEFAULT)
        if self.demonstrations is not None:
            defaults["sft_lr"] = default_sft_lr(self.model, has_adapter=self.lora_rank > 0)
        return {name: default for name, default in defaults.items() if getattr(self, name) is None}

    @property
    def _automatic_correction(self) -> RolloutIS:
        if self.policy_loss == "bypass_mode" and self.loss_type == "ppo_clip":
            return "off"
        return "token" if self.max_staleness else "off"

    @property
    def has_proximal_policy(self) -> bool:
        """True if a resolved job takes the policy at the start of a step as the reference of the importance ratio.

        `rollout_is` then corrects for the policy that sampled. Otherwise that policy is the reference itself.
        """
        return self.rollout_is != "off" and self.policy_loss != "bypass_mode"

    @property
    def moves_without_minibatches(self) -> bool:
        """True if some update of a resolved job without minibatches trains another policy than its reference.

        That of a second epoch does. The first one does if the reference of the importance ratio is the policy that
        sampled, and that policy is older or another program computed its probabilities.
        """
        if self.ppo_epochs > 1 or self.has_proximal_policy:
            return self.ppo_epochs > 1
        is_local = self.engine == "fake" or (self.engine == "local" and self.sampler == "local")
        return self.max_staleness > 0 or not is_local

    def _meets(self, need: Need) -> bool:
        return need.is_met(getattr(self, need.setting)) or (bool(need.unless) and getattr(self, need.unless))

    def find_lacking(self, name: str) -> dict[str, Any]:
        """Return what the setting lacks to have an effect in this job: further settings, each with a usual value."""
        resolved, lacking, due = self.resolve(), dict[str, Any](), [name]
        while due:
            for need in TRAITS[due.pop()].needs:
                if need.setting not in {name, *lacking} and not resolved._meets(need):
                    lacking[need.setting] = need.adds
                    due.append(need.setting)
        return lacking

    def why_without_effect(self, name: str) -> str | None:
        """Return why the value of the setting changes nothing, and what to add; None if it is left out or acts."""
        traits, value = TRAITS[name], getattr(self, name)
        if traits.is_spare or value in LEFT_OUT or (traits.follows and value == getattr(self, traits.follows)):
            return None
        if not (lacking := self.find_lacking(name)):
            return None
        resolved = self.resolve()
        present = " and ".join(f"{each} is {value_as_text(getattr(resolved, each))}" for each in lacking)
        added = ", ".join(f"`{each}: {value_as_text(value)}`" for each, value in lacking.items())
        return f"{name} has no effect while {present}: add {added}, or leave {name} out"

    def means(self, other: TrainJob) -> bool:
        """Return whether both jobs have the same settings once all defaults are filled in."""
        return self.resolve() == other.resolve()

    def extends(self, earlier: TrainJob) -> bool:
        """Return whether this is the `earlier` job with more `total_steps`, so that its run can continue.

        A job whose learning rate decays cannot be extended, because `total_steps` changes the rate of every step.
        """
        if earlier.total_steps is None or (self.total_steps is not None and self.total_steps <= earlier.total_steps):
            return False
        longer = earlier.model_copy(update={"total_steps": self.total_steps})
        return self.means(longer) and not self.has_schedule

    @property
    def has_schedule(self) -> bool:
        """True if the learning rate decays towards `total_steps`."""
        return self.lr_scheduler_type != "constant" or _has_schedule(self.verl)

    @property
    def has_fixed_end(self) -> bool:
        """True if `total_steps` cannot change while the job runs, because the engine was built with the schedule."""
        return self.has_schedule and self.chosen_engine == "verl"

    def dump_job_as_yaml(self, path: str | Path) -> Path:
        """Write the job to a YAML file, without the settings that have their defaults, and return the path."""
        target = Path(path)
        target.write_text(yaml.safe_dump(self.model_dump(mode="json", exclude_defaults=True), sort_keys=False))
        return target

    @classmethod
    def build_job_from_yaml(cls, path: str | Path) -> TrainJob:
        """Return the job of a YAML file. Raise JobInvalid if the file is missing, not YAML or not a valid job."""
        return build_job(read_job_settings(Path(path)), source=str(path))


def value_as_text(value: object) -> str:
    """Return the value of a setting as a job file has it, where None means that it is not set."""
    if value is None:
        return "not set"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _has_schedule(settings: Mapping[str, Any]) -> bool:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            if _has_schedule(cast(Mapping[str, Any], value)):
                return True
        elif name.rpartition(".")[2] == "lr_scheduler_type" and value != "constant":
            return True
    return False


def build_job(data: object, *, source: str = "job") -> TrainJob:
    """Return a checked job from parsed data. Raise JobInvalid, which names the first wrong field.

    `source` begins the message and says where the data came from.
    """
    if not isinstance(data, dict):
        raise JobInvalid(f"{source}: expected a mapping of settings, got {type(data).__name__}")
    try:
        return TrainJob.model_validate(data)
    except ValidationError as error:
        raise JobInvalid(f"{source}: {first_line(error)}", param=first_location(error)) from error


def read_job_settings(path: Path) -> object:
    """Return the content of a YAML file, not checked. Raise JobInvalid if the file is missing or not YAML."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise JobInvalid(f"{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise JobInvalid(f"{path}: not valid YAML: {reason}") from error


def first_location(error: ValidationError) -> str | None:
    """Return the location of the first wrong value, such as `a.b.0`, or None if the data as a whole is wrong."""
    location = error.errors(include_url=False)[0]["loc"]
    return ".".join(str(part) for part in location) or None


def first_line(error: ValidationError) -> str:
    """Return what is wrong with the first wrong value. The value of a token is left out, as it is a secret."""
    first = error.errors(include_url=False)[0]
    where = first_location(error)
    what = first["msg"].removeprefix("Value error, ")
    is_secret = where is not None and where.endswith("token")
    explains_itself = first["type"] in {"extra_forbidden", "value_error"}
    got = "" if explains_itself or is_secret else f" (got {first['input']!r})"
    return f"{where}: {what}{got}" if where else what
