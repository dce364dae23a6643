"""Rows: each sampled token in exactly one column, in turn order, however the episode was stored."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from late import Late
from tiny_models import MakeBatch

from swarm.errors import EngineFailure
from swarm.trainer.token_rows import Row, build_rows
from swarm.types import FinishedEpisode, Group, Sample, TrainBatch

torch, microbatches = Late("torch"), Late("swarm.backends.local.learning.microbatches")


def batch_of(*samples: Sample) -> TrainBatch:
    episode = FinishedEpisode("e", "t", "c", 1.0, None, samples, 0.0)
    return TrainBatch("b", 1, (Group("t", (episode,)),))


def test_columns_follow_the_order_of_turns_not_of_samples() -> None:
    late = Sample("e", (5, 6, 7), (False, True, True), (0.0, -0.3, -0.4), (-1, 2, 3), (-1, 1, 1), (1.0, 0.5, 0.5))
    early = Sample("e", (5, 8, 9), (False, False, True), (0.0, 0.0, -0.1), (-1, -1, 0), (-1, -1, 0), (1.0, 1.0, 2.0))
    (row,) = build_rows(batch_of(late, early))
    assert row.rollout_logprobs_L.tolist() == pytest.approx([-0.1, -0.3, -0.4])
    assert row.weight_versions_L.tolist() == [0, 2, 3]
    assert row.turn_indices_L.tolist() == [0, 1, 1]
    assert row.turns == 2
    micro = microbatches.collate([row], [0], torch.tensor([[1.0, 2.0, 3.0]]), torch.device("cpu"))
    assert sorted(micro.cells_N.tolist()) == micro.mask_RL.flatten().nonzero().flatten().tolist()
    by_column = micro.spread(micro.targets_N.float())
    assert by_column.tolist() == [[9.0, 6.0, 7.0]]
    assert micro.spread(micro.temperatures_N).tolist() == [[2.0, 0.5, 0.5]]


def test_the_last_trained_token_is_predicted_but_not_read_and_a_sample_that_trains_nothing_is_left_out() -> None:
    sample = Sample(
        "e", (5, 6, 7, 8), (False, True, True, False), (0.0, -1, -1, 0), (-1, 0, 0, -1), (-1, 0, 0, -1), (1.0,) * 4
    )
    prompt_only = Sample("e", (5, 6), (False, False), (0.0, 0.0), (-1, -1), (-1, -1), (1.0, 1.0))
    (row,) = build_rows(batch_of(prompt_only, sample))
    micro = microbatches.collate([row], [0], torch.zeros(1, 2), torch.device("cpu"))
    assert micro.input_ids_ST.tolist() == [[5, 6]]
    assert micro.targets_N.tolist() == [6, 7]
    assert micro.sources_N.tolist() == [0, 1]


def test_tokens_that_cannot_be_trained_are_refused() -> None:
    with pytest.raises(EngineFailure, match="no context"):
        build_rows(batch_of(Sample("e", (5,), (True,), (-1.0,), (0,), (0,), (1.0,))))
    with pytest.raises(EngineFailure, match="no sampled token"):
        build_rows(batch_of(Sample("e", (5,), (False,), (0.0,), (-1,), (-1,), (1.0,))))


@pytest.fixture(scope="module")
def unmerged_rows(make_batch: MakeBatch) -> list[Row]:
    return build_rows(make_batch(merged=False))


@settings(deadline=None)
@given(limit=st.integers(1, 200) | st.none(), chosen=st.sets(st.integers(0, 11)))
def test_every_chosen_row_is_in_exactly_one_microbatch_within_the_limit(
    unmerged_rows: list[Row], limit: int | None, chosen: set[int]
) -> None:
    rows = unmerged_rows
    plans = microbatches.plan_microbatches(rows, sorted(chosen), limit)
    assert sorted(number for plan in plans for number in plan) == sorted(chosen)
    for plan in plans:
        padded = sum(len(rows[number].samples) for number in plan) * max(rows[number].longest for number in plan)
        assert limit is None or padded <= limit or len(plan) == 1
    if limit is None and chosen:
        assert len(plans) == 1
