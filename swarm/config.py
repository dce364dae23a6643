"""TrainJob and ServerConfig: everything that can be configured, checked when it is read.

Place in the flow: the edge. This is the only module that reads YAML and the environment. It knows nothing of how a
setting is carried out; whether an engine can honour a job is checked by that engine.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self, cast
from urllib.parse import urlsplit

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    field_validator,
    model_validator,
)

from swarm.errors import JobInvalid
from swarm.schemas import Identifier, StopRule
from swarm.spelling import with_hints

BUNDLED_MODEL = "nano"
LR_OF_BUNDLED_MODEL = 3e-3
LR_DEFAULT = 1e-6
"""verl's default; the bundled model is four orders of magnitude smaller than what that suits."""

AdvantageEstimator = Literal[
    "grpo", "grpo_vectorized", "grpo_passk", "reinforce_plus_plus", "reinforce_plus_plus_baseline",
    "rloo", "rloo_vectorized", "opo", "gpg", "gae",
]  # fmt: skip
"""verl's names; `gae` has a critic, which only verl's engine trains. Its other estimators need greedy rollouts or
per-token statistics, which are not served."""

PolicyLoss = Literal["vanilla", "gspo", "cispo", "dppo_tv", "dppo_kl", "sapo", "gpg", "clip_cov", "kl_cov", "geo_mean"]
LossAggregation = Literal[
    "token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
]
RolloutIS = Literal["off", "token", "sequence"]
"""Truncated importance sampling against the policy that sampled a token, verl's rollout correction. Left out, it is
"token" when `max_staleness` allows older policies, else "off"."""
ToolParser = Literal["auto", "hermes", "llama3_json", "mistral"]
ReasoningParser = Literal["auto", "none", "think", "mistral"]
"""How the model writes tool calls, and its reasoning before a reply; "auto" is what its chat template shows, or else
its vocabulary."""
BOOT_TIMEOUT_S = {"local": 120.0, "fake": 120.0, "verl": 1800.0}
"""How long each engine may take to boot. Many processes on many hosts that read a large model from shared storage take
their time."""
GROUP_TIMEOUT_S = 30.0
"""Longer than a client takes to make a failed attempt again; others wait for the group meanwhile."""
STALL_TIMEOUT_S = 300.0
"""Longer than somebody takes to mend a client and start it again: a batch that lacks groups is worth that."""
KLKind = Literal["k1", "abs", "k2", "mse", "k3", "low_var_kl"]

AGGREGATION_BY_LOSS: dict[str, LossAggregation] = {
    "gspo": "seq-mean-token-mean",
    "sapo": "seq-mean-token-mean",
    "geo_mean": "seq-mean-token-mean",
}
"""verl aggregates these its own way, whatever `loss_agg_mode` says."""


class TrainJob(BaseModel):
    """One training run of one model. Names and defaults are verl's wherever verl has the setting.

    `algorithm` is the advantage estimator. `batch_size` counts tasks and `num_repeat` episodes per task. Settings
    that are None are filled in by `resolve`. A sequence, in the aggregation modes, is an episode. `n_gpu` counts the
    trainer's GPUs, 0 is the CPU; `engine` auto is local up to one of them, and verl beyond. `verl` holds settings of
    verl's own configuration, by its names, for what the job has no field for; verl's engine alone reads them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    algorithm: AdvantageEstimator = "grpo"
    project_name: Identifier = "swarm"
    experiment_name: Identifier = "default"
    engine: Literal["auto", "local", "verl", "fake"] = "auto"
    model: str = Field(default=BUNDLED_MODEL, min_length=1)
    n_gpu: int = Field(default=0, ge=0, le=100_000)
    seed: int = Field(default=0, ge=0, lt=2**31)

    batch_size: int = Field(default=16, ge=1, le=100_000)
    num_repeat: int = Field(default=8, ge=1, le=10_000)
    stop_rule: StopRule = "enough_tasks"
    min_group: int | None = Field(default=None, ge=1)
    drain_timeout_s: float = Field(default=30.0, gt=0, le=86_400)
    batch_timeout_s: float | None = Field(default=None, gt=0, le=86_400)
    group_timeout_s: float = Field(default=GROUP_TIMEOUT_S, gt=0, le=86_400)
    stall_timeout_s: float = Field(default=STALL_TIMEOUT_S, gt=0, le=86_400)
    max_staleness: int = Field(default=0, ge=0, le=1000)
    mixture: dict[Identifier, float] | None = None
    episode_timeout_s: float = Field(default=1800.0, gt=0, le=604_800)
    total_steps: int | None = Field(default=None, ge=1)
    save_freq: int = Field(default=0, ge=0)

    lr: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    lr_warmup_steps: int = Field(default=0, ge=0)
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    betas: tuple[float, float] = (0.9, 0.95)
    grad_clip: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    ppo_epochs: int = Field(default=1, ge=1)
    mini_batch_num: int = Field(default=1, ge=1)
    ppo_max_token_len: int = Field(default=16_384, ge=64)

    norm_adv_by_std_in_grpo: bool = True
    gamma: float = Field(default=1.0, ge=0, le=1)
    policy_loss: PolicyLoss = "vanilla"
    clip_ratio: float = Field(default=0.2, ge=0)
    clip_ratio_low: float | None = Field(default=None, ge=0)
    clip_ratio_high: float | None = Field(default=None, ge=0)
    clip_ratio_c: float = Field(default=3.0, gt=1)
    loss_agg_mode: LossAggregation | None = None
    loss_scale_factor: int | None = Field(default=None, ge=1)
    entropy_coeff: float = Field(default=0.0, allow_inf_nan=False)
    rollout_is: RolloutIS | None = None
    rollout_is_threshold: float = Field(default=2.0, gt=0, allow_inf_nan=False)
    use_kl_loss: bool = False
    kl_loss_coef: float = Field(default=0.001, ge=0, allow_inf_nan=False)
    kl_loss_type: KLKind = "low_var_kl"

    temperature: float = Field(default=1.0, gt=0, le=10)
    max_response_length: int = Field(default=256, ge=1)
    max_model_len: int | None = Field(default=None, ge=16)
    tool_parser: ToolParser = "auto"
    reasoning_parser: ReasoningParser = "auto"

    verl: dict[str, Any] = Field(default_factory=dict[str, Any])

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
        if self.algorithm == "gae" and self.chosen_engine == "local":
            raise ValueError("algorithm gae needs a critic, which engine local has not: set engine to verl")
        own = AGGREGATION_BY_LOSS.get(self.policy_loss)
        if own is not None and self.loss_agg_mode not in {None, own}:
            raise ValueError(f"policy_loss {self.policy_loss} aggregates by {own}: leave loss_agg_mode out")
        return self

    @property
    def chosen_engine(self) -> Literal["local", "verl", "fake"]:
        """`engine`, or what `auto` stands for."""
        if self.engine == "auto":
            return "local" if self.n_gpu <= 1 else "verl"
        return self.engine

    def resolve(self) -> TrainJob:
        """The same job with every automatic value filled in."""
        lr = self.lr
        if lr is None:
            lr = LR_OF_BUNDLED_MODEL if self.model == BUNDLED_MODEL else LR_DEFAULT
        return self.model_copy(
            update={
                "engine": self.chosen_engine,
                "lr": lr,
                "min_group": min(2, self.num_repeat) if self.min_group is None else self.min_group,
                "loss_agg_mode": self.loss_agg_mode or AGGREGATION_BY_LOSS.get(self.policy_loss, "token-mean"),
                "rollout_is": self.rollout_is or ("token" if self.max_staleness else "off"),
                "clip_ratio_low": self.clip_ratio if self.clip_ratio_low is None else self.clip_ratio_low,
                "clip_ratio_high": self.clip_ratio if self.clip_ratio_high is None else self.clip_ratio_high,
            }
        )

    def means(self, other: TrainJob) -> bool:
        """Whether both ask for the same, whatever they leave to defaults."""
        return self.resolve() == other.resolve()

    def extends(self, earlier: TrainJob) -> bool:
        """Whether this is the `earlier` job with more `total_steps`, so that it goes on from where that one is.

        A learning-rate schedule of verl's that ends is made for its `total_steps`: it has no longer version.
        """
        if earlier.total_steps is None or (self.total_steps is not None and self.total_steps <= earlier.total_steps):
            return False
        longer = earlier.model_copy(update={"total_steps": self.total_steps})
        return self.means(longer) and not _has_schedule(self.verl)

    def dump_job_as_yaml(self, path: str | Path) -> Path:
        """Write the job, without values left at their defaults."""
        target = Path(path)
        target.write_text(yaml.safe_dump(self.model_dump(mode="json", exclude_defaults=True), sort_keys=False))
        return target

    @classmethod
    def build_job_from_yaml(cls, path: str | Path) -> TrainJob:
        """Raises JobInvalid with one line for a missing file, malformed YAML, an unknown key or a bad value."""
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
    """A checked TrainJob from parsed data. Raises JobInvalid naming the first wrong field."""
    if not isinstance(data, dict):
        raise JobInvalid(f"{source}: expected a mapping of settings, got {type(data).__name__}")
    try:
        return TrainJob.model_validate(data)
    except ValidationError as error:
        raise JobInvalid(f"{source}: {_first_line(error)}", param=_first_location(error)) from error


def check_mixture(mixture: Mapping[str, float]) -> None:
    """Raises ValueError unless the shares are positive and sum to 1 (within 1e-6, as 1/3 is written)."""
    if not mixture or any(not share > 0 for share in mixture.values()):
        raise ValueError("mixture: every data source needs a share above 0")
    if abs(sum(mixture.values()) - 1) > 1e-6:
        raise ValueError(f"mixture: the shares must sum to 1, not {sum(mixture.values()):g}")


class ServerConfig(BaseModel):
    """How one server process runs. `home` holds the ledger, checkpoints and logs of its jobs.

    `token` is the commander's, who may do everything; `rollout_token` allows episodes, `observer_token` reading.
    `recovery_overhead` is the share of training time spent on the checkpoints that crash recovery starts from. `peers`
    are the base URLs of the servers that this one may ask how a transaction over several of them was decided.
    `ray_address` is the cluster that the verl engine uses instead of one of its own, `vllm_python` the interpreter with
    vLLM if that is not this one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    port: int = Field(default=10086, ge=0, le=65_535)
    home: Path = Path("runs/swarm")
    token: str | None = Field(default=None, min_length=16, repr=False)
    rollout_token: str | None = Field(default=None, min_length=16, repr=False)
    observer_token: str | None = Field(default=None, min_length=16, repr=False)
    max_running_requests: int = Field(default=128, ge=1, le=4096)
    torch_threads: int = Field(default=1, ge=1)
    hold_s: float = Field(default=100.0, gt=0, le=600)
    boot_timeout_s: float | None = Field(default=None, gt=0)
    train_timeout_s: float = Field(default=3600.0, gt=0)
    max_body_bytes: int = Field(default=16 * 2**20, ge=1024)
    max_running_episodes: int = Field(default=20_000, ge=1)
    recovery_overhead: float = Field(default=0.05, gt=0, le=1)
    peers: tuple[str, ...] = ()
    ray_address: str | None = Field(default=None, min_length=1)
    vllm_python: Path | None = None

    @field_validator("peers")
    @classmethod
    def _peers_are_addresses(cls, peers: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(base_url(peer) for peer in peers)

    @model_validator(mode="after")
    def _distinct_tokens(self) -> Self:
        lesser = [token for token in (self.rollout_token, self.observer_token) if token is not None]
        if lesser and self.token is None:
            raise ValueError("a rollout or observer token restricts nobody without SWARM_TOKEN: set that as well")
        given = [*lesser, self.token]
        if len(set(given)) != len(given):
            raise ValueError("the tokens of different roles must differ")
        return self

    @model_validator(mode="after")
    def _token_if_exposed(self) -> Self:
        if not is_loopback(self.host) and self.token is None:
            raise ValueError(
                f"host {self.host} is reachable from other machines: set SWARM_TOKEN (16+ characters) first"
            )
        return self

    def boot_limit_s(self, engine: str) -> float:
        """How long an engine of this kind may take to start."""
        return self.boot_timeout_s or BOOT_TIMEOUT_S[engine]

    @classmethod
    def from_environment(cls, **flags: Any) -> ServerConfig:
        """Flags that are not None win over SWARM_HOME, SWARM_TOKEN, SWARM_ROLLOUT_TOKEN, SWARM_OBSERVER_TOKEN,
        SWARM_RAY_ADDRESS, SWARM_VLLM_PYTHON and SWARM_PEERS (separated by commas), which win over defaults. Raises
        JobInvalid."""
        values: dict[str, Any] = {}
        if home := home_from_environment():
            values["home"] = home
        for name in ("token", "rollout_token", "observer_token"):
            if token := os.environ.get(f"SWARM_{name.upper()}"):
                values[name] = token
        ray_address, vllm_python = cluster_from_environment()
        values |= {"ray_address": ray_address, "vllm_python": vllm_python}
        if peers := os.environ.get("SWARM_PEERS"):
            values["peers"] = tuple(peer.strip() for peer in peers.split(",") if peer.strip())
        values.update({name: value for name, value in flags.items() if value is not None})
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise JobInvalid(f"server: {_first_line(error)}", param=_first_location(error)) from error


def base_url(address: str) -> str:
    """The address of a server in one spelling, without a slash at its end; `host:port` alone is completed to http.

    Raises ValueError unless it is http or https with a host, and with no user, query or fragment.
    """
    address = complete_address(address)
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    is_printable = address.isascii() and address.isprintable() and not any(letter in address for letter in " \\?#@%")
    if parts.scheme not in {"http", "https"} or not host or not is_printable or ".." in parts.path:
        raise ValueError("not the address of a server: write it like http://host:10086")
    shown = f"[{host}]" if ":" in host else host
    default = {"http": 80, "https": 443}[parts.scheme]
    at = "" if port in {None, default} else f":{port}"
    return f"{parts.scheme}://{shown}{at}{parts.path.rstrip('/')}"


def complete_address(address: str) -> str:
    """`localhost:10086` as people type it, with its scheme; any other address as it is."""
    host, _, port = address.partition("/")[0].rpartition(":")
    is_bare = "://" not in address and bool(host) and port.isascii() and port.isdecimal()
    return f"http://{address}" if is_bare else address


def home_from_environment() -> Path | None:
    """The directory of servers under SWARM_HOME; None if that is not set."""
    home = os.environ.get("SWARM_HOME")
    return Path(home) / "swarm" if home else None


def cluster_from_environment() -> tuple[str | None, Path | None]:
    """SWARM_RAY_ADDRESS and SWARM_VLLM_PYTHON, each None if it is not set."""
    python = os.environ.get("SWARM_VLLM_PYTHON")
    return os.environ.get("SWARM_RAY_ADDRESS") or None, Path(python) if python else None


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read_yaml(path: Path) -> object:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise JobInvalid(f"{path}: cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise JobInvalid(f"{path}: not valid YAML: {reason}") from error


def _first_location(error: ValidationError) -> str | None:
    location = error.errors(include_url=False)[0]["loc"]
    return ".".join(str(part) for part in location) or None


def _first_line(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    where = _first_location(error)
    what = first["msg"].removeprefix("Value error, ")
    is_secret = where is not None and where.endswith("token")
    is_told = first["type"] in {"extra_forbidden", "value_error"}
    got = "" if is_told or is_secret else f" (got {first['input']!r})"
    return f"{where}: {what}{got}" if where else what
