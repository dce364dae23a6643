"""The fields of a job, each with its type, its range, its default, its traits and a description."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, FiniteFloat, field_validator

from swarm.descriptions import DescribedModel
from swarm.estimators import AdvantageEstimator
from swarm.external_samplers import EXTERNAL_SAMPLERS
from swarm.job.learning_rate import BUNDLED_MODEL
from swarm.job.traits import (
    ADAPTER,
    ALGORITHM,
    BUILT,
    BYPASS,
    COLLECTED,
    CORRECTED,
    COUNTED,
    DEMONSTRATED,
    DISCOUNTED,
    DIVIDED,
    FALLING,
    HELD_OUT,
    KEPT,
    KL_TERM,
    LEARNED,
    NAME,
    NAMED_REWARDS,
    NEW_RUN,
    OF_ADAPTER,
    OF_CLIPPED_SIDE,
    OF_CLIPPING,
    OF_CRITIC,
    OF_DUAL_CLIPPING,
    OF_VERL,
    PARSER,
    SAMPLED,
    SCORED,
    SUPERVISED,
    WAITED,
    Need,
    Purpose,
    Reader,
    Traits,
    another_run,
    fixed_sampling,
)
from swarm.sampling_limits import SAMPLING_LIMITS
from swarm.schemas import Identifier, StopRule

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
    SamplerKind = str
else:
    SamplerKind = Literal[("auto", "local", *EXTERNAL_SAMPLERS)]
"""The sampler of the local engine: "local" is the worker process that trains, the others run in separate processes."""
ToolParser = Literal["auto", "hermes", "llama3_json", "mistral"]
ReasoningParser = Literal["auto", "none", "think", "mistral"]
"""Formats in which a model writes tool calls, and its reasoning before a reply. "auto" finds the format in the chat
template, or else in the vocabulary."""
RESPONSE_TOKENS = 256
"""Limit of a model call, in tokens, if neither the call nor the job has one."""
GROUP_TIMEOUT_S = 30.0
"""Default of `group_timeout_s`. A client repeats a failed attempt within this time. Others wait for the group."""
STALL_TIMEOUT_S = 300.0
"""Default of `stall_timeout_s`. Within this time a person can fix and restart a client and so complete the batch."""
EVAL_TIMEOUT_S = 300.0
"""Default of `eval_timeout_s`. It is enough to start an evaluator and to score some hundred short episodes. It is well
below the time that clients wait to begin an episode."""
LoraTargets = Literal["all-linear"] | list[Annotated[str, Field(min_length=1, max_length=200)]]
LRScheduler = Literal["constant", "linear", "cosine"]
GuardMode = Literal["warn", "stop", "rollback"]
KLKind = Literal["k1", "abs", "k2", "mse", "k3", "low_var_kl"]

AGGREGATION_BY_LOSS: dict[str, LossAggregation] = {
    "gspo": "seq-mean-token-mean",
    "sapo": "seq-mean-token-mean",
    "geo_mean": "seq-mean-token-mean",
}
"""Aggregation of the losses for which verl ignores `loss_agg_mode`."""


class JobSettings(DescribedModel):
    """All settings of a job, without the rules between them.

    The annotation of a setting has its `Traits`. All lists of settings are read from them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    algorithm: Annotated[AdvantageEstimator, ALGORITHM] = "grpo"
    """Advantage estimator, by verl's name."""
    project_name: Annotated[Identifier, NAME] = "swarm"
    """Together with `experiment_name` it names a run: a job of the same two names goes on where that run is."""
    experiment_name: Annotated[Identifier, NAME] = "default"
    """See `project_name`."""
    engine: Annotated[
        Literal["auto", "local", "verl", "fake"], fixed_sampling("the processes of the engine hold the weights")
    ] = "auto"
    """What samples and trains: `local` in one worker process, `verl` on Ray, `fake` without a model, for tests. `auto`
    is local for up to one GPU and verl beyond."""
    model: Annotated[
        str, another_run("the run trains the weights of this model", "with the other model", of_sampling=True)
    ] = Field(default=BUNDLED_MODEL, min_length=1)
    """Name of a model, as `swarm models list` shows, or the directory of a Hugging Face causal language model with its
    tokenizer."""
    resume_from: Annotated[
        str | None,
        another_run(
            "the run began at this checkpoint, or at its model", "with the other resume_from", of_sampling=True
        ),
    ] = Field(default=None, min_length=1, max_length=4096)
    """Directory of a checkpoint that the run begins at: with its weights, optimizer, random state and step. See
    [start, continue, combine](starting.md#in-a-job). Default: none, it begins with
    `model`."""
    n_gpu: Annotated[int, fixed_sampling("the engine has taken its GPUs")] = Field(default=0, ge=0, le=100_000)
    """GPUs of the trainer; 0 is the CPU."""
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16"], fixed_sampling("the engine has loaded the weights with it")
    ] = "auto"
    """Number format that the weights are loaded, sampled and differentiated in; AdamW works on float32 copies of
    bfloat16 ones. `auto` on a CPU is bfloat16 for a checkpoint in bfloat16 if the processor multiplies such numbers
    itself, and else float32; on a GPU it is bfloat16. Engine verl has settings of its own, in `verl`."""
    sampler: Annotated[
        SamplerKind,
        fixed_sampling("the processes of the sampler hold the weights").needing(Need("engine", "local", ("local",))),
    ] = "auto"
    """What samples for engine local: the worker that trains (`local`), or `vllm` in processes of its own on the same
    device, see [models](models.md#vllm-as-the-sampler). `auto` is local on the CPU; on a GPU it is vllm where the
    server was given vLLM's interpreter and the job names a model of its own and no adapter. Engine verl always samples
    with vLLM."""
    seed: Annotated[int, fixed_sampling("every step draws random numbers from it")] = Field(default=0, ge=0, lt=2**31)
    """What minibatches, the training step and sampling without a seed of its own draw from."""

    batch_size: Annotated[int, COLLECTED] = Field(default=16, ge=1, le=100_000)
    """Tasks per batch."""
    num_repeat: Annotated[int, COLLECTED] = Field(default=8, ge=1, le=10_000)
    """Episodes per task, which is the size of a group."""
    stop_rule: Annotated[StopRule, COLLECTED] = "enough_tasks"
    """When a batch is complete: see [stop rules](algorithms.md#from-episodes-to-a-batch)."""
    min_group: Annotated[int | None, COLLECTED] = Field(default=None, ge=1)
    """A group with fewer episodes than this is dropped and counted when its batch is closed. Default: 2, or 1 where
    `num_repeat` is 1."""
    drain_timeout_s: Annotated[float, WAITED] = Field(default=30.0, gt=0, le=86_400)
    """Seconds that a complete batch waits for episodes still running."""
    batch_timeout_s: Annotated[float | None, WAITED] = Field(default=None, gt=0, le=86_400)
    """Seconds after its first episode when a batch is closed with what it has. Default: no limit."""
    group_timeout_s: Annotated[float, WAITED] = Field(default=GROUP_TIMEOUT_S, gt=0, le=86_400)
    """Seconds after which a group counts with what it has, if none of its episodes runs or is asked for."""
    stall_timeout_s: Annotated[float, WAITED] = Field(default=STALL_TIMEOUT_S, gt=0, le=86_400)
    """Seconds after which a batch in which no train episode runs counts with what it has."""
    max_staleness: Annotated[int, COLLECTED] = Field(default=0, ge=0, le=1000)
    """By how many weight versions a trained token may be older than the weights that it trains. 0 is on-policy."""
    mixture: Annotated[dict[Identifier, float] | None, COLLECTED] = None
    """Share of each data source in a batch; the shares sum to 1. Default: whatever comes."""
    episode_timeout_s: Annotated[float, replace(SAMPLED, purpose=Purpose.WAITING)] = Field(
        default=1800.0, gt=0, le=604_800
    )
    """Seconds after its begin when an episode is given up, whatever its client does."""
    total_steps: Annotated[int | None, COUNTED] = Field(default=None, ge=1)
    """Training steps after which the job is complete. Default: none, it goes on."""
    save_freq: Annotated[int, KEPT] = Field(default=0, ge=0)
    """A checkpoint is kept every so many steps; 0 keeps none but those that crash recovery starts from."""
    keep_last: Annotated[int | None, KEPT.needing(Need("save_freq", 10))] = Field(default=None, ge=1)
    """How many of the checkpoints of `save_freq` stay, the newest. Default: all."""
    keep_best: Annotated[int, KEPT.needing(Need("keep_last", 2))] = Field(default=0, ge=0)
    """How many older ones stay besides, the best by `keep_best_metric`."""
    keep_best_metric: Annotated[str, KEPT.needing(Need("keep_best", 1))] = Field(
        default="critic/score/mean", pattern=r"^-?[\w./@+-]+$", max_length=200
    )
    """A metric of the step that made a checkpoint. The highest is best; with a minus before the name, the lowest."""

    eval_every: Annotated[int, SCORED] = Field(default=0, ge=0)
    """Held-out episodes score the weights every so many steps, before the first and after the last; 0 is never. See
    [scores while it trains](http-api.md#scores-while-it-trains)."""
    eval_episodes: Annotated[int, SCORED.needing(HELD_OUT)] = Field(default=200, ge=1, le=100_000)
    """Held-out episodes of each score."""
    eval_env: Annotated[
        str | None,
        Traits(
            fixed="the evaluator is started with the run: start swarm eval --follow beside the run",
            purpose=Purpose.SCORING,
            needs=(HELD_OUT,),
        ),
    ] = Field(default=None, min_length=1, max_length=200)
    """Environment that the server itself scores the weights on: a bundled one, or one that it offers by
    `swarm start --eval-env`. Default: none, evaluators come from elsewhere."""
    eval_timeout_s: Annotated[float, replace(COUNTED, purpose=Purpose.WAITING, needs=(HELD_OUT,))] = Field(
        default=EVAL_TIMEOUT_S, gt=0, le=86_400
    )
    """Seconds that the next training step waits for a score that is due; then it goes on without."""

    demonstrations: Annotated[
        str | None,
        Traits(
            fixed=f"the run has begun with its demonstrations: {NEW_RUN}",
            needs=(Need("sft_steps", 5, unless="has_sft_term"),),
            is_spare=True,
        ),
    ] = Field(default=None, min_length=1, max_length=4096)
    """File of conversations whose replies are trained: JSON lines as OpenAI's fine-tuning takes them, or Parquet. A
    client uploads it; a server knows it by its digest, `sha256:...`. See [supervised training](supervised.md)."""
    sft_steps: Annotated[int, SUPERVISED] = Field(default=0, ge=0)
    """Steps of the job, the first ones, that train on demonstrations alone, before any reward. They count in
    `total_steps`."""
    sft_batch_size: Annotated[int, SUPERVISED] = Field(default=8, ge=1, le=100_000)
    """Demonstrations of one step."""
    sft_lr: Annotated[float | None, LEARNED.needing(DEMONSTRATED)] = Field(default=None, gt=0, allow_inf_nan=False)
    """Learning rate of the steps on demonstrations alone. Default: by model, see
    [learning rates](models.md#learning-rates)."""
    sft_coeff: Annotated[float, LEARNED.needing(DEMONSTRATED)] = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Weight of a supervised loss beside the policy loss, in the steps that train on rewards."""
    sft_held_out: Annotated[float, SUPERVISED] = Field(default=0.1, ge=0, le=0.5)
    """Share of the demonstrations that is not trained on. The loss of these is measured about ten times."""

    guard: Annotated[GuardMode, COUNTED] = "warn"
    """What the server does when a training collapses: `warn` records it, `stop` ends the training, and `rollback` goes
    back to the step before the fall and on with half the learning rate. See
    [the guard](training.md#when-a-training-collapses)."""

    lr: Annotated[float | None, LEARNED] = Field(default=None, gt=0, allow_inf_nan=False)
    """Learning rate of AdamW. Default: 0.00175 for `nano`, 0.001 for `micro`, else 1e-6; with `lora_rank`
    0.005, 0.003 and 1e-5. See [learning rates](models.md#learning-rates)."""
    lr_warmup_steps: Annotated[int, LEARNED] = Field(default=0, ge=0)
    """Steps over which the learning rate rises to `lr`."""
    lr_scheduler_type: Annotated[LRScheduler, LEARNED] = "constant"
    """How the learning rate goes on after the warm-up: as it is, or down to its floor at `total_steps`, in a straight
    line or along half a cosine."""
    min_lr_ratio: Annotated[float, LEARNED.needing(FALLING)] = Field(default=0.0, ge=0, le=1)
    """The floor of a learning rate that goes down, as a share of `lr`."""
    weight_decay: Annotated[float, LEARNED] = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Decoupled weight decay of AdamW."""
    betas: Annotated[tuple[float, float], LEARNED] = (0.9, 0.95)
    """Decay rates of AdamW's two moments."""
    grad_clip: Annotated[float, LEARNED] = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Largest norm of the gradient of one update; a larger gradient is scaled down."""
    ppo_epochs: Annotated[int, LEARNED] = Field(default=1, ge=1)
    """Passes over each batch."""
    mini_batch_num: Annotated[int, LEARNED] = Field(default=1, ge=1)
    """Optimizer updates per pass: a batch is split into so many minibatches."""
    ppo_max_token_len: Annotated[int, replace(LEARNED, purpose=Purpose.COMPUTING)] = Field(default=16_384, ge=64)
    """Tokens of one forward and backward pass: minibatches are cut into microbatches of at most so many."""
    share_prefixes: Annotated[Literal["auto", "off"], BUILT.needing(Need("engine", "local", ("local",)))] = "auto"
    """Whether prefixes that samples of a minibatch have in common are computed once: `auto` where it saves time, on the
    local engine alone. See [sharing](algorithms.md#common-prefixes-once)."""

    enable_gradient_checkpointing: Annotated[bool | None, BUILT] = None
    """Whether layers are computed again in the backward pass: less memory, longer steps. Default: no; with engine verl
    on GPUs yes."""

    lora_rank: Annotated[int, ADAPTER] = Field(default=0, ge=0, le=4096)
    """Rank of a LoRA adapter, which alone is trained; 0 trains the full parameters. See [LoRA](models.md#lora)."""
    lora_alpha: Annotated[int, OF_ADAPTER] = Field(default=16, ge=1)
    """The adapter's output is scaled by `lora_alpha / lora_rank`."""
    lora_target_modules: Annotated[LoraTargets, OF_ADAPTER] = "all-linear"
    """Modules that the adapter is put into, by the ends of their names, or `all-linear`: every linear layer but the
    output head."""

    norm_adv_by_std_in_grpo: Annotated[bool, LEARNED.needing(DIVIDED)] = True
    """Whether GRPO's advantages are divided by the standard deviation of their group; false is Dr.GRPO."""
    gamma: Annotated[float, LEARNED.needing(DISCOUNTED)] = Field(default=1.0, ge=0, le=1)
    """Discount of later rewards."""
    lam: Annotated[float | None, replace(OF_CRITIC, automatic=1.0)] = Field(default=None, ge=0, le=1)
    """λ of `algorithm: gae`. Default: 1."""
    critic_lr: Annotated[float | None, OF_CRITIC] = Field(default=None, gt=0, allow_inf_nan=False)
    """Learning rate of the critic of `algorithm: gae`. Default: 0.00175 for `nano`, 0.001 for `micro`, else 1e-5."""
    critic_warmup: Annotated[int | None, replace(OF_CRITIC, automatic=0)] = Field(default=None, ge=0)
    """The first step of `algorithm: gae` that trains the policy; those before it train the critic alone. Default: 0."""
    cliprange_value: Annotated[float | None, replace(OF_CRITIC, automatic=0.5)] = Field(
        default=None, gt=0, allow_inf_nan=False
    )
    """How far the critic's value of a token counts as moved in one step of `algorithm: gae`. Default: 0.5."""
    gdpo_reward_keys: Annotated[
        list[Identifier] | None,
        Traits(
            fixed=f"recorded episodes have only these rewards: {NEW_RUN}",
            needs=(NAMED_REWARDS,),
            needed="the names of the rewards that it learns from",
        ),
    ] = Field(default=None, min_length=1, max_length=100)
    """Names of the rewards that `algorithm: gdpo` learns from, which needs them: every train episode ends with all."""
    gdpo_reward_weights: Annotated[list[FiniteFloat] | None, LEARNED.needing(NAMED_REWARDS)] = Field(
        default=None, min_length=1, max_length=100
    )
    """Weights of `gdpo_reward_keys`, in their order. Default: 1 each."""
    policy_loss: Annotated[PolicyLoss, LEARNED] = "vanilla"
    """Policy loss, by verl's name."""
    clip_ratio: Annotated[float, OF_CLIPPING] = Field(default=0.2, ge=0)
    """Clip range of the importance ratio, where a side has none of its own."""
    clip_ratio_low: Annotated[float | None, OF_CLIPPED_SIDE] = Field(default=None, ge=0)
    """Clip range below 1. Default: `clip_ratio`."""
    clip_ratio_high: Annotated[float | None, OF_CLIPPED_SIDE] = Field(default=None, ge=0)
    """Clip range above 1, DAPO's clip-higher. Default: `clip_ratio`."""
    clip_ratio_c: Annotated[float, OF_DUAL_CLIPPING] = Field(default=3.0, gt=1)
    """Bound of the loss for negative advantages, as in dual-clip PPO."""
    loss_agg_mode: Annotated[LossAggregation | None, LEARNED] = None
    """How the losses of tokens become one number. Default: what the policy loss prescribes, else `token-mean`."""
    loss_scale_factor: Annotated[
        int | None, LEARNED.needing(Need("loss_agg_mode", "seq-mean-token-sum-norm", ("seq-mean-token-sum-norm",)))
    ] = Field(default=None, ge=1)
    """What `seq-mean-token-sum-norm` divides by. Default: `max_response_length`."""
    entropy_coeff: Annotated[float, LEARNED] = Field(default=0.0, allow_inf_nan=False)
    """Weight of an entropy bonus."""
    rollout_is: Annotated[RolloutIS | None, LEARNED] = None
    """Truncated importance weights against the policy that sampled a token. Default: `token` where `max_staleness` is
    above 0, else `off`."""
    rollout_is_threshold: Annotated[float, LEARNED.needing(CORRECTED)] = Field(default=2.0, gt=0, allow_inf_nan=False)
    """Where the weights of `rollout_is` are truncated."""
    dro_beta: Annotated[
        float | None,
        replace(
            LEARNED, needs=(Need("policy_loss", "dro", ("dro",)),), needed="the weight of its penalty, such as 0.1"
        ),
    ] = Field(default=None, gt=0, allow_inf_nan=False)
    """Weight of the quadratic penalty of `policy_loss: dro`."""
    loss_type: Annotated[BypassLoss, LEARNED.needing(BYPASS)] = "ppo_clip"
    """What `policy_loss: bypass_mode` minimises, by verl's name."""
    rollout_is_batch_normalize: Annotated[
        bool, LEARNED.needing(BYPASS, Need("loss_type", "reinforce", ("reinforce",)), CORRECTED)
    ] = False
    """Whether the weights of `rollout_is` are divided by their mean over a minibatch, in `policy_loss: bypass_mode`
    with `loss_type: reinforce`."""
    rollout_rs: Annotated[str | None, LEARNED.needing(BYPASS, Need("rollout_rs_threshold", 2))] = Field(
        default=None, min_length=1, max_length=200
    )
    """Criteria by which `policy_loss: bypass_mode` leaves out tokens or episodes that the policy has moved away from,
    by verl's names, separated by commas. See [rejection](algorithms.md#bypass-mode). Default: none."""
    rollout_rs_threshold: Annotated[
        float | Annotated[str, Field(min_length=1, max_length=200)] | None,
        LEARNED.needing(BYPASS, Need("rollout_rs", "token_k1")),
    ] = None
    """Bounds of `rollout_rs`: one for all criteria, or one for each, separated by commas."""
    use_kl_loss: Annotated[
        bool,
        Traits(
            fixed="the reference weights are copied when a run begins: begin a run with use_kl_loss: true and"
            " kl_loss_coef: 0, and change kl_loss_coef"
        ),
    ] = False
    """Whether the loss has a KL term against the model that the job began with."""
    kl_loss_coef: Annotated[float, LEARNED.needing(KL_TERM)] = Field(default=0.001, ge=0, allow_inf_nan=False)
    """Weight of the KL term."""
    kl_loss_type: Annotated[KLKind, LEARNED.needing(KL_TERM)] = "low_var_kl"
    """Estimator of the KL term, by verl's name."""

    temperature: Annotated[float, SAMPLED] = Field(
        default=1.0, ge=SAMPLING_LIMITS["temperature"].low, le=SAMPLING_LIMITS["temperature"].high
    )
    """Temperature of a model call that names none."""
    max_response_length: Annotated[int | None, Traits(Reader.BATCH, on_verl=False, of_sampling=True)] = Field(
        default=None, ge=1
    )
    """Most tokens of a model call that names no limit. In `swarm train`, `swarm eval` and studies, the most tokens of
    any reply, if the environment allows more. Default: 256 for a call without a limit, else what the environment
    allows."""
    max_model_len: Annotated[int | None, fixed_sampling("the engine is built for it")] = Field(default=None, ge=16)
    """Tokens of prompt and reply together. Default: what the model was made for."""
    tool_parser: Annotated[ToolParser, PARSER] = "auto"
    """How the model writes tool calls; `auto` is what its chat template shows, or else its vocabulary."""
    reasoning_parser: Annotated[ReasoningParser, PARSER] = "auto"
    """How the model writes its reasoning before a reply; `auto` is as for `tool_parser`."""

    sampler_options: Annotated[
        dict[str, Any],
        fixed_sampling("the processes of the sampler are built with these options").needing(
            Need("sampler", "vllm", tuple(EXTERNAL_SAMPLERS))
        ),
    ] = Field(default_factory=dict[str, Any])
    """Options of a sampler in processes of its own, by its own names: for `sampler: vllm` those of `vllm serve`."""
    verl: Annotated[dict[str, Any], OF_VERL] = Field(default_factory=dict[str, Any])
    """Settings of verl's own configuration, by its names, for what the job has no field for. Other engines ignore them,
    so that a job changes its engine by one line."""

    @field_validator("betas")
    @classmethod
    def _betas_in_unit_interval(cls, betas: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError("both must be in [0, 1)")
        return betas

    @property
    def chosen_engine(self) -> Literal["local", "verl", "fake"]:
        """The engine of the job. `auto` is local for up to one GPU, and verl beyond."""
        if self.engine == "auto":
            return "local" if self.n_gpu <= 1 else "verl"
        return self.engine


def _traits_of(metadata: list[Any]) -> Traits:
    [traits] = (each for each in metadata if isinstance(each, Traits))
    return traits


TRAITS: Final[Mapping[str, Traits]] = MappingProxyType(
    {name: _traits_of(field.metadata) for name, field in JobSettings.model_fields.items()}
)
"""The traits of every setting, by its name."""
NOT_OF_SAMPLING: Final = frozenset(name for name, traits in TRAITS.items() if not traits.of_sampling)
"""The settings that cannot change how a model is sampled before it is trained, and so cannot change its base score."""
