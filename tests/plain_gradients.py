"""Loss and gradient by the learner's own parts, by verl's functions over whole episodes, and by plain formulas."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Sequence

import numpy as np
import torch
from verl.trainer.config.algorithm import RolloutCorrectionConfig
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.workers.config import ActorConfig, PolicyLossConfig

from swarm.backends.local.learning.losses import RolloutCorrection
from swarm.backends.local.learning.microbatches import FollowedBatch, GrammarFollower, plan_microbatches
from swarm.backends.local.learning.optimizer import PolicyOptimizer
from swarm.backends.local.learning.updater import MiniBatchUpdater, StepInput, TokenScorer
from swarm.job import TrainJob
from swarm.job.checks import bypass_settings
from swarm.trainer.advantages import compute_advantages
from swarm.trainer.token_rows import build_rows
from swarm.types import FinishedEpisode, Sample, TrainBatch


def flat_gradient(module: torch.nn.Module) -> torch.Tensor:
    grads = [torch.zeros_like(w) if w.grad is None else w.grad for w in module.parameters()]
    return torch.cat([grad.flatten().double() for grad in grads])


def learner_gradient(
    module: torch.nn.Module,
    job: TrainJob,
    batch: TrainBatch,
    reference: torch.nn.Module | None = None,
    *,
    moved: torch.nn.Module | None = None,
    chosen: Sequence[int] | None = None,
    grammars: GrammarFollower | None = None,
) -> tuple[float, torch.Tensor]:
    """Policy loss and gradient of one minibatch, the whole batch unless rows are `chosen`, by the learner's own parts.

    With `moved`, the weights of `module` become those of `moved` before the minibatch, as by earlier updates.
    """
    job = job.resolve()
    module.zero_grad()
    updater = MiniBatchUpdater(
        policy=TokenScorer(module),
        reference=None if reference is None else TokenScorer(reference),
        optimizer=PolicyOptimizer(module, job),
        job=job,
        device=torch.device("cpu"),
    )
    followed = FollowedBatch(batch) if grammars is None else grammars.follow(batch)
    rows = build_rows(followed.batch, followed.masks)
    correction = RolloutCorrection(rows, job) if job.has_proximal_policy else None
    measured_policy = None
    if job.reads_policy:
        measured_policy = updater.measure_policy(rows, correction)
    step = StepInput(
        rows,
        compute_advantages(rows, job, measured_policy),
        lr=0.0,
        weight_version=None,
        correction=correction,
    )
    if moved is not None:
        if correction is not None:
            updater.record_proximal(step, correction)
        module.load_state_dict(moved.state_dict())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        measured = updater.accumulate(step, range(len(rows)) if chosen is None else chosen, on_policy=moved is None)
    assert measured is not None
    return measured.read()["actor/pg_loss"], flat_gradient(module)


def nudged(module: torch.nn.Module) -> torch.nn.Module:
    """A copy a little way off, so that no KL value reaches verl's clamps."""
    other = copy.deepcopy(module)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in other.parameters():
            weight += 0.02 * torch.randn(weight.shape, generator=generator)
    return other


Allowed = Callable[[Sample, int], Sequence[int] | None]
"""The tokens that could have stood at a position of a sample; None for all."""


def plain_logprobs(
    module: torch.nn.Module, episode: FinishedEpisode, temperature: float, allowed: Allowed = lambda _sample, _at: None
) -> list[tuple[torch.Tensor, torch.Tensor, float]]:
    """(logprob, entropy, recorded logprob) of every trained token, one sample and one token at a time."""
    tokens = []
    for sample in episode.samples:
        logits = module(input_ids=torch.tensor([sample.token_ids_T])).logits[0] / temperature
        for position, trained in enumerate(sample.loss_mask_T):
            if trained:
                choices = allowed(sample, position) or range(logits.shape[1])
                distribution = torch.distributions.Categorical(logits=logits[position - 1, list(choices)])
                token = torch.tensor(choices.index(sample.token_ids_T[position]))
                tokens.append((distribution.log_prob(token), distribution.entropy(), sample.logprobs_T[position]))
    return tokens


def actor_config(job: TrainJob) -> ActorConfig:
    """verl's settings of the loss of a resolved job."""
    return ActorConfig(
        strategy="fsdp",
        rollout_n=job.num_repeat,
        use_dynamic_bsz=True,
        clip_ratio_low=job.clip_ratio_low or job.clip_ratio,
        clip_ratio_high=job.clip_ratio_high or job.clip_ratio,
        clip_ratio_c=job.clip_ratio_c,
        policy_loss=PolicyLossConfig(
            loss_mode=job.policy_loss,
            dro_beta=job.dro_beta,
            rollout_correction=RolloutCorrectionConfig(**bypass_settings(job)),
        ),
        loss_agg_mode=str(job.loss_agg_mode),
        loss_scale_factor=job.loss_scale_factor or job.reply_tokens,
        entropy_coeff=job.entropy_coeff,
        use_kl_loss=job.use_kl_loss,
        kl_loss_coef=job.kl_loss_coef,
        kl_loss_type=job.kl_loss_type,
    )


def verl_gradient(
    module: torch.nn.Module,
    job: TrainJob,
    batch: TrainBatch,
    *,
    start: torch.nn.Module | None = None,
    chosen: Sequence[int] | None = None,
) -> tuple[float, torch.Tensor]:
    """Policy loss and gradient by verl's function over one matrix of whole episodes, each token scored alone.

    Jobs with importance sampling compare with the policy `start`, which is `module` unless it is given.
    """
    job, rows = job.resolve(), build_rows(batch)
    config = actor_config(job)
    # Losses that draw among the tokens do so in the order of a microbatch.
    numbers = plan_microbatches(rows, range(len(rows)) if chosen is None else chosen, None)[0]
    advantages_EL = compute_advantages(rows, job)[numbers, : max(rows[number].tokens for number in numbers)]
    new_EL, old_EL, recorded_EL = (torch.zeros_like(advantages_EL) for _ in range(3))
    for line, number in enumerate(numbers):
        tokens = rows[number].tokens
        new_EL[line, :tokens] = in_turn_order(module, batch.episodes[number])
        recorded_EL[line, :tokens] = torch.from_numpy(rows[number].rollout_logprobs_L)
        if job.has_proximal_policy:
            with torch.no_grad():
                old_EL[line, :tokens] = in_turn_order(start or module, batch.episodes[number])
    mask_EL = torch.arange(advantages_EL.shape[1])[None] < torch.tensor([[rows[number].tokens] for number in numbers])
    config.global_batch_info.update(
        dp_size=1,
        batch_num_tokens=mask_EL.sum(),
        global_batch_size=len(numbers),
        loss_scale_factor=config.loss_scale_factor,
    )
    module.zero_grad()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        loss, _ = get_policy_loss_fn(job.policy_loss)(
            old_log_prob=old_EL if job.has_proximal_policy else recorded_EL,
            log_prob=new_EL,
            advantages=advantages_EL,
            response_mask=mask_EL,
            loss_agg_mode=config.loss_agg_mode,
            config=config,
            rollout_is_weights=plain_weights(old_EL, recorded_EL, job) if job.has_proximal_policy else None,
        )
    loss.backward()
    return loss.item(), flat_gradient(module)


def in_turn_order(module: torch.nn.Module, episode: FinishedEpisode) -> torch.Tensor:
    """Logprobs of the trained tokens as the columns of a row have them."""
    turns = [turn for sample in episode.samples for turn in sample.turn_indices_T if turn >= 0]
    logprobs = [logprob for logprob, _, _ in plain_logprobs(module, episode, 1.0)]
    return torch.stack([logprobs[place] for place in np.argsort(turns, kind="stable")])


def plain_weights(proximal_EL: torch.Tensor, recorded_EL: torch.Tensor, job: TrainJob) -> torch.Tensor:
    """Truncated importance sampling weights; both matrices are 0 past the end of a row."""
    gaps_EL = proximal_EL - recorded_EL
    if job.rollout_is == "sequence":
        gaps_EL = gaps_EL.sum(dim=1, keepdim=True).expand_as(gaps_EL)
    return gaps_EL.exp().clamp(max=job.rollout_is_threshold)


def ppo_term(logprob: torch.Tensor, old: float, advantage: float) -> torch.Tensor:
    """Clipped surrogate with dual clip: eps 0.2, c 3."""
    ratio = (logprob - old).exp()
    loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2))
    return torch.minimum(loss, torch.tensor(-3.0 * advantage)) if advantage < 0 else loss


def plain_terms(
    module: torch.nn.Module,
    batch: TrainBatch,
    temperature: float,
    advantages_of: Callable[[list[float]], list[float]],
    reference: torch.nn.Module | None = None,
    allowed: Allowed = lambda _sample, _at: None,
) -> list[torch.Tensor]:
    """Clipped terms of every episode, with 0.1 * KL (k3) - 0.03 * entropy of each token where there is a reference."""
    terms: list[torch.Tensor] = []
    for group in batch.groups:
        advantages = advantages_of([episode.reward for episode in group.episodes])
        for episode, advantage in zip(group.episodes, advantages, strict=True):
            tokens = plain_logprobs(module, episode, temperature, allowed)
            found = torch.stack([ppo_term(logprob, old, advantage) for logprob, _, old in tokens])
            if reference is not None:
                with torch.no_grad():
                    frozen = plain_logprobs(reference, episode, temperature, allowed)
                gaps = torch.stack([ref - new for (ref, _, _), (new, _, _) in zip(frozen, tokens, strict=True)])
                entropies = torch.stack([entropy for _, entropy, _ in tokens])
                found = found + 0.1 * (gaps.exp() - gaps - 1) - 0.03 * entropies
            terms.append(found)
    return terms


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return ((got - expected).norm() / expected.norm()).item()


def group_advantages(rewards: list[float], *, normalise: bool = True) -> list[float]:
    mean = statistics.mean(rewards)
    deviation = statistics.stdev(rewards) + 1e-6 if normalise else 1.0
    return [(reward - mean) / deviation for reward in rewards]


def plain_gradient(module: torch.nn.Module, loss: Callable[[], torch.Tensor]) -> tuple[float, torch.Tensor]:
    module.zero_grad()
    value = loss()
    value.backward()
    return value.item(), flat_gradient(module)
