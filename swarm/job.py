"""The job of a training run, `TrainJob`, with all its settings and their checks.

Place in the flow: the edge, where a job comes from a client, a file or the ledger. The module does not know how a
setting is put into effect. Each engine itself checks whether it supports a job.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast

import yaml
from pydantic import (
    ConfigDict,
    Field,
    FiniteFloat,
    ModelWrapValidatorHandler,
    ValidationError,
    field_validator,
    model_validator,
)

from swarm.algorithms import CRITIC_ALGORITHM, GREEDY_ALGORITHM, check_algorithm
from swarm.descriptions import DescribedModel
from swarm.errors import JobInvalid
from swarm.external_samplers import EXTERNAL_SAMPLERS
from swarm.schemas import Identifier, StopRule
from swarm.spelling import with_hints

BUNDLED_MODEL = "nano"
"""The default model of a job."""
LR_OF_BUNDLED_MODELS: Mapping[str, float] = MappingProxyType({BUNDLED_MODEL: 3e-3, "micro": 1e-3})
"""Default learning rates of the bundled models, by model name."""
LR_DEFAULT = 1e-6
"""Default learning rate of all other models, which is verl's. It suits models 10,000 times as large as the bundled."""
CRITIC_LR_DEFAULT = 1e-5
"""Default learning rate of a critic, which is verl's."""

AdvantageEstimator = Literal[
    "grpo", "grpo_vectorized", "grpo_passk", "reinforce_plus_plus", "reinforce_plus_plus_baseline",
    "rloo", "rloo_vectorized", "opo", "gpg", "gae", "optimal_token_baseline", "tir_optimal_token_baseline",
    "gdpo", "remax",
]  # fmt: skip
"""Advantage estimators, by verl's names. swarm/algorithms.py says which engine supports which."""

PolicyLoss = Literal[
    "vanilla", "gspo", "cispo", "dppo_tv", "dppo_kl", "sapo", "gpg", "clip_cov", "kl_cov", "geo_mean", "dro",
    "bypass_mode",
]  # fmt: skip
BypassLoss = Literal["ppo_clip", "reinforce"]
LossAggregation = Literal[
    "token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
]
RolloutIS = Literal["off", "token", "sequence"]
"""Level of truncated importance sampling, which corrects for the policy that sampled a token. verl calls it rollout
correction. The default is "token" if `max_staleness` allows older policies, else "off"."""
if TYPE_CHECKING:
    Sampler = str
else:
    Sampler = Literal[("auto", "local", *EXTERNAL_SAMPLERS)]
"""The sampler of the local engine: "local" is the worker process that trains, the others run in separate processes."""
ToolParser = Literal["auto", "hermes", "llama3_json", "mistral"]
ReasoningParser = Literal["auto", "none", "think", "mistral"]
"""Formats in which a model writes tool calls, and its reasoning before a reply. "auto" finds the format in the chat
template, or else in the vocabulary."""
GROUP_TIMEOUT_S = 30.0
"""Default of `group_timeout_s`. A client repeats a failed attempt within this time. Others wait for the group."""
STALL_TIMEOUT_S = 300.0
"""Default of `stall_timeout_s`. Within this time a person can fix and restart a client and so complete the batch."""
EVAL_TIMEOUT_S = 300.0
"""Default of `eval_timeout_s`. It is enough to start an evaluator and to score some hundred short episodes. It is well
below the time that clients wait to begin an episode."""
LoraTargets = Literal["all-linear"] | list[Annotated[str, Field(min_length=1, max_length=200)]]
LRScheduler = Literal["constant", "linear", "cosine"]
KLKind = Literal["k1", "abs", "k2", "mse", "k3", "low_var_kl"]

AGGREGATION_BY_LOSS: dict[str, LossAggregation] = {
    "gspo": "seq-mean-token-mean",
    "sapo": "seq-mean-token-mean",
    "geo_mean": "seq-mean-token-mean",
}
"""Aggregation of the losses for which verl ignores `loss_agg_mode`."""


class TrainJob(DescribedModel):
    """One training run of one model. Names and defaults are verl's wherever verl has the setting.

    Settings that are None are filled in by `resolve`. A sequence, in the aggregation modes, is an episode. What each
    setting does is said by its description, and by docs/configuration.md, which is made of the descriptions.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    algorithm: AdvantageEstimator = "grpo"
    """Advantage estimator, by verl's name."""
    project_name: Identifier = "swarm"
    """Together with `experiment_name` it names a run: a job of the same two names goes on where that run is."""
    experiment_name: Identifier = "default"
    """See `project_name`."""
    engine: Literal["auto", "local", "verl", "fake"] = "auto"
    """What samples and trains: `local` in one worker process, `verl` on Ray, `fake` without a model, for tests. `auto`
    is local for up to one GPU and verl beyond."""
    model: str = Field(default=BUNDLED_MODEL, min_length=1)
    """`nano` or `micro`, which are bundled, or the directory of a Hugging Face causal language model with its
    tokenizer."""
    n_gpu: int = Field(default=0, ge=0, le=100_000)
    """GPUs of the trainer; 0 is the CPU."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format that the weights are loaded, sampled and differentiated in; AdamW works on float32 copies of
    bfloat16 ones. `auto` on a CPU is bfloat16 for a checkpoint in bfloat16 if the processor multiplies such numbers
    itself, and else float32; on a GPU it is bfloat16. Engine verl has settings of its own, in `verl`."""
    sampler: Sampler = "auto"
    """What samples for engine local: the worker that trains (`local`), or `vllm` in processes of its own on the same
    device, see [models](models.md#vllm-as-the-sampler). `auto` is local on the CPU; on a GPU it is vllm where the
    server was given vLLM's interpreter and the job names a model of its own and no adapter. Engine verl always samples
    with vLLM."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """What minibatches, the training step and sampling without a seed of its own draw from."""

    batch_size: int = Field(default=16, ge=1, le=100_000)
    """Tasks per batch."""
    num_repeat: int = Field(default=8, ge=1, le=10_000)
    """Episodes per task, which is the size of a group."""
    stop_rule: StopRule = "enough_tasks"
    """When a batch is complete: see [stop rules](algorithms.md#from-episodes-to-a-batch)."""
    min_group: int | None = Field(default=None, ge=1)
    """A group with fewer episodes than this is dropped and counted when its batch is sealed. Default: 2, or 1 where
    `num_repeat` is 1."""
    drain_timeout_s: float = Field(default=30.0, gt=0, le=86_400)
    """Seconds that a complete batch waits for episodes still running."""
    batch_timeout_s: float | None = Field(default=None, gt=0, le=86_400)
    """Seconds after its first episode when a batch is sealed with what it has. Default: no limit."""
    group_timeout_s: float = Field(default=GROUP_TIMEOUT_S, gt=0, le=86_400)
    """Seconds after which a group counts with what it has, if none of its episodes runs or is asked for."""
    stall_timeout_s: float = Field(default=STALL_TIMEOUT_S, gt=0, le=86_400)
    """Seconds after which a batch in which no train episode runs counts with what it has."""
    max_staleness: int = Field(default=0, ge=0, le=1000)
    """By how many weight versions a trained token may be older than the weights that it trains. 0 is on-policy."""
    mixture: dict[Identifier, float] | None = None
    """Share of each data source in a batch; the shares sum to 1. Default: whatever comes."""
    episode_timeout_s: float = Field(default=1800.0, gt=0, le=604_800)
    """Seconds after its begin when an episode is given up, whatever its client does."""
    total_steps: int | None = Field(default=None, ge=1)
    """Training steps after which the job is complete. Default: none, it goes on."""
    save_freq: int = Field(default=0, ge=0)
    """A checkpoint is kept every so many steps; 0 keeps none but those that crash recovery starts from."""
    keep_last: int | None = Field(default=None, ge=1)
    """How many of the checkpoints of `save_freq` stay, the newest. Default: all."""
    keep_best: int = Field(default=0, ge=0)
    """How many older ones stay besides, the best by `keep_best_metric`."""
    keep_best_metric: str = Field(default="critic/score/mean", pattern=r"^-?[\w./@+-]+$", max_length=200)
    """A metric of the step that made a checkpoint. The highest is best; with a minus before the name, the lowest."""

    eval_every: int = Field(default=0, ge=0)
    """Held-out episodes score the weights every so many steps, before the first and after the last; 0 is never. See
    [scores while it trains](http-api.md#scores-while-it-trains)."""
    eval_episodes: int = Field(default=200, ge=1, le=100_000)
    """Held-out episodes of each score."""
    eval_env: str | None = Field(default=None, min_length=1, max_length=200)
    """Environment that the server itself scores the weights on: a bundled one, or one that it offers by
    `swarm start --eval-env`. Default: none, evaluators come from elsewhere."""
    eval_timeout_s: float = Field(default=EVAL_TIMEOUT_S, gt=0, le=86_400)
    """Seconds that the next training step waits for a score that is due; then it goes on without."""

    lr: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Learning rate of AdamW. Default: 0.003 for `nano`, 0.001 for `micro`, else 1e-6."""
    lr_warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the learning rate rises to `lr`."""
    lr_scheduler_type: LRScheduler = "constant"
    """How the learning rate goes on after the warm-up: as it is, or down to its floor at `total_steps`, in a straight
    line or along half a cosine."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """The floor of a learning rate that goes down, as a share of `lr`."""
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Decoupled weight decay of AdamW."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay rates of AdamW's two moments."""
    grad_clip: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Largest norm of the gradient of one update; a larger gradient is scaled down."""
    ppo_epochs: int = Field(default=1, ge=1)
    """Passes over each batch."""
    mini_batch_num: int = Field(default=1, ge=1)
    """Optimizer updates per pass: a batch is split into so many minibatches."""
    ppo_max_token_len: int = Field(default=16_384, ge=64)
    """Tokens of one forward and backward pass: minibatches are cut into microbatches of at most so many."""
    share_prefixes: Literal["auto", "off"] = "auto"
    """Whether prefixes that samples of a minibatch have in common are computed once: `auto` where it saves time, on the
    local engine alone. See [sharing](algorithms.md#common-prefixes-once)."""

    enable_gradient_checkpointing: bool | None = None
    """Whether layers are computed again in the backward pass: less memory, longer steps. Default: no; with engine verl
    on GPUs yes."""

    lora_rank: int = Field(default=0, ge=0, le=4096)
    """Rank of a LoRA adapter, which alone is trained; 0 trains the full parameters. See [LoRA](models.md#lora)."""
    lora_alpha: int = Field(default=16, ge=1)
    """The adapter's output is scaled by `lora_alpha / lora_rank`."""
    lora_target_modules: LoraTargets = "all-linear"
    """Modules that the adapter is put into, by the ends of their names, or `all-linear`: every linear layer but the
    output head."""

    norm_adv_by_std_in_grpo: bool = True
    """Whether GRPO's advantages are divided by the standard deviation of their group; false is Dr.GRPO."""
    gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount of the estimators that have one."""
    lam: float | None = Field(default=None, ge=0, le=1)
    """λ of `algorithm: gae`. Default: 1."""
    critic_lr: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Learning rate of the critic of `algorithm: gae`. Default: 0.003 for `nano`, 0.001 for `micro`, else 1e-5."""
    critic_warmup: int | None = Field(default=None, ge=0)
    """The first step of `algorithm: gae` that trains the policy; those before it train the critic alone. Default: 0."""
    cliprange_value: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """How far the critic's value of a token counts as moved in one step of `algorithm: gae`. Default: 0.5."""
    gdpo_reward_keys: list[Identifier] | None = Field(default=None, min_length=1, max_length=100)
    """Names of the rewards that `algorithm: gdpo` learns from, which needs them: every train episode ends with all."""
    gdpo_reward_weights: list[FiniteFloat] | None = Field(default=None, min_length=1, max_length=100)
    """Weights of `gdpo_reward_keys`, in their order. Default: 1 each."""
    policy_loss: PolicyLoss = "vanilla"
    """Policy loss, by verl's name."""
    clip_ratio: float = Field(default=0.2, ge=0)
    """Clip range of the importance ratio, where a side has none of its own."""
    clip_ratio_low: float | None = Field(default=None, ge=0)
    """Clip range below 1. Default: `clip_ratio`."""
    clip_ratio_high: float | None = Field(default=None, ge=0)
    """Clip range above 1, DAPO's clip-higher. Default: `clip_ratio`."""
    clip_ratio_c: float = Field(default=3.0, gt=1)
    """Bound of the loss for negative advantages, as in dual-clip PPO."""
    loss_agg_mode: LossAggregation | None = None
    """How the losses of tokens become one number. Default: what the policy loss prescribes, else `token-mean`."""
    loss_scale_factor: int | None = Field(default=None, ge=1)
    """What `seq-mean-token-sum-norm` divides by. Default: `max_response_length`."""
    entropy_coeff: float = Field(default=0.0, allow_inf_nan=False)
    """Weight of an entropy bonus."""
    rollout_is: RolloutIS | None = None
    """Truncated importance weights against the policy that sampled a token. Default: `token` where `max_staleness` is
    above 0, else `off`."""
    rollout_is_threshold: float = Field(default=2.0, gt=0, allow_inf_nan=False)
    """Where the weights of `rollout_is` are truncated."""
    dro_beta: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Weight of the quadratic penalty of `policy_loss: dro`, which needs it."""
    loss_type: BypassLoss = "ppo_clip"
    """What `policy_loss: bypass_mode` minimises, by verl's name."""
    rollout_is_batch_normalize: bool = False
    """Whether the weights of `rollout_is` are divided by their mean over a minibatch, in `policy_loss: bypass_mode`
    with `loss_type: reinforce`."""
    rollout_rs: str | None = Field(default=None, min_length=1, max_length=200)
    """Criteria by which `policy_loss: bypass_mode` leaves out tokens or episodes that the policy has moved away from,
    by verl's names, separated by commas. See [rejection](algorithms.md#bypass-mode). Default: none."""
    rollout_rs_threshold: float | Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Bounds of `rollout_rs`: one for all criteria, or one for each, separated by commas."""
    use_kl_loss: bool = False
    """Whether the loss has a KL term against the model that the job began with."""
    kl_loss_coef: float = Field(default=0.001, ge=0, allow_inf_nan=False)
    """Weight of the KL term."""
    kl_loss_type: KLKind = "low_var_kl"
    """Estimator of the KL term, by verl's name."""

    temperature: float = Field(default=1.0, gt=0, le=10)
    """Temperature of a model call that names none."""
    max_response_length: int = Field(default=256, ge=1)
    """Tokens of a model call that names no limit."""
    max_model_len: int | None = Field(default=None, ge=16)
    """Tokens of prompt and reply together. Default: what the model was made for."""
    tool_parser: ToolParser = "auto"
    """How the model writes tool calls; `auto` is what its chat template shows, or else its vocabulary."""
    reasoning_parser: ReasoningParser = "auto"
    """How the model writes its reasoning before a reply; `auto` is as for `tool_parser`."""

    vllm: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Options of `vllm serve` by its own names, for `sampler: vllm`."""
    verl: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Settings of verl's own configuration, by its names, for what the job has no field for. Only engine verl reads
    them."""

    @field_validator("betas")
    @classmethod
    def _betas_in_unit_interval(cls, betas: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError("both must be in [0, 1)")
        return betas

    @model_validator(mode="wrap")
    @classmethod
    def _hint_at_known_settings(cls, data: Any, check: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return check(data)
        except ValidationError as error:
            raise with_hints(error, cls) from None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.min_group is not None and self.min_group > self.num_repeat:
            raise ValueError(f"min_group ({self.min_group}) must not exceed num_repeat ({self.num_repeat})")
        if self.mixture is not None:
            check_mixture(self.mixture)
        if self.mini_batch_num > self.batch_size * self.num_repeat:
            raise ValueError("mini_batch_num must not exceed batch_size * num_repeat")
        if self.chosen_engine != "verl" and self.n_gpu > 1:
            raise ValueError(f"engine {self.engine} uses one GPU at most: set engine to verl for {self.n_gpu}")
        check_algorithm(self)
        self._check_sampler()
        if self.keep_last is not None and not self.save_freq:
            raise ValueError("keep_last is about the checkpoints of save_freq, which is 0: set save_freq")
        if self.keep_best and self.keep_last is None:
            raise ValueError("keep_best needs keep_last: without it, every checkpoint of save_freq stays")
        if self.lr_scheduler_type != "constant" and self.total_steps is None:
            raise ValueError(f"lr_scheduler_type {self.lr_scheduler_type} ends at total_steps: set total_steps")
        own = AGGREGATION_BY_LOSS.get(self.policy_loss)
        if own is not None and self.loss_agg_mode not in {None, own}:
            raise ValueError(f"policy_loss {self.policy_loss} aggregates by {own}: leave loss_agg_mode out")
        return self

    def _check_sampler(self) -> None:
        if self.sampler != "vllm" and self.vllm:
            raise ValueError("vllm has options of sampler vllm: set sampler to vllm, or leave them out")
        if self.sampler != "auto" and self.chosen_engine != "local":
            raise ValueError(f"sampler is read by engine local alone, not by {self.chosen_engine}: leave it out")
        if self.sampler in EXTERNAL_SAMPLERS and self.lora_rank:
            raise ValueError(
                f"sampler {self.sampler} is given whole weights and no adapter: set lora_rank to 0, or sampler to local"
            )

    @property
    def chosen_engine(self) -> Literal["local", "verl", "fake"]:
        """The engine of the job. `auto` is local for up to one GPU, and verl beyond."""
        if self.engine == "auto":
            return "local" if self.n_gpu <= 1 else "verl"
        return self.engine

    @property
    def _known_sampler(self) -> Sampler:
        """The sampler of the job. `auto` becomes local on the CPU. On a GPU only the server can decide it."""
        is_on_cpu = self.chosen_engine == "local" and not self.n_gpu
        return "local" if self.sampler == "auto" and is_on_cpu else self.sampler

    def resolve(self) -> TrainJob:
        """Return the job with all default values filled in, except those that only a server can decide."""
        lr = self.lr
        if lr is None:
            lr = LR_OF_BUNDLED_MODELS.get(self.model, LR_DEFAULT)
        return self.model_copy(
            update={
                **(self._automatic_critic if self.has_critic else {}),
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
    def has_critic(self) -> bool:
        """True if the job also trains a critic, a second model that estimates the value of each token."""
        return self.algorithm == CRITIC_ALGORITHM

    @property
    def has_greedy(self) -> bool:
        """True if each group has one greedy episode, which is the baseline of the others."""
        return self.algorithm == GREEDY_ALGORITHM

    @property
    def _automatic_critic(self) -> dict[str, float]:
        defaults = {
            "lam": 1.0,
            "critic_lr": LR_OF_BUNDLED_MODELS.get(self.model, CRITIC_LR_DEFAULT),
            "critic_warmup": 0,
            "cliprange_value": 0.5,
        }
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

    def dump_job_as_yaml(self, path: str | Path) -> Path:
        """Write the job to a YAML file, without the settings that have their defaults, and return the path."""
        target = Path(path)
        target.write_text(yaml.safe_dump(self.model_dump(mode="json", exclude_defaults=True), sort_keys=False))
        return target

    @classmethod
    def build_job_from_yaml(cls, path: str | Path) -> TrainJob:
        """Return the job of a YAML file. Raise JobInvalid if the file is missing, not YAML or not a valid job."""
        return build_job(_read_yaml(Path(path)), source=str(path))


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


def check_mixture(mixture: Mapping[str, float]) -> None:
    """Raise ValueError unless the shares are positive and sum to 1 within 1e-6, because 1/3 is written rounded."""
    if not mixture or any(not share > 0 for share in mixture.values()):
        raise ValueError("mixture: every data source needs a share above 0")
    if abs(sum(mixture.values()) - 1) > 1e-6:
        raise ValueError(f"mixture: the shares must sum to 1, not {sum(mixture.values()):g}")


def _read_yaml(path: Path) -> object:
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
    is_told = first["type"] in {"extra_forbidden", "value_error"}
    got = "" if is_told or is_secret else f" (got {first['input']!r})"
    return f"{where}: {what}{got}" if where else what
