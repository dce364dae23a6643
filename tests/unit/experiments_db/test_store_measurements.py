import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store_samples import record_score

from experiments_db import (
    EpisodeSample,
    EpisodeSummary,
    Experiment,
    InvalidRecord,
    RecordNotFound,
    Run,
    Study,
)


def make_episode(run: Run, episode_id: str, step: int = 0, kind: str = "train") -> EpisodeSample:
    summary = EpisodeSummary(run.id, episode_id, kind, "train", step, "t1", 1.0, True, 0.5, step, 1.5)
    return EpisodeSample(
        summary=summary,
        messages=({"role": "user", "content": "umkehren: Öl"}, {"role": "assistant", "content": "lÖ"}),
        samples=({"token_ids": [1, 2], "loss_mask": [False, True], "logprobs": [0.0, -0.25]},),
    )


def test_metrics_come_back_by_name_and_step_and_the_last_value_of_a_step_stands(store, run: Run) -> None:
    store.record_metrics(run.id, {2: {"reward": 9.0}})
    store.record_metrics(run.id, {2: {"reward": 0.5, "kl": 0.01}, 1: {"reward": 0.25}})
    assert [(p.name, p.step, p.value) for p in store.list_metrics([run.id])] == [
        ("kl", 2, 0.01),
        ("reward", 1, 0.25),
        ("reward", 2, 0.5),
    ]
    assert store.metric_names([run.id]) == ["kl", "reward"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_point_that_is_not_finite_is_kept_without_a_value(store, run: Run, value: float) -> None:
    store.record_metrics(run.id, {1: {"loss": value}})
    assert [p.value for p in store.list_metrics([run.id])] == [None]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=20)
@given(value=st.floats(allow_nan=False, allow_infinity=False))
def test_any_finite_value_is_kept_to_the_last_bit(store, run: Run, value: float) -> None:
    store.record_metrics(run.id, {1: {"x": value}})
    assert [point.value for point in store.list_metrics([run.id])] == [value]


def test_many_points_are_stored_in_one_call_and_filtered_in_the_database(store, run: Run) -> None:
    store.record_metrics(run.id, {step: {f"m{i}": step + i for i in range(5)} for step in range(1000)})
    assert len(store.list_metrics([run.id])) == 5000
    assert [p.step for p in store.list_metrics([run.id], names=["m3"])] == list(range(1000))
    assert store.list_metrics([]) == store.list_metrics([run.id], names=[]) == []


def test_first_evaluation_of_a_phase_and_split_stands(store, run: Run) -> None:
    first = record_score(store, run)
    assert record_score(store, run, mean=1.0, successes=64) == first
    base = record_score(store, run, phase="base", mean=0.25, successes=16)
    assert store.list_evaluations(run_ids=[run.id]) == [first, base]
    assert store.find_evaluation(run.id, "final", "validation") == first
    assert store.find_evaluation(run.id, "final", "test") is None


def test_evaluations_are_filtered_by_study_phase_and_split(
    store, study: Study, experiment: Experiment, run: Run
) -> None:
    second = store.claim_run(experiment.id, 2, "key-2")
    elsewhere = store.create_study("elsewhere", planner="rules")
    wanted = record_score(store, run)
    record_score(store, second, phase="base")
    record_score(store, second, split="search")
    assert len(store.list_evaluations(study_id=study.id)) == 3
    assert store.list_evaluations(study_id=study.id, phase="final", split="validation") == [wanted]
    assert store.list_evaluations(study_id=elsewhere.id) == []
    assert store.list_evaluations(run_ids=[]) == []


def test_episode_is_kept_token_by_token(store, run: Run) -> None:
    episode = make_episode(run, "ep-1")
    store.record_episodes(run.id, [episode, make_episode(run, "ep-2", step=3, kind="eval")])
    assert store.get_episode(run.id, "ep-1") == episode
    assert [e.episode_id for e in store.list_episodes(run.id)] == ["ep-1", "ep-2"]
    assert [e.episode_id for e in store.list_episodes(run.id, kind="eval")] == ["ep-2"]
    assert [e.episode_id for e in store.list_episodes(run.id, step=0)] == ["ep-1"]
    with pytest.raises(RecordNotFound):
        store.get_episode(run.id, "ep-3")


def test_repeated_episode_is_left_as_stored(store, run: Run) -> None:
    episode = make_episode(run, "ep-1")
    changed = replace(episode, summary=replace(episode.summary, reward=9.0))
    store.record_episodes(run.id, [episode])
    store.record_episodes(run.id, [changed])
    assert store.get_episode(run.id, "ep-1") == episode


def test_bad_episode_stores_none_of_its_batch(store, experiment: Experiment, run: Run) -> None:
    episode = make_episode(run, "ep-1")
    other = store.claim_run(experiment.id, 2, "key-2")
    rewardless = replace(episode, summary=replace(episode.summary, episode_id="ep-2", reward=math.nan))
    with pytest.raises(InvalidRecord, match="reward"):
        store.record_episodes(run.id, [episode, rewardless])
    with pytest.raises(InvalidRecord, match="belongs to"):
        store.record_episodes(other.id, [episode])
    with pytest.raises(InvalidRecord, match="cannot be stored"):
        store.record_episodes(run.id, [episode, replace(episode, samples=({"logprobs": [math.nan]},))])
    assert store.list_episodes(run.id) == []


def test_long_curve_is_sampled_in_spans_of_equal_length(store, run: Run) -> None:
    values = {step: {"reward": float(step), "kl": math.nan if step == 7 else 0.5} for step in range(1, 101)}
    store.record_metrics(run.id, values)
    spans = store.sample_metrics([run.id], ["reward", "kl"], most=10)
    assert [span.name for span in spans] == ["kl"] * 10 + ["reward"] * 10
    reward = [(span.first_step, span.last_step, span.mean, span.low, span.high) for span in spans[10:]]
    assert reward[0] == (1, 10, 5.5, 1.0, 10.0)
    assert reward[-1] == (91, 100, 95.5, 91.0, 100.0)
    assert [span.missing for span in spans[:10]] == [1] + [0] * 9
    with pytest.raises(InvalidRecord, match="at least one"):
        store.sample_metrics([run.id], ["kl"], most=0)


def test_short_curve_is_sampled_as_it_is(store, run: Run) -> None:
    store.record_metrics(run.id, {step: {"loss": -float(step)} for step in (0, 10, 20, 25)})
    spans = store.sample_metrics([run.id], ["loss", "none"], most=100)
    assert [(span.first_step, span.last_step, span.mean) for span in spans] == [
        (step, step, -float(step)) for step in (0, 10, 20, 25)
    ]


def test_part_of_a_long_curve_is_sampled_in_finer_spans(store, run: Run) -> None:
    store.record_metrics(run.id, {step: {"reward": float(step)} for step in range(1, 101)})
    spans = store.sample_metrics([run.id], ["reward"], most=10, steps=(31, 50))
    assert [(span.first_step, span.last_step) for span in spans] == [(step, step + 1) for step in range(31, 51, 2)]
    assert store.sample_metrics([run.id], ["reward"], most=10, steps=(200, 300)) == []


def test_last_point_of_a_curve_is_found_for_many_runs(store, experiment: Experiment, run: Run) -> None:
    other = store.claim_run(experiment.id, 2, "key-2")
    silent = store.claim_run(experiment.id, 3, "key-3")
    store.record_metrics(run.id, {1: {"reward": 0.1}, 5: {"reward": 0.5}, 7: {"kl": 1.0}})
    store.record_metrics(other.id, {3: {"reward": 0.3}})
    last = store.latest_points([run.id, other.id, silent.id], "reward")
    assert {run_id: point.step for run_id, point in last.items()} == {run.id: 5, other.id: 3}


def test_summaries_of_evaluations_are_the_evaluations_without_details(store, study: Study, run: Run) -> None:
    full = record_score(store, run, details={"rewards": [1.0, 0.0]})
    record_score(store, run, phase="base")
    assert [item.phase for item in store.list_evaluation_summaries(study_id=study.id)] == ["final", "base"]
    (summary,) = store.list_evaluation_summaries(run_ids=[run.id], phase="final", split="validation")
    assert not hasattr(summary, "details")
    assert all(getattr(full, name) == getattr(summary, name) for name in summary.__dataclass_fields__)


def test_first_evaluation_with_a_detail_is_found(store, study: Study, experiment: Experiment, run: Run) -> None:
    other = store.claim_run(experiment.id, 2, "key-2")
    third = store.claim_run(experiment.id, 3, "key-3")
    record_score(store, run, details={"base_key": "a", "rewards": [1.0]})
    second = record_score(store, other, details={"base_key": "b"})
    record_score(store, third, details={"base_key": "b"})
    asked = {"phase": "final", "split": "validation", "weight_version": 30}
    assert store.find_detailed_evaluation(study.id, **asked, detail=("base_key", "b")) == second
    assert store.find_detailed_evaluation(study.id, **asked, detail=("base_key", "c")) is None
    assert store.find_detailed_evaluation(study.id, **(asked | {"weight_version": 1}), detail=("base_key", "b")) is None
