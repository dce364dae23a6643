"""Advantages: verl's numbers for groups that can be compared, zero for those that cannot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from changed_batches import with_greedy
from constrained_rollouts import PERSON, TOOL_CALL, Stage, bundled_model
from constrained_rollouts import make_batch as make_constrained_batch
from hypothesis import given, settings
from hypothesis import strategies as st
from late import Late
from plain_rows import BY_OUTCOME, make_row, mask_of, policy_of, verl_advantages
from tiny_models import MakeBatch, MakeModel

from swarm.job import TrainJob
from swarm.trainer.token_rows import Row, build_rows
from swarm.types import SamplingParams

torch, plain, advantages = Late("torch"), Late("plain_gradients"), Late("swarm.trainer.advantages")
core_algos, functional = Late("verl.trainer.ppo.core_algos"), Late("verl.utils.torch_functional")
configs, losses = Late("verl.trainer.config"), Late("swarm.backends.local.learning.losses")
optimizing, updating = Late("swarm.backends.local.learning.optimizer"), Late("swarm.backends.local.learning.updater")

GROUP_RELATIVE = [name for name in BY_OUTCOME if name != "reinforce_plus_plus"]
KEYS = ["right", "short"]
TIS: dict[str, Any] = {"rollout_is": "token", "rollout_is_threshold": 1.2}


def job_of(algorithm: str, **given: Any) -> TrainJob:
    # A job that states everything may have settings that its algorithm does not read.
    return TrainJob.model_validate({**TrainJob().model_dump(), "algorithm": algorithm, **given})


def make_rows(groups: Sequence[Sequence[float]], lengths: Sequence[int] = (3, 1, 4, 2)) -> list[Row]:
    flat = [(number, reward) for number, rewards in enumerate(groups) for reward in rewards]
    return [make_row(group, reward, [lengths[place % len(lengths)]]) for place, (group, reward) in enumerate(flat)]


def advantages_of(rows: list[Row], job: TrainJob) -> torch.Tensor:
    return advantages.compute_advantages(rows, job, policy_of(rows))


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("algorithm", BY_OUTCOME)
def test_comparable_groups_get_exactly_the_advantages_of_verl(algorithm: str, normalise: bool) -> None:
    rows = make_rows([[1, 0, 0.5], [0, 1], [0.25, 0.75, 0, 1]])
    job = job_of(algorithm, norm_adv_by_std_in_grpo=normalise, gamma=0.9)
    got = advantages_of(rows, job)
    assert torch.equal(got, verl_advantages(rows, [row.reward for row in rows], job))
    assert got.abs().sum() > 0


def test_grpo_is_the_reward_standardised_within_its_group_and_reinforce_plus_plus_needs_no_group() -> None:
    grpo = advantages_of(make_rows([[1, 0, 0.5]]), job_of("grpo"))
    assert grpo[:, 0].tolist() == pytest.approx([1.0, -1.0, 0.0], abs=1e-5)
    of_batch = advantages_of(make_rows([[1.0], [0.0], [0.0]], lengths=(2,)), job_of("reinforce_plus_plus"))
    assert of_batch[0, 0] > 0 > of_batch[1, 0]


@pytest.mark.parametrize("algorithm", GROUP_RELATIVE)
def test_lone_survivors_and_equal_rewards_get_exactly_zero_and_do_not_disturb_the_others(algorithm: str) -> None:
    pairs, job = [[1.0, 0.0], [0.0, 0.5]], job_of(algorithm)
    alone = advantages_of(make_rows([*pairs, [7.0]]), job)
    assert not alone[-1].any()
    assert torch.equal(alone[:-1, :3], advantages_of(make_rows(pairs), job)[:, :3])
    equal = advantages_of(make_rows([[0.1, 0.1, 0.1], [0.1 + 0.2, 0.3], [1.0, 0.0]]), job)
    assert not equal[:5].any() and equal[5:].any()
    assert not advantages_of(make_rows([[1.0], [0.0], [3.0]]), job).any()


@pytest.mark.parametrize("algorithm", BY_OUTCOME)
def test_rewards_at_the_limit_of_float_never_give_infinite_advantages(algorithm: str) -> None:
    assert torch.isfinite(advantages_of(make_rows([[1e300, 0.0], [1.0, 0.0]]), job_of(algorithm))).all()


@pytest.mark.parametrize("algorithm", BY_OUTCOME)
def test_each_turn_gets_exactly_the_advantages_of_verl_for_its_returns(algorithm: str) -> None:
    rows = [
        make_row(0, 1.0, [2, 1, 1], [0.5, 0.5, -0.5]),
        make_row(0, 0.0, [1, 2], [0.0, 0.25]),
        make_row(1, 0.5, [3, 1], None),
        make_row(1, 0.25, [1, 1, 2], [1.0, 0.0, 0.5]),
        make_row(1, 0.75, [2], [0.5]),
    ]
    returns_TE = [[1.5, 0.25, 0.5, 1.75, 1.25], [1.0, 0.25, 0.5, 0.75, 0.75], [0.5, 0.0, 0.5, 0.75, 0.75]]
    job = job_of(algorithm, gamma=0.9)
    got = advantages_of(rows, job)
    for turn, returns in enumerate(returns_TE):
        expected = verl_advantages(rows, returns, job)
        for line, row in enumerate(rows):
            columns = np.flatnonzero(row.turn_indices_L == turn)
            assert torch.equal(got[line, columns], expected[line, columns])
    assert len(got.unique()) > 3


EPISODES = st.tuples(st.sampled_from([-1.0, 0.0, 0.1, 0.25, 1.0]), st.lists(st.integers(1, 3), min_size=1, max_size=4))
GROUPS = st.lists(st.lists(EPISODES, min_size=1, max_size=4), min_size=1, max_size=4)


@settings(deadline=None)
@given(groups=GROUPS, algorithm=st.sampled_from(BY_OUTCOME), seed=st.integers(0, 99))
def test_advantages_are_finite_and_zero_past_the_end_of_a_row_and_turn_rewards_of_zero_change_no_bit(
    groups: list[list[tuple[float, list[int]]]], algorithm: str, seed: int
) -> None:
    random, job = np.random.default_rng(seed), job_of(algorithm, gamma=0.9)
    flat = [(number, *episode) for number, group in enumerate(groups) for episode in group]
    rewarded, zeros = (
        [
            make_row(group, reward, lengths, scale * random.integers(-2, 3, len(lengths)))
            for group, reward, lengths in flat
        ]
        for scale in (1.0, 0.0)
    )
    some = [row if random.random() < 0.5 else replace(row, turn_rewards=None) for row in zeros]
    rows = [replace(row, turn_rewards=None) for row in zeros]
    expected = advantages_of(rows, job)
    assert torch.equal(advantages_of(some, job), expected)
    for found in (expected, advantages_of(rewarded, job)):
        assert torch.isfinite(found).all() and found.shape == mask_of(rows).shape
        assert not (found * ~mask_of(rows)).any()
    if algorithm in GROUP_RELATIVE:
        for row, line in zip(rows, expected, strict=True):
            assert len({reward for reward, _ in groups[row.group]}) > 1 or not line.any()


@pytest.mark.parametrize(
    ("rows", "given", "expected"),
    [
        # From their first turn on all episodes return the same: it teaches nothing.
        (
            [(0.5, [2, 1], [-0.5, 0.5]), (0.0, [1, 2], [0.5, 0.0])],
            {},
            [[0.0, 0.0, 0.7071], [0.0, -0.7071, -0.7071]],
        ),
        # Rewards go by the index of the turn, also after an aborted one.
        (
            [(0.0, [1, 0, 2], [0.0, 5.0, 1.0]), (0.0, [1], None)],
            {"norm_adv_by_std_in_grpo": False},
            [[3.0, 0.5, 0.5], [-3.0, 0.0, 0.0]],
        ),
    ],
    ids=["equal returns", "aborted turn"],
)
def test_turns_are_compared_by_their_returns(
    rows: list[tuple[float, list[int], Any]], given: dict[str, Any], expected: list[list[float]]
) -> None:
    found = advantages.compute_advantages([make_row(0, *row) for row in rows], job_of("grpo", **given))
    torch.testing.assert_close(found, torch.tensor(expected), atol=1e-4, rtol=0)


def test_turn_rewards_stand_at_the_ends_of_their_turns() -> None:
    row = make_row(0, 1.0, [2, 1, 3], [0.5, 1.5, 2.5])
    assert row.token_rewards().tolist() == [0.0, 0.5, 1.5, 0.0, 0.0, 3.5]


def make_named_rows(groups: list[list[tuple[float, float]]]) -> list[Row]:
    rows = make_rows([[0.0] * len(group) for group in groups])
    named = [each for group in groups for each in group]
    return [
        replace(row, rewards={"right": right, "short": short, "unread": float(place)})
        for place, (row, (right, short)) in enumerate(zip(rows, named, strict=True))
    ]


def gdpo(groups: list[list[tuple[float, float]]], **given: Any) -> torch.Tensor:
    job = job_of("gdpo", gdpo_reward_keys=KEYS, **given)
    return advantages.compute_advantages(make_named_rows(groups), job)


@pytest.mark.parametrize("weights", [None, [2.0, -0.5]])
@pytest.mark.parametrize("normalise", [True, False])
def test_gdpo_has_the_advantages_of_verls_function(normalise: bool, weights: list[float] | None) -> None:
    groups = [[(1, 0.2), (0, 0.4), (1, 0)], [(0, 1), (1, 0)]]
    rows, given = make_named_rows(groups), {"norm_adv_by_std_in_grpo": normalise, "gdpo_reward_weights": weights}
    prompts = torch.ones(5, 2)
    expected = verl_advantages(
        rows,
        [0.0] * 5,
        job_of("gdpo", gdpo_reward_keys=KEYS, **given),
        non_tensor_batch={key: np.array([(row.rewards or {})[key] for row in rows]) for key in KEYS},
        batch={"prompts": prompts, "attention_mask": torch.cat([prompts, mask_of(rows)], 1).long()},
    )
    assert torch.equal(gdpo(groups, **given), expected)
    assert expected.abs().sum() > 0


PAIRS = st.tuples(*[st.sampled_from([-1.0, 0.0, 0.1, 0.3, 0.1 + 0.2])] * 2)


@settings(deadline=None)
@given(groups=st.lists(st.lists(PAIRS, min_size=1, max_size=4), min_size=1, max_size=4))
def test_only_groups_that_differ_in_a_named_reward_teach(groups: list[list[tuple[float, float]]]) -> None:
    rows, found = make_named_rows(groups), gdpo(groups)
    assert torch.isfinite(found).all() and not (found * ~mask_of(rows)).any()
    for row, line in zip(rows, found, strict=True):
        if len({(np.float32(right), np.float32(short)) for right, short in groups[row.group]}) == 1:
            assert not line.any()


def test_a_named_reward_in_which_a_group_is_equal_says_nothing_whatever_the_rounding() -> None:
    varied = [[(1.0, 0.0), (0.0, 0.0)], [(0.0, 0.0), (1.0, 0.0)]]
    assert torch.equal(gdpo(varied), gdpo([[(right, 0.1) for right, _ in group] for group in varied]))


REWARDS = st.sampled_from([-1.0, 0.0, 0.1, 0.25, 1.0])
TURNS = st.none() | st.tuples(REWARDS, REWARDS)


@settings(deadline=None)
@given(groups=st.lists(st.tuples(REWARDS, st.lists(st.tuples(REWARDS, TURNS), min_size=1, max_size=4)), min_size=1))
def test_remax_has_the_advantages_of_verls_function(
    groups: list[tuple[float, list[tuple[float, tuple[float, float] | None]]]],
) -> None:
    rows = [
        make_row(number, reward, [2, 2], turns, baseline=greedy)
        for number, (greedy, members) in enumerate(groups)
        for reward, turns in members
    ]
    earned = torch.zeros(len(rows), 4)
    for line, row in enumerate(rows):
        first, second = row.turn_rewards or (0.0, 0.0)
        earned[line, 1], earned[line, 3] = first, second + row.reward
    expected, _ = core_algos.get_adv_estimator_fn("remax")(
        token_level_rewards=earned,
        reward_baselines=torch.tensor([row.baseline for row in rows]),
        response_mask=torch.ones(len(rows), 4),
        config=configs.AlgoConfig(adv_estimator="remax"),
    )
    found = advantages.compute_advantages(rows, job_of("remax"))
    assert torch.allclose(found, expected, atol=1e-5)
    equal = [row for row in rows if row.turn_rewards is None and row.reward == row.baseline]
    assert not equal or not advantages.compute_advantages(equal, job_of("remax")).any()


def test_the_greedy_episode_of_a_group_is_the_baseline_of_its_rows_with_all_it_earned(make_batch: MakeBatch) -> None:
    batch = with_greedy(make_batch(((1, 0, 0.5), (0, 0.25))))
    first = batch.groups[0]
    assert first.greedy is not None
    rewarded = replace(first, greedy=replace(first.greedy, turn_rewards=(0.25, -1.0)))
    rows = build_rows(replace(batch, groups=(rewarded, *batch.groups[1:])))
    assert [(row.episode_id, row.baseline) for row in rows] == [("e0-0", -0.25), ("e0-1", -0.25), ("e1-0", 0.25)]
    assert [episode.episode_id for episode in batch.members] == ["e0-0", "e0-1", "e0-2", "e1-0", "e1-1"]


OPTIMAL = ["optimal_token_baseline", "tir_optimal_token_baseline"]


def measured(module: torch.nn.Module, rows: list[Row], job: TrainJob) -> Any:
    optimizer = optimizing.PolicyOptimizer(module, job)
    updater = updating.MiniBatchUpdater(updating.TokenScorer(module), None, optimizer, job, torch.device("cpu"))
    return updater.measure_policy(rows, losses.RolloutCorrection(rows, job) if job.has_proximal_policy else None)


def plain_statistics(module: torch.nn.Module, rows: list[Row]) -> tuple[torch.Tensor, torch.Tensor]:
    """Logprob and squares of every trained token, one sample at a time; a masked token has probability 0."""
    logprobs, squares = torch.zeros(mask_of(rows).shape), torch.zeros(mask_of(rows).shape)
    for line, sample in ((line, sample) for line, row in enumerate(rows) for sample in row.samples):
        ids = torch.from_numpy(sample.token_ids_T)
        logits_TV = module(input_ids=ids[None]).logits[0].detach()
        for number, (position, column) in enumerate(zip(sample.positions_K, sample.columns_K, strict=True)):
            logits_V = logits_TV[position - 1] / float(sample.temperatures_K[number])
            if sample.masks_K and (mask := sample.masks_K[number]) is not None:
                bits = np.unpackbits(np.frombuffer(mask, dtype=np.uint8), bitorder="little")[: len(logits_V)]
                logits_V = logits_V.masked_fill(torch.from_numpy(bits == 0), -torch.inf)
            logprobs[line, column] = torch.log_softmax(logits_V, -1)[ids[position]]
            squares[line, column] = functional.calculate_sum_pi_squared_from_logits(logits_V)
    return logprobs, squares


@pytest.mark.parametrize("given", [{}, TIS, {"rollout_is": "sequence"}, {"ppo_max_token_len": 64}], ids=str)
@pytest.mark.parametrize("algorithm", OPTIMAL)
def test_optimal_baselines_are_those_of_verls_function_on_the_same_batch(
    make_model: MakeModel, make_batch: MakeBatch, algorithm: str, given: dict[str, Any]
) -> None:
    job = job_of(algorithm, **given).resolve()
    batch = make_batch(((1, 0, 0.5), (0, 1), (0.25, 0, 0, 1)), temperature=0.7)
    model, rows = plain.nudged(make_model()), build_rows(batch)
    got = advantages.compute_advantages(rows, job, measured(model, rows, job))
    logprobs, squares = plain_statistics(model, rows)
    mask = mask_of(rows)
    recorded, rewards = torch.zeros_like(logprobs), torch.zeros_like(logprobs)
    for line, row in enumerate(rows):
        recorded[line, : row.tokens] = torch.from_numpy(row.rollout_logprobs_L)
        rewards[line, row.tokens - 1] = row.reward
    weights = plain.plain_weights(logprobs, recorded, job) * mask
    expected, _ = core_algos.get_adv_estimator_fn(algorithm)(
        token_level_rewards=rewards,
        response_mask=mask.float(),
        index=np.array([row.group for row in rows]),
        old_log_probs=logprobs,
        sum_pi_squared=squares,
        rollout_is_weights=weights if job.has_proximal_policy else None,
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
    got = measured(stage.module, rows, job_of("optimal_token_baseline").resolve())
    logprobs, squares = plain_statistics(stage.module, rows)
    torch.testing.assert_close(got.logprobs_EL, logprobs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got.squared_EL, squares, rtol=1e-4, atol=1e-5)
    assert (squares[mask_of(rows)] == 1).any(), "a place that allows one token only"


@pytest.mark.parametrize("algorithm", OPTIMAL)
def test_merging_and_microbatches_do_not_change_the_gradient_under_an_optimal_baseline(
    make_model: MakeModel, make_batch: MakeBatch, algorithm: str
) -> None:
    job, model = job_of(algorithm, **TIS), make_model()
    loss, gradient = plain.learner_gradient(model, job, make_batch())
    small = job.model_copy(update={"ppo_max_token_len": 64})
    for variant, batch in ((job, make_batch(merged=False)), (small, make_batch())):
        other, found = plain.learner_gradient(model, variant, batch)
        assert other == pytest.approx(loss, rel=1e-5, abs=1e-6)
        assert plain.relative_error(found, gradient) < 1e-5


def test_rounding_gives_no_negative_weight_and_a_logprob_that_is_not_a_number_costs_its_group_only(
    make_batch: MakeBatch,
) -> None:
    certain = advantages.PolicyStatistics(
        torch.tensor([[0.0, -1e-7]]), torch.tensor([[1 - 1e-6, 1 - 1e-6]])
    ).arguments()
    assert (1 - 2 * certain["old_log_probs"].exp() + certain["sum_pi_squared"] >= 0).all()
    rows = build_rows(make_batch(((1, 0), (0, 1))))
    policy = policy_of(rows)
    policy.logprobs_EL[0, 0] = math.nan
    found = advantages.compute_advantages(rows, job_of("optimal_token_baseline"), policy)
    assert torch.isfinite(found).all()
    assert not found[:2].any() and found[2:].any()
