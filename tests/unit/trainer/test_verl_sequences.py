"""A batch becomes verl's sequences: nothing is trained twice, nothing is lost uncounted, and advantages go along."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from changed_batches import with_episodes, with_samples
from late import Late
from tiny_models import MakeBatch

from swarm.job import TrainJob
from swarm.trainer.token_rows import Row, build_rows
from swarm.types import ConstrainedTurn, Grammar, GrammarKind, Sample, TrainBatch

torch, driver = Late("torch"), Late("swarm.backends.verl.driver.sequences")
advantages, description = Late("swarm.trainer.advantages"), Late("swarm.trainer.description")


def sequences_of(
    batch: TrainBatch, *, per_token_temperature: bool = True, loss_agg_mode: str = "token-mean"
) -> tuple[list[Row], Any]:
    plain, constrained = driver.without_grammars(batch)
    rows = build_rows(plain)
    advantages_EL = advantages.compute_advantages(rows, TrainJob())
    built = driver.build_sequences(
        rows,
        advantages_EL,
        constrained,
        loss_agg_mode=loss_agg_mode,
        per_token_temperature=per_token_temperature,
    )
    return rows, built


@pytest.mark.parametrize("merged", [True, False])
def test_every_sampled_token_is_trained_once_with_what_was_recorded(make_batch: MakeBatch, merged: bool) -> None:
    batch = make_batch(merged=merged)
    rows, built = sequences_of(batch)
    found: dict[int, list[tuple[int, float]]] = {}
    for sequence in built.trained:
        fields = sequence.fields
        kept = fields["response_mask"].bool()
        assert torch.equal(torch.cat([fields["prompts"], fields["responses"]]), fields["input_ids"])
        assert torch.equal(fields["position_ids"], torch.arange(len(fields["input_ids"])))
        pairs = zip(fields["responses"][kept].tolist(), fields["rollout_log_probs"][kept].tolist(), strict=True)
        found.setdefault(sequence.episode, []).extend(pairs)
        assert not fields["rollout_log_probs"][~kept].any()
        assert not fields["advantages"][~kept].any()
    for number, episode in enumerate(batch.episodes):
        expected = [
            (token, np.float32(logprob))
            for sample in episode.samples
            for token, logprob, trained in zip(sample.token_ids_T, sample.logprobs_T, sample.loss_mask_T, strict=True)
            if trained
        ]
        assert sorted(found[number]) == sorted(expected)
    assert sum(sequence.tokens for sequence in built.trained) == sum(row.tokens for row in rows)


def test_advantages_of_an_episode_are_shared_by_its_sequences(make_batch: MakeBatch) -> None:
    batch = make_batch()
    rows, built = sequences_of(batch)
    expected = description.mean_advantages(rows, advantages.compute_advantages(rows, TrainJob()))
    for sequence in built.trained:
        kept = sequence.fields["response_mask"].bool()
        own = sequence.fields["advantages"][kept].mean().item()
        assert own == pytest.approx(expected[rows[sequence.episode].episode_id], abs=1e-6)
        assert sequence.has_signal == (own != 0)


def test_rows_weigh_as_much_as_their_share_of_the_episode(make_batch: MakeBatch) -> None:
    rows, built = sequences_of(make_batch(), loss_agg_mode="seq-mean-token-mean")
    weights = [0.0] * len(rows)
    for sequence in built.trained:
        weight = sequence.fields["row_weight"].item()
        assert weight == pytest.approx(sequence.tokens / rows[sequence.episode].tokens)
        weights[sequence.episode] += weight
    assert weights == pytest.approx([1.0] * len(rows))
    assert all(each.fields["row_weight"] == 1 for each in sequences_of(make_batch())[1].trained)


def test_constrained_turns_are_context_and_counted(make_batch: MakeBatch) -> None:
    grammar = Grammar(GrammarKind.REGEX, "[a-z]*")

    def constrain_the_first(sample: Sample) -> Sample:
        turns = (ConstrainedTurn(0, grammar),) if 0 in sample.turn_indices_T else ()
        return replace(sample, constrained_turns=turns)

    batch = with_samples(make_batch(), constrain_the_first)
    rows, built = sequences_of(batch)
    constrained = sum(int((row.turn_indices_L == 0).sum()) for row in rows)
    assert constrained
    assert built.metrics["grammar/tokens_left_out"] == constrained
    assert built.metrics["grammar/turns_left_out"] == len(rows)
    assert sum(sequence.tokens for sequence in built.trained) == sum(row.tokens for row in rows) - constrained


def test_one_temperature_is_said_once(make_batch: MakeBatch) -> None:
    _rows, built = sequences_of(make_batch(temperature=0.6))
    assert built.temperature == pytest.approx(0.6)
    assert "token_temperatures" not in built.trained[0].fields


def test_mixed_temperatures_are_said_by_each_token_or_the_rarer_are_context(make_batch: MakeBatch) -> None:
    def heat_the_last(sample: Sample) -> Sample:
        last = max(sample.turn_indices_T)
        heats = tuple(0.5 if turn == last else 1.0 for turn in sample.turn_indices_T)
        return replace(sample, temperatures_T=heats)

    batch = with_samples(make_batch(), heat_the_last)
    rows, built = sequences_of(batch)
    assert built.temperature == 1.0
    for sequence in built.trained:
        heats = sequence.fields["token_temperatures"]
        assert set(heats.tolist()) <= {0.5, 1.0}
        first = len(sequence.fields["prompts"])
        last_trained = int(sequence.fields["response_mask"].nonzero().max()) + first
        assert heats[last_trained - 1] == 0.5, "said where the token is predicted, one place before it stands"
    _rows, single = sequences_of(batch, per_token_temperature=False)
    left_out = int(single.metrics["rollout/tokens_left_out_temperature"])
    every = sum(row.tokens for row in rows)
    assert 0 < left_out < every
    assert sum(sequence.tokens for sequence in single.trained) == every - left_out


def test_padding_has_the_same_fields_and_trains_nothing(make_batch: MakeBatch) -> None:
    fields = sequences_of(make_batch())[1].trained[0].fields
    padding = driver.padding_fields(fields)
    assert padding.keys() == fields.keys()
    assert {name: value.dtype for name, value in padding.items()} == {name: v.dtype for name, v in fields.items()}
    assert len(padding["prompts"]) == len(padding["responses"]) == 1
    assert not any(padding[name].any() for name in ("response_mask", "loss_mask", "advantages", "row_weight"))


def test_a_critic_is_told_each_turns_reward_at_its_end(make_batch: MakeBatch) -> None:
    batch = with_episodes(
        make_batch(((1.0,), (0.5,))), lambda _number, each: replace(each, turn_rewards=tuple(0.25 for _ in range(9)))
    )
    rows, built = sequences_of(batch)
    of_samples = [(row, sample) for row in rows for sample in row.samples]
    for sequence, (row, sample) in zip(built.trained, of_samples, strict=True):
        given = sequence.fields["rm_scores"][sequence.fields["response_mask"].bool()]
        turns = row.turn_indices_L[sample.columns_K]
        ends = [place for place in range(len(turns)) if place + 1 == len(turns) or turns[place + 1] != turns[place]]
        assert given.nonzero()[:, 0].tolist() == ends
        assert given[ends[:-1]].tolist() == pytest.approx([0.25] * (len(ends) - 1))
        assert given[ends[-1]].item() == pytest.approx(row.returns(9)[turns[-1]])
