"""Scores of models of several families, and training in low precision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tiny_models import MakeBatch, MakeModel, random_model

from swarm.job import TrainJob
from swarm.trainer.token_rows import build_rows
from swarm.types import Group, Sample, TrainBatch


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global torch, Gemma2Config, GPT2Config, LlamaConfig, MistralConfig, PretrainedConfig, Learner, collate
    global PolicyOptimizer, TokenScorer, compute_advantages
    import torch
    from transformers import Gemma2Config, GPT2Config, LlamaConfig, MistralConfig, PretrainedConfig

    from swarm.backends.local.learning.learner import Learner
    from swarm.backends.local.learning.microbatches import collate
    from swarm.backends.local.learning.optimizer import PolicyOptimizer
    from swarm.backends.local.learning.updater import TokenScorer
    from swarm.trainer.advantages import compute_advantages


FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "mistral-window": ("Mistral", {"sliding_window": 4}),
    "gemma2-capped": ("Gemma2", {"final_logit_softcapping": 2.0, "sliding_window": 4, "head_dim": 16}),
    "gpt2": ("GPT2", {"vocab_size": 61}),
}


def with_mixed_temperatures(batch: TrainBatch) -> TrainBatch:
    """The same batch, each trained token sampled at a temperature of its own."""

    def mixed(sample: Sample) -> Sample:
        return replace(sample, temperatures_T=tuple(0.5 + 0.1 * place for place in range(len(sample.token_ids_T))))

    groups = [
        Group(group.task_id, tuple(replace(e, samples=tuple(map(mixed, e.samples))) for e in group.episodes))
        for group in batch.groups
    ]
    return TrainBatch(batch.batch_id, batch.step, tuple(groups))


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_equal_a_forward_pass_of_each_sample_alone(
    make_model: MakeModel, make_batch: MakeBatch, family: str
) -> None:
    kind, sizes = FAMILIES[family]
    model, batch = random_model(kind, **sizes), with_mixed_temperatures(make_batch(merged=False))
    rows = build_rows(batch)
    micro = collate(rows, range(len(rows)), torch.zeros(len(rows), 99), torch.device("cpu"))
    with torch.no_grad():
        got = TokenScorer(model)(micro).logprobs_N
        expected = []
        for episode in batch.episodes:
            for sample in episode.samples:
                logits = model(input_ids=torch.tensor([sample.token_ids_T])).logits[0]
                expected += [
                    torch.log_softmax(logits[position - 1] / sample.temperatures_T[position], -1)[
                        sample.token_ids_T[position]
                    ]
                    for position, trained in enumerate(sample.loss_mask_T)
                    if trained
                ]
    gap = (got - torch.stack(expected)).abs().max().item()
    assert gap < 1e-5, f"largest logprob gap {gap:.2e}"


def test_small_updates_are_not_rounded_away_in_low_precision(make_model: MakeModel, make_batch: MakeBatch) -> None:
    model = make_model(dtype="bfloat16")
    before = torch.cat([weight.detach().flatten().clone() for weight in model.parameters()])
    learner = Learner(model, TrainJob(lr=1e-5))
    for step in range(1, 41):
        learner.step(make_batch(step=step))
    after = torch.cat([weight.detach().flatten() for weight in model.parameters()])
    moved = (after != before).float().mean().item()
    assert after.dtype == torch.bfloat16
    assert moved > 0.1, f"{moved:.1%} of the weights moved"


def test_frozen_weights_are_left_alone(make_model: MakeModel, make_batch: MakeBatch) -> None:
    model = make_model()
    frozen = model.get_input_embeddings().weight.requires_grad_(False)  # type: ignore[operator]
    before = frozen.detach().clone()
    Learner(model, TrainJob(lr=1e-2)).step(make_batch())
    assert torch.equal(frozen, before)


def test_optimizer_clips_to_the_given_norm_and_reports_the_norm_before(make_model: MakeModel) -> None:
    model = make_model()
    optimizer = PolicyOptimizer(model, TrainJob(grad_clip=0.5).resolve())
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    norm = optimizer.update(lr=0.0)
    assert norm == pytest.approx(sum(weight.numel() for weight in model.parameters()) ** 0.5, rel=1e-5)


def test_optimizer_refuses_a_gradient_that_is_not_finite(make_model: MakeModel) -> None:
    model = make_model()
    before = [weight.detach().clone() for weight in model.parameters()]
    optimizer = PolicyOptimizer(model, TrainJob(lr=0.1).resolve())
    for weight in model.parameters():
        weight.grad = torch.full_like(weight, torch.inf)
    assert optimizer.update(lr=0.1) is None
    assert all(torch.equal(new, old) for new, old in zip(model.parameters(), before, strict=True))
    assert all(weight.grad is None for weight in model.parameters())


def test_advantages_reach_the_columns_of_their_tokens(make_batch: MakeBatch) -> None:
    rows = build_rows(make_batch())
    advantages = compute_advantages(rows, TrainJob(algorithm="reinforce_plus_plus", gamma=0.5))
    micro = collate(rows, [3, 1], advantages, torch.device("cpu"))
    width = micro.mask_RL.shape[1]
    assert torch.equal(micro.advantages_RL, advantages[[3, 1], :width])
    assert micro.mask_RL.sum(1).tolist() == [rows[3].tokens, rows[1].tokens]
