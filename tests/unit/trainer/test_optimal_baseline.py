"""Optimal token baselines: verl's numbers from what the policy says of each token, in the distribution it came from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from constrained_rollouts import PERSON, TOOL_CALL, Stage, bundled_model
from constrained_rollouts import make_batch as make_constrained_batch
from tiny_models import MakeBatch, MakeModel

from swarm.job import TrainJob
from swarm.trainer.token_rows import Row, build_rows
from swarm.types import SamplingParams


@pytest.fixture(scope="module", autouse=True)
def late_imports() -> None:
    global torch, learner_gradient, nudged, relative_error, get_adv_estimator_fn, calculate_sum_pi_squared_from_logits
    global Learner, RolloutCorrection, PolicyOptimizer, MiniBatchUpdater, TokenScorer, PolicyStatistics
    global compute_advantages
    import torch
    from plain_gradients import learner_gradient, nudged, relative_error
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn
    from verl.utils.torch_functional import calculate_sum_pi_squared_from_logits

    from swarm.backends.local.learning.learner import Learner
    from swarm.backends.local.learning.losses import RolloutCorrection
    from swarm.backends.local.learning.optimizer import PolicyOptimizer
    from swarm.backends.local.learning.updater import MiniBatchUpdater, TokenScorer
    from swarm.trainer.advantages import PolicyStatistics, compute_advantages


ESTIMATORS = ["optimal_token_baseline", "tir_optimal_token_baseline"]
TIS: dict[str, Any] = {"rollout_is": "token", "rollout_is_threshold": 1.2}


def measured(module: torch.nn.Module, rows: list[Row], job: TrainJob) -> PolicyStatistics:
    updater = MiniBatchUpdater(TokenScorer(module), None, PolicyOptimizer(module, job), job, torch.device("cpu"))
    correction = RolloutCorrection(rows, job) if job.has_proximal_policy else None
    return updater.measure_policy(rows, correction)


def plain_statistics(module: torch.nn.Module, rows: list[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logprob and squares of every trained token, one sample at a time; a masked token has probability 0."""
    shape = len(rows), max(row.tokens for row in rows)
    logprobs, squares = torch.zeros(shape), torch.zeros(shape)
    for line, row in enumerate(rows):
        for sample in row.samples:
            ids = torch.from_numpy(sample.token_ids_T)
            logits_TV = module(input_ids=ids[None]).logits[0]
            for number, (position, column) in enumerate(zip(sample.positions_K, sample.columns_K, strict=True)):
                logits_V = logits_TV[position - 1] / float(sample.temperatures_K[number])
                mask = sample.masks_K[number] if sample.masks_K else None
                if mask is not None:
                    bits = np.unpackbits(np.frombuffer(mask, dtype=np.uint8), bitorder="little")[: len(logits_V)]
                    logits_V = logits_V.masked_fill(torch.from_numpy(bits == 0), -torch.inf)
                logprobs[line, column] = torch.log_softmax(logits_V, -1)[ids[position]]
                squares[line, column] = calculate_sum_pi_squared_from_logits(logits_V)
    return logprobs.detach(), squares.detach()


@pytest.mark.parametrize("settings", [{}, TIS, {"rollout_is": "sequence"}, {"ppo_max_token_len": 64}])
@pytest.mark.parametrize("algorithm", ESTIMATORS)
def test_advantages_are_those_of_verls_function_on_the_same_batch(
    make_model: MakeModel, make_batch: MakeBatch, algorithm: str, settings: dict[str, Any]
) -> None:
    job = TrainJob.model_validate({"algorithm": algorithm, **settings}).resolve()
    model, rows = nudged(make_model()), build_rows(make_batch(((1, 0, 0.5), (0, 1), (0.25, 0, 0, 1)), temperature=0.7))
    got = compute_advantages(rows, job, measured(model, rows, job))
    logprobs, squares = plain_statistics(model, rows)
    mask = torch.arange(got.shape[1])[None] < torch.tensor([row.tokens for row in rows])[:, None]
    recorded, rewards = torch.zeros_like(logprobs), torch.zeros_like(logprobs)
    for line, row in enumerate(rows):
        recorded[line, : row.tokens] = torch.from_numpy(row.rollout_logprobs_L)
        rewards[line, row.tokens - 1] = row.reward
    gaps = logprobs - recorded
    weights = (gaps if job.rollout_is == "token" else (gaps * mask).sum(1, keepdim=True).expand_as(gaps)).exp()
    expected, _ = get_adv_estimator_fn(algorithm)(
        token_level_rewards=rewards,
        response_mask=mask.float(),
        index=np.array([row.group for row in rows]),
        old_log_probs=logprobs,
        sum_pi_squared=squares,
        rollout_is_weights=weights.clamp(max=job.rollout_is_threshold) * mask if job.has_proximal_policy else None,
    )
    torch.testing.assert_close(got, expected.float(), rtol=1e-5, atol=1e-5)
    assert len(got[0, : rows[0].tokens].unique()) > 1, "each token has a baseline of its own"


def test_under_a_grammar_probabilities_are_those_of_the_tokens_it_allows() -> None:
    stage = Stage(bundled_model())
    params = [
        SamplingParams(max_tokens=24, temperature=0.8, seed=number, grammar=grammar)
        for number, grammar in enumerate((PERSON, TOOL_CALL, None, PERSON))
    ]
    followed = stage.grammars.follow(make_constrained_batch(stage.play([params])))
    rows = build_rows(followed.batch, followed.masks)
    job = TrainJob(algorithm="optimal_token_baseline").resolve()
    got = measured(stage.module, rows, job)
    logprobs, squares = plain_statistics(stage.module, rows)
    torch.testing.assert_close(got.logprobs_EL, logprobs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got.squared_EL, squares, rtol=1e-4, atol=1e-5)
    trained = torch.arange(squares.shape[1])[None] < torch.tensor([row.tokens for row in rows])[:, None]
    assert (squares[trained] == 1).any(), "a place that allows one token only"


@pytest.mark.parametrize("algorithm", ESTIMATORS)
def test_merging_and_microbatches_change_nothing(make_model: MakeModel, make_batch: MakeBatch, algorithm: str) -> None:
    job, model = TrainJob.model_validate({"algorithm": algorithm, **TIS}), make_model()
    loss, gradient = learner_gradient(model, job, make_batch())
    for variant, batch in (
        (job, make_batch(merged=False)),
        (job.model_copy(update={"ppo_max_token_len": 64}), make_batch()),
    ):
        other, found = learner_gradient(model, variant, batch)
        assert other == pytest.approx(loss, rel=1e-5, abs=1e-6)
        assert relative_error(found, gradient) < 1e-5


def test_a_certain_token_has_no_negative_weight_by_rounding() -> None:
    certain = PolicyStatistics(torch.tensor([[0.0, -1e-7]]), torch.tensor([[1 - 1e-6, 1 - 1e-6]]))
    found = certain.arguments()
    assert (1 - 2 * found["old_log_probs"].exp() + found["sum_pi_squared"] >= 0).all()


@pytest.mark.parametrize("settings", [{}, TIS])
def test_a_step_is_repeated_bit_for_bit(make_model: MakeModel, make_batch: MakeBatch, settings: dict[str, Any]) -> None:
    job = TrainJob.model_validate(
        {"algorithm": "optimal_token_baseline", "mini_batch_num": 2, "ppo_epochs": 2, "lr": 1e-2, **settings}
    )
    models = [make_model() for _ in range(2)]
    for model in models:
        Learner(model, job).step(make_batch(noise=0.4))
    assert all(torch.equal(*pair) for pair in zip(*(model.parameters() for model in models), strict=True))
    assert not torch.equal(next(models[0].parameters()), next(make_model().parameters()))


def test_a_logprob_that_is_not_a_number_costs_its_group_only(make_model: MakeModel, make_batch: MakeBatch) -> None:
    batch, model = make_batch(((1, 0), (0, 1))), make_model()
    rows = build_rows(batch)
    policy = measured(model, rows, TrainJob(algorithm="optimal_token_baseline").resolve())
    logprobs = policy.logprobs_EL.clone()
    logprobs[0, 0] = torch.nan
    spoiled = replace(policy, logprobs_EL=logprobs)
    advantages = compute_advantages(rows, TrainJob(algorithm="optimal_token_baseline"), spoiled)
    assert torch.isfinite(advantages).all()
    assert not advantages[:2].any() and advantages[2:].any()
