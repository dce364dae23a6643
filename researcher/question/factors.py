"""The table of factors: every setting of a job with its names and usual levels, or the reason why it is no factor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from swarm import TrainJob
from swarm.job import TRAITS, Purpose

PROGRAM, TRAIN_ENV = "program", "train_env"
"""The factors that are not settings of a job: the program of an arm, and the environment that it trains on."""
OPTION = "env."
"""The prefix of a factor that is an option of the environment, as in env.difficulty."""

RESPONSE_LENGTH = "max_response_length"
"""The factor whose levels are limits on a reply, in tokens, which the program sends with its requests."""
KL_COEFFICIENT = 0.05
"""The coefficient for "KL or no KL", large enough to slow a model of half a million parameters within thirty steps."""
MINIBATCHES_FOR_CLIPPING = 4
"""The minibatches per step for clip settings, which have no effect in the first minibatch of a step."""

_CLIPPING = {"mini_batch_num": MINIBATCHES_FOR_CLIPPING}
_KL = {"kl_loss_coef": KL_COEFFICIENT}


@dataclass(frozen=True, slots=True)
class FactorSpec:
    """A setting in which arms may differ.

    `name` is the field of TrainJob, and `title` is its name in texts. `aliases` are further words for the setting, in
    the singular and in lower case. `usual` are the levels for a topic that gives no values. `off` is the value at which
    the setting does nothing. `needs` are settings without which the effect of the factor is too small to be seen; every
    arm gets them unless a person fixes them. `values` maps words to values. `ladder` are the rising values for a study
    that asks where training diverges.
    """

    name: str
    title: str
    aliases: tuple[str, ...] = ()
    usual: tuple[Any, ...] = ()
    off: Any = None
    needs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])
    ladder: tuple[float, ...] = ()

    @property
    def is_numeric(self) -> bool:
        """True if a number in a topic can be a value of the setting."""
        return any(isinstance(value, int | float) and not isinstance(value, bool) for value in self.usual)

    @property
    def is_whole(self) -> bool:
        """True if the values of the setting are whole numbers."""
        return self.is_numeric and all(isinstance(value, int) for value in self.usual)

    @property
    def default(self) -> Any:
        return TrainJob.model_fields[self.name].get_default(call_default_factory=True)


_BY_PURPOSE: Mapping[Purpose, str] = {
    Purpose.NAMING: "it names the run, and changes nothing that is learned",
    Purpose.WAITING: "it bounds how long something is waited for; what is learned depends on it only where something"
    " hangs",
    Purpose.KEEPING: "it says which checkpoints are kept, not what is learned: --keep-checkpoints",
    Purpose.SCORING: "the evaluator measures all arms alike: --eval-every and --eval-episodes",
    Purpose.COMPUTING: "it says how the same numbers are computed: memory and time change, what is learned does not",
}
_ONE_REWARD = "it is about rewards by name, and a program of a study gives one reward"
_CARRIED_OUT = "one study runs on one kind of server: begin a study for each, with --engine or --n-gpu"

_NO_FACTORS: Mapping[str, str] = MappingProxyType(
    {
        **{name: _BY_PURPOSE[traits.purpose] for name, traits in TRAITS.items() if traits.purpose is not None},
        "resume_from": "an arm is trained on from its own checkpoint, which the study chooses",
        "seed": "a seed is a repetition of an arm: --seeds says how many there are",
        **dict.fromkeys(("engine", "n_gpu", "sampler"), _CARRIED_OUT),
        "guard": "a study watches the curves of its runs itself, by the same rules, and ends a run that is lost",
        "mixture": "all tasks of an environment are of one source: compare environments with --train-env",
        **dict.fromkeys(("gdpo_reward_keys", "gdpo_reward_weights"), _ONE_REWARD),
        "demonstrations": "all arms have the same ones, from --job: an arm with sft_steps 0 does without them",
        "sft_held_out": "it says how many demonstrations are measured instead of trained",
        "sampler_options": "these are options of the sampler's own process: begin a study for each, with --job",
    }
)

ALGORITHMS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "grpo": {"algorithm": "grpo"},
        # Dr.GRPO (arXiv 2503.20783): no division by the group's deviation, none by the length of the answer.
        "dr.grpo": {"norm_adv_by_std_in_grpo": False, "loss_agg_mode": "seq-mean-token-sum-norm"},
        "reinforce++": {"algorithm": "reinforce_plus_plus"},
        "reinforce++-baseline": {"algorithm": "reinforce_plus_plus_baseline"},
        # GSPO (arXiv 2507.18071) weighs whole sequences.
        "gspo": {"policy_loss": "gspo", "loss_agg_mode": "seq-mean-token-mean"},
        "cispo": {"policy_loss": "cispo"},
        # Clip-higher and one mean over all tokens; DAPO (arXiv 2503.14476) samples dynamically as well.
        "dapo": {"clip_ratio_high": 0.28, "loss_agg_mode": "token-mean", "stop_rule": "enough_non_constant_tasks"},
        "sapo": {"policy_loss": "sapo"},
        "dppo": {"policy_loss": "dppo_tv"},
        "rloo": {"algorithm": "rloo"},
        "opo": {"algorithm": "opo"},
        "gpg": {"algorithm": "gpg", "policy_loss": "gpg"},
        "gae": {"algorithm": "gae"},
        "remax": {"algorithm": "remax"},
    }
)
"""The algorithms, named as in their papers, as settings of a job."""


def _spec(name: str, title: str, *aliases: str, **more: Any) -> FactorSpec:
    return FactorSpec(name, title, aliases, **more)


_ON_OFF = {"on": True, "off": False}

_SPECS: tuple[FactorSpec, ...] = (
    _spec("lr", "learning rate", "step size", usual=(3e-4, 1e-3, 3e-3), ladder=(1e-3, 3e-3, 1e-2, 3e-2, 1e-1)),
    _spec(
        "num_repeat",
        "group size",
        "rollout size", "rollouts per prompt", "rollouts per task", "episodes per task", "samples per prompt",
        "completions per prompt", "answers per question", "number of rollouts", "num generations",
        usual=(4, 8, 16),
    ),
    _spec("batch_size", "batch size", "train batch size", "tasks per step", "prompts per batch", "tasks per batch",
          usual=(8, 16, 32)),
    _spec("mini_batch_num", "minibatches per step", "minibatch", "minibatches", "mini-batch", "number of minibatches",
          usual=(1, 2, 4)),
    _spec("ppo_epochs", "epochs per batch", "epoch", "epochs", "ppo epoch", "ppo epochs", usual=(1, 2, 4)),
    _spec("total_steps", "number of training steps",
          "training step", "training steps", "total steps", "number of steps", usual=(15, 30, 60)),
    _spec("temperature", "sampling temperature", "temperature", usual=(0.7, 1.0, 1.3)),
    _spec("max_response_length", "response length", "reply length", "answer length", "max tokens", "token limit",
          usual=(128, 256, 512)),
    _spec("max_model_len", "context length", "max model len", usual=(512, 1024)),
    _spec("model", "model", "model size", "base model", usual=("nano", "micro"),
          values={"nano": "nano", "micro": "micro"}),
    _spec("dtype", "number format", "dtype", "precision", usual=("float32", "bfloat16"),
          values={"float32": "float32", "bfloat16": "bfloat16", "fp32": "float32", "bf16": "bfloat16"}),
    _spec("algorithm", "algorithm", "advantage estimator", "estimator", usual=("grpo", "rloo", "reinforce++"),
          values={name: name for name in ALGORITHMS}),
    _spec("policy_loss", "policy loss", usual=("vanilla", "gspo", "cispo", "sapo"), values={"vanilla": "vanilla"}),
    _spec("loss_agg_mode", "loss aggregation", "aggregation of the loss",
          usual=("token-mean", "seq-mean-token-mean"),
          values={mode: mode for mode in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum",
                                          "seq-mean-token-sum-norm", "token-sum")}),
    _spec("norm_adv_by_std_in_grpo", "advantages divided by their deviation", "std normalization",
          "advantage normalization", "normalization by the standard deviation", usual=(True, False), off=False,
          values=_ON_OFF),
    _spec("use_kl_loss", "KL term", "kl", "kl loss", "kl penalty", "kl regularization", usual=(False, True), off=False,
          needs=_KL, values=_ON_OFF),
    _spec("kl_loss_coef", "KL coefficient", "kl loss coefficient", "kl weight", "kl beta", "kl coef",
          usual=(0.0, 0.01, 0.1), off=0.0),
    _spec("kl_loss_type", "KL estimator", "kl loss type", "kl type", usual=("k1", "k2", "k3"), needs=_KL,
          values={kind: kind for kind in ("k1", "k2", "k3", "abs", "mse", "low_var_kl")}),
    _spec("entropy_coeff", "entropy bonus", "entropy coefficient", "entropy weight", "entropy", usual=(0.0, 0.01),
          off=0.0),
    _spec("clip_ratio", "clip ratio", "clip range", "clipping", "ppo clipping", "clip epsilon",
          usual=(0.1, 0.2, 0.3), off=1000.0, needs=_CLIPPING),
    _spec("clip_ratio_low", "lower clip ratio", "clip low", usual=(0.1, 0.2), needs=_CLIPPING),
    _spec("clip_ratio_high", "upper clip ratio", "clip-higher", "clip higher", "clip high", usual=(0.2, 0.28),
          needs=_CLIPPING),
    _spec("clip_ratio_c", "dual-clip bound", "dual clip", usual=(3.0, 10.0), needs=_CLIPPING),
    _spec("grad_clip", "gradient clipping", "gradient norm", "max grad norm", "gradient clip", usual=(0.3, 1.0, 3.0),
          off=1e6),
    _spec("weight_decay", "weight decay", usual=(0.0, 0.01, 0.1), off=0.0),
    _spec("betas", "AdamW's decay rates", "adam betas", usual=([0.9, 0.95], [0.9, 0.999])),
    _spec("lr_warmup_steps", "learning-rate warm-up", "warm-up", "warmup", "warmup steps", "learning rate warmup",
          usual=(0, 5, 10), off=0),
    _spec("lr_scheduler_type", "learning-rate schedule", "lr schedule", "schedule", "scheduler",
          usual=("constant", "linear", "cosine"), off="constant",
          values={
              **{kind: kind for kind in ("linear", "cosine")},
              **{f"{kind} schedule": kind for kind in ("constant", "linear", "cosine")},
          }),
    _spec("min_lr_ratio", "floor of the learning rate", "min lr ratio", usual=(0.0, 0.1)),
    _spec("lora_rank", "LoRA rank", "lora", "adapter rank", usual=(4, 8, 16), off=0,
          values={"full fine-tuning": 0, "full finetuning": 0, "full parameters": 0, "full-parameter training": 0}),
    _spec("lora_alpha", "LoRA alpha", usual=(8, 16, 32)),
    _spec("lora_target_modules", "LoRA's modules", "lora modules", usual=("all-linear", ["q_proj", "v_proj"])),
    _spec("stop_rule", "rule that completes a batch", "stop rule", usual=("enough_tasks", "enough_non_constant_tasks"),
          values={"dynamic sampling": "enough_non_constant_tasks"}),
    _spec("min_group", "smallest group", "min group", usual=(2, 4)),
    _spec("max_staleness", "staleness", "off-policy steps", usual=(0, 1, 2), off=0),
    _spec("rollout_is", "importance-sampling correction", "importance sampling", usual=("off", "token", "sequence"),
          off="off"),
    _spec("rollout_is_threshold", "bound of the correction", usual=(2.0, 5.0)),
    _spec("rollout_is_batch_normalize", "normalized correction", usual=(False, True),
          values=_ON_OFF),
    _spec("rollout_rs", "rejection criteria", usual=("token_k1", "seq_mean_k1")),
    _spec("rollout_rs_threshold", "bound of the rejection", usual=(2.0, 5.0)),
    _spec("loss_type", "loss of bypass mode", usual=("ppo_clip", "reinforce")),
    _spec("loss_scale_factor", "divisor of summed losses", usual=(128, 256)),
    _spec("dro_beta", "weight of DRO's penalty", usual=(0.05, 0.1)),
    _spec("gamma", "discount", "gamma", "discount factor", usual=(1.0, 0.99)),
    _spec("lam", "lambda of GAE", "lambda", "gae lambda", usual=(1.0, 0.95)),
    _spec("critic_lr", "critic's learning rate", "critic learning rate", usual=(1e-3, 3e-3)),
    _spec("critic_warmup", "critic's warm-up", "critic warmup", usual=(0, 5)),
    _spec("cliprange_value", "critic's clip range", usual=(0.2, 0.5)),
    _spec("sft_steps", "supervised steps", "sft steps", "steps of supervised training", usual=(0, 20)),
    _spec("sft_batch_size", "demonstrations per step", "sft batch size", usual=(8, 16)),
    _spec("sft_lr", "supervised learning rate", "sft learning rate", usual=(1e-5, 1e-4)),
    _spec("sft_coeff", "weight of the supervised loss", "sft coefficient", usual=(0.0, 0.1)),
    _spec("tool_parser", "tool parser", usual=("hermes", "llama3_json")),
    _spec("reasoning_parser", "reasoning parser", usual=("none", "think")),
    _spec("verl", "settings of verl"),
)  # fmt: skip

SPECS: Mapping[str, FactorSpec] = MappingProxyType({spec.name: spec for spec in _SPECS})
"""Every factor, in the order in which docs and refusals show them."""


def why_no_factor(name: str) -> str | None:
    """Return why a setting of a job cannot be a factor; None if it can, or if it is not a setting."""
    return _NO_FACTORS.get(name)


def settings_of(spec: FactorSpec, value: Any) -> Mapping[str, Any]:
    """Return the settings of a job for a level: the field itself, or those of a named algorithm."""
    if spec.name == "algorithm" and str(value) in ALGORITHMS:
        return ALGORITHMS[str(value)]
    return {spec.name: value}
