"""The parts of a scale experiment: a workload, a cluster, the batching of episodes, and the outcome.

Place in the flow: simulation.py and bench/scale_live.py each give a `SteadyState` for the same `Setup`.
Speeds that follow from one number of requests alone are here; nothing here knows of time or chance.
"""

from __future__ import annotations

from dataclasses import dataclass

from swarm.job import TrainJob


@dataclass(frozen=True, slots=True)
class Workload:
    """The episodes of an experiment, with `turns` model calls each.

    Each turn takes `tool_s` seconds outside the model and samples `turn_tokens`. It reads `read_tokens` more, which are
    trained on as context. All are means.

    Whole episodes differ by one lognormal factor of mean 1 on times and tokens; `length_sigma` is that of its
    logarithm.
    """

    turns: int
    turn_tokens: float
    read_tokens: float
    tool_s: float
    length_sigma: float

    @property
    def sampled_tokens(self) -> float:
        """The mean number of tokens that are sampled in one episode."""
        return self.turns * self.turn_tokens

    @property
    def trained_tokens(self) -> float:
        """The mean number of tokens that the trainer processes for one episode."""
        return self.turns * (self.turn_tokens + self.read_tokens)


@dataclass(frozen=True, slots=True)
class Cluster:
    """Sampler replicas, trainer ranks and one gateway.

    One decode step of a replica with n requests takes `token_s` + n `token_per_request_s` seconds and gives each of
    them a token; at most `max_num_seqs` are served at once, the others wait in order of arrival. A training step takes
    `step_overhead_s` and the time of its tokens; then the samplers pause for `publish_s` while weights change. The
    gateway spends `gateway_call_s` on each model call and `gateway_token_s` on each of its tokens, one after the other.
    """

    replicas: int
    token_s: float
    token_per_request_s: float
    max_num_seqs: int
    ranks: int
    rank_tokens_per_s: float
    step_overhead_s: float
    publish_s: float
    gateway_call_s: float = 0.0
    gateway_token_s: float = 0.0

    def gateway_s(self, tokens: float) -> float:
        """Return the seconds of work at the gateway for a call of this many tokens."""
        return self.gateway_call_s + self.gateway_token_s * tokens

    def token_s_at(self, requests: float) -> float:
        """Return the seconds per token of one served request while `requests` are open on a replica."""
        return self.token_s + self.token_per_request_s * min(max(1.0, requests), self.max_num_seqs)

    def tokens_per_s(self, requests: float) -> float:
        """Return tokens per second of all replicas together, with `requests` open in all, evenly spread.

        The step time is affine: weights are read once per step, caches and activations once per request (R. Pope et
        al., "Efficiently Scaling Transformer Inference", 2022, section 2).
        """
        each = requests / self.replicas
        return self.replicas * min(each, self.max_num_seqs) / self.token_s_at(each)

    @property
    def peak_tokens_per_s(self) -> float:
        """The tokens per second with every replica as full as it may be."""
        return self.tokens_per_s(self.replicas * self.max_num_seqs)

    def train_s(self, tokens: float) -> float:
        return self.step_overhead_s + tokens / (self.ranks * self.rank_tokens_per_s)


@dataclass(frozen=True, slots=True)
class Batching:
    """Settings of a job by their names. `max_staleness` 0 is synchronous training.

    The server holds clients once what waits and runs covers the batches that may be begun.
    """

    batch_size: int
    num_repeat: int
    max_staleness: int

    @property
    def episodes(self) -> int:
        return self.batch_size * self.num_repeat

    @property
    def room(self) -> int:
        """The number of episodes that may begin before the first of them is trained."""
        return (self.max_staleness + 1) * self.episodes

    def job(self) -> TrainJob:
        """Return the job, which cuts nothing off: a synchronous batch waits for its last episode."""
        return TrainJob(
            engine="fake",
            project_name="bench",
            batch_size=self.batch_size,
            num_repeat=self.num_repeat,
            max_staleness=self.max_staleness,
            drain_timeout_s=86_400.0,
            episode_timeout_s=604_800.0,
        )


@dataclass(frozen=True, slots=True)
class Setup:
    """One case. `clients` count rollout slots: each runs one episode after the other."""

    workload: Workload
    cluster: Cluster
    batching: Batching
    clients: int

    @property
    def unloaded_s(self) -> float:
        """The seconds of a mean episode that runs alone."""
        tokens = self.workload.turn_tokens
        sampling_s = tokens * self.cluster.token_s_at(1)
        return self.workload.turns * (self.workload.tool_s + self.cluster.gateway_s(tokens) + sampling_s)


@dataclass(frozen=True, slots=True)
class SteadyState:
    """Means over steps in the long run.

    `trainer_utilization`: share of the time that the trainer trains. `sampler_utilization`: tokens per second over
    the samplers' peak. The staleness of an episode is that of its oldest token, in weight versions; of trained
    episodes. `straggler_share`: share of the step time by which a batch's last episode is later than an even load would
    have it (synchronous only, else 0). `dropped_share`: of the episodes that left the pool, those not trained.
    `gateway_s`: what a model call spends at the gateway, waiting and worked on. `running`: episodes at once.
    """

    step_s: float
    episodes_per_s: float
    batch_episodes: float
    trainer_utilization: float
    sampler_utilization: float
    staleness_mean: float
    staleness_max: float
    straggler_share: float
    dropped_share: float
    gateway_s: float
    running: float
