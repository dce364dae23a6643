"""Every metric of a training step with its unit and formula, and those of a closed batch, which the server computes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from statistics import fmean

from swarm.batch.pool import ClosedBatch
from swarm.guard import AGREEMENT, GRADED_GROUPS, SUCCESS
from swarm.types import FinishedEpisode


def batch_metrics(closed: ClosedBatch, drain_s: float) -> dict[str, float]:
    """Return the metrics of a batch, and `timing/drain_s`, the seconds that its last episodes were waited for."""
    return {
        "batch/episodes": float(len(closed.batch.members)),
        "batch/groups": float(len(closed.batch.groups)),
        "batch/short_groups": float(closed.short_groups),
        "batch/missing_groups": float(closed.missing_groups),
        "batch/dropped_episodes": float(len(closed.dropped)),
        "batch/dropped_tokens": float(sum(drop.trained_tokens for drop in closed.dropped)),
        **_success_rate(closed.batch.episodes),
        **_agreement([group.episodes for group in closed.batch.groups]),
        "timing/drain_s": drain_s,
    }


def _success_rate(episodes: Sequence[FinishedEpisode]) -> dict[str, float]:
    """Return the share of successes among the episodes whose clients report success or failure, if there are any."""
    successes = [episode.is_success for episode in episodes if episode.is_success is not None]
    return {SUCCESS: fmean(successes)} if successes else {}


def _agreement(groups: Iterable[Sequence[FinishedEpisode]]) -> dict[str, float]:
    """Return the correlation of return and success within groups, and the number of groups that tell anything of it.

    Such a group has episodes of both outcomes and different returns. The correlation is Pearson's, of the deviations
    from the means of the groups. Both metrics are missing if no group tells anything.
    """
    pairs: list[tuple[float, float]] = []
    count = 0
    for group in groups:
        # An algorithm may learn from named rewards instead of from the reward.
        known = [
            (each.reward + sum(each.turn_rewards or ()), float(each.is_success))
            for each in group
            if each.is_success is not None and each.rewards is None
        ]
        if len({reward for reward, _ in known}) > 1 and len({success for _, success in known}) > 1:
            count += 1
            pairs += _deviations(known)
    rewards, successes = (math.sqrt(sum(pair[place] ** 2 for pair in pairs)) for place in (0, 1))
    if not rewards or not successes:
        return {}
    return {AGREEMENT: sum(a * b for a, b in pairs) / rewards / successes, GRADED_GROUPS: float(count)}


def _deviations(known: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    reward, success = fmean(each[0] for each in known), fmean(each[1] for each in known)
    return [(each[0] - reward, each[1] - success) for each in known]


@dataclass(frozen=True, slots=True)
class StepMetric:
    """A group of metrics with the same unit and formula. A `*` in a name stands for any text."""

    names: tuple[str, ...]
    unit: str
    formula: str
    only_with: str = ""
    """When a step has it; empty stands for always."""


def describe_metric(name: str) -> StepMetric | None:
    """Return the description of a metric, or None for a name that the table lacks."""
    return next((each for each in STEP_METRICS if any(fnmatchcase(name, known) for known in each.names)), None)


def _spread(name: str) -> tuple[str, ...]:
    return tuple(f"{name}/{part}" for part in ("mean", "max", "min"))


REWARD, RATIO, NATS, TOKENS, COUNT, SECONDS, LOSS = "reward", "ratio", "nats", "tokens", "count", "seconds", "loss"
GAE, GRAMMAR = "`algorithm: gae`", "turns under a grammar"
DEMONSTRATIONS = "`sft_steps`, `sft_coeff`"
CORRECTION = "`rollout_is`, or `policy_loss: bypass_mode`"

STEP_METRICS: tuple[StepMetric, ...] = (
    StepMetric((*_spread("critic/score"), "critic/score/std"), REWARD, "over the rewards of the trained episodes"),
    StepMetric(_spread("critic/return"), REWARD, "reward + Σ turn rewards, over the episodes", "turn rewards"),
    StepMetric(("critic/greedy_score/mean",), REWARD, "mean over the greedy episodes", "`algorithm: remax`"),
    StepMetric(
        ("gdpo/*/mean", "gdpo/*/std"), REWARD, "over the episodes, for each named reward", "rewards that all have"
    ),
    StepMetric(_spread("critic/advantages"), "advantage", "over the advantages of the trained tokens"),
    StepMetric(_spread("critic/values"), REWARD, "over the critic's values of the trained tokens", GAE),
    StepMetric(("critic/returns/mean",), REWARD, "mean return of the trained tokens", GAE),
    StepMetric(("critic/vpred_mean",), REWARD, "mean value during the updates", GAE),
    StepMetric(("critic/vf_explained_var",), RATIO, "1 - Var(return - value) / Var(return)", GAE),
    StepMetric(("critic/vf_loss",), LOSS, "mean over updates of the clipped squared error of the values", GAE),
    StepMetric(("critic/vf_clipfrac",), RATIO, "tokens with a clipped value / tokens", GAE),
    StepMetric(("critic/grad_norm",), "norm", "L2 norm of the gradient before clipping, mean over updates", GAE),
    StepMetric(("critic/lr",), "per update", "learning rate of the critic", GAE),
    StepMetric(("critic/updates", "critic/updates_not_finite"), COUNT, "updates made; skipped, not finite", GAE),
    StepMetric(_spread("response_length"), TOKENS, "sampled tokens of an episode, over the episodes"),
    StepMetric(("num_turns/mean",), "turns", "turns / episodes"),
    StepMetric(("rollout/episodes", "rollout/groups", "rollout/turns"), COUNT, "what the step trained on"),
    StepMetric(("rollout/groups_zero_advantage",), COUNT, "groups in which no episode has an advantage"),
    StepMetric(("rollout/trained_tokens", "actor/trained_tokens"), TOKENS, "Σ sampled tokens of the episodes"),
    StepMetric(
        ("rollout/tokens_left_out_temperature",), TOKENS, "Σ tokens sampled at another temperature", "`engine: verl`"
    ),
    StepMetric(("batch/episodes", "batch/groups"), COUNT, "what the closed batch holds"),
    StepMetric(("batch/short_groups",), COUNT, "groups with fewer than `num_repeat` episodes"),
    StepMetric(("batch/missing_groups",), COUNT, "groups that the batch lacks of `batch_size`"),
    StepMetric(("batch/dropped_episodes",), COUNT, "finished episodes that the batch left out"),
    StepMetric(("batch/dropped_tokens",), TOKENS, "Σ sampled tokens of these episodes"),
    StepMetric(("batch/success_rate",), RATIO, "successes / episodes that report success or failure", "such episodes"),
    StepMetric(
        ("batch/reward_success_correlation",),
        RATIO,
        "Pearson's correlation of return and success, both less their means in the group",
        "graded groups and no named rewards",
    ),
    StepMetric(
        ("batch/graded_groups",), COUNT, "groups with both outcomes and different returns", "at least one of them"
    ),
    StepMetric(("grammar/turns",), COUNT, "trained turns that were sampled under a grammar", GRAMMAR),
    StepMetric(("grammar/tokens",), TOKENS, "Σ tokens of these turns", GRAMMAR),
    StepMetric(("grammar/turns_left_out",), COUNT, "turns under a grammar that could not be trained", GRAMMAR),
    StepMetric(("grammar/tokens_left_out",), TOKENS, "Σ tokens of these turns", GRAMMAR),
    StepMetric(("merge/samples",), COUNT, "samples after turns with a common prefix were merged"),
    StepMetric(("merge/tokens",), TOKENS, "Σ tokens of the samples"),
    StepMetric(("merge/tokens_unmerged",), TOKENS, "Σ tokens if each turn were a sample of its own"),
    StepMetric(
        ("sharing/tokens",), TOKENS, "Σ tokens that the passes of all epochs computed", "sharing of common prefixes"
    ),
    StepMetric(("sharing/tokens_unshared",), TOKENS, "Σ of the same without sharing", "sharing of common prefixes"),
    StepMetric(
        ("sharing/fallbacks", "sharing/fallbacks/*"),
        COUNT,
        "microbatches computed apart all the same; by reason: layers, attention, mismatch",
        "sharing of common prefixes",
    ),
    StepMetric(("actor/pg_loss",), LOSS, "policy loss of a minibatch, mean over updates"),
    StepMetric(("actor/kl_loss",), NATS, "KL(π, reference) by `kl_loss_type`, mean over updates", "`use_kl_loss`"),
    StepMetric(("actor/entropy_loss",), NATS, "aggregated entropy, mean over updates", "`entropy_coeff`"),
    StepMetric(("actor/entropy",), NATS, "-Σ_a π(a) log π(a), mean over the trained tokens"),
    StepMetric(("actor/ppo_kl",), NATS, "log π_old - log π, mean over the trained tokens"),
    StepMetric(("actor/pg_clipfrac",), RATIO, "tokens whose ratio is clipped / trained tokens"),
    StepMetric(("actor/pg_clipfrac_lower",), RATIO, "tokens at the bound `clip_ratio_c` / trained tokens"),
    StepMetric(("actor/grad_norm",), "norm", "L2 norm of the gradient before clipping, mean over updates"),
    StepMetric(("actor/lr",), "per update", "learning rate of the step"),
    StepMetric(("actor/updates",), COUNT, "optimizer updates made"),
    StepMetric(("actor/updates_without_signal",), COUNT, "minibatches without a gradient, which made no update"),
    StepMetric(("actor/updates_not_finite",), COUNT, "updates skipped, as loss or gradient was not finite"),
    StepMetric(("actor/*",), "by verl", "what a policy loss of verl reports besides, mean over the trained tokens"),
    StepMetric(
        ("training/rollout_logprob_gap_mean", "training/rollout_logprob_gap_max"),
        NATS,
        "|log π_sampler - log π_trainer| of tokens of the present weights, before the first update",
    ),
    StepMetric(("training/rollout_probs_diff_max",), RATIO, "max of |π_sampler - π_trainer| of the same tokens"),
    StepMetric(("training/*",), "by verl", "what verl reports of sampler and trainer besides", "`engine: verl`"),
    StepMetric(("staleness/mean", "staleness/max"), "versions", "version at the step's start - version of the token"),
    StepMetric(
        ("rollout_corr/rollout_is_*",), RATIO, "the weights w: mean, std, min, max, fractions out of bounds", CORRECTION
    ),
    StepMetric(
        ("rollout_corr/rollout_rs_*",), RATIO, "left out by rejection: share of tokens, of episodes", "`rollout_rs`"
    ),
    StepMetric(
        ("rollout_corr/kl", "rollout_corr/k3_kl", "rollout_corr/chi2_*"),
        NATS,
        "divergences of π_prox from π_rollout; χ² is a ratio",
        CORRECTION,
    ),
    StepMetric(("rollout_corr/*",), RATIO, "perplexities of π_prox (training) and π_rollout, and ratios", CORRECTION),
    StepMetric(("sft/loss",), NATS, "-log π, mean over the trained tokens of the demonstrations", DEMONSTRATIONS),
    StepMetric(
        ("sft/held_out_loss",), NATS, "the same of the held-out ones, after the step", "`sft_steps`, in some ten steps"
    ),
    StepMetric(("sft/demonstrations",), COUNT, "demonstrations of the step", DEMONSTRATIONS),
    StepMetric(("sft/trained_tokens",), TOKENS, "Σ tokens of their replies", DEMONSTRATIONS),
    StepMetric(("timing/drain_s",), SECONDS, "from the complete batch to the end of its last episode"),
    StepMetric(("timing_s/prepare",), SECONDS, "rows, advantages and π_prox"),
    StepMetric(("timing_s/update_actor",), SECONDS, "all updates of the step"),
    StepMetric(("timing_s/step",), SECONDS, "the whole step in the trainer"),
    StepMetric(("timing_s/*",), SECONDS, "parts of the step, by their names"),
    StepMetric(("perf/total_num_tokens",), TOKENS, "Σ tokens of the batch", "`engine: verl`"),
    StepMetric(("perf/time_per_step",), SECONDS, "the same as `timing_s/step`", "`engine: verl`"),
    StepMetric(("perf/throughput",), "tokens/s/GPU", "tokens / seconds / GPUs of the trainer", "`engine: verl`"),
    StepMetric(("perf/*",), "by verl", "what verl reports besides", "`engine: verl`"),
    StepMetric(("eval/mean", "eval/stderr"), REWARD, "held-out score and its standard error", "`eval_every`"),
    StepMetric(("eval/episodes",), COUNT, "held-out episodes of the score", "`eval_every`"),
)
"""The first entry that fits a name describes it, so that families with a `*` come after their members."""
