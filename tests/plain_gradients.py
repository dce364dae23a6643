"""Loss and gradient by the learner's own parts, and the pieces of a plain, obvious implementation to hold against them.

For the tests of the trainer, several of which compare the two.
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Sequence

import torch

from swarm.backends.local.learning.losses import RolloutCorrection
from swarm.backends.local.learning.microbatches import FollowedBatch, GrammarFollower
from swarm.backends.local.learning.optimizer import PolicyOptimizer
from swarm.backends.local.learning.updater import MiniBatchUpdater, StepInput, TokenScorer
from swarm.job import TrainJob
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


def ppo_term(logprob: torch.Tensor, old: float, advantage: float) -> torch.Tensor:
    """Clipped surrogate with dual clip: eps 0.2, c 3."""
    ratio = (logprob - old).exp()
    loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2))
    return torch.minimum(loss, torch.tensor(-3.0 * advantage)) if advantage < 0 else loss


def relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return ((got - expected).norm() / expected.norm()).item()


def group_advantages(rewards: list[float], *, normalise: bool) -> list[float]:
    mean = statistics.mean(rewards)
    deviation = statistics.stdev(rewards) + 1e-6 if normalise else 1.0
    return [(reward - mean) / deviation for reward in rewards]


def plain_gradient(module: torch.nn.Module, loss: Callable[[], torch.Tensor]) -> tuple[float, torch.Tensor]:
    module.zero_grad()
    value = loss()
    value.backward()
    return value.item(), flat_gradient(module)
