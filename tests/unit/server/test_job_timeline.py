"""The job of every step, from the job as given and the changes of its run."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.errors import BadRequest, JobInvalid
from swarm.job import TrainJob
from swarm.live_settings import LIVE, JobChange, JobTimeline, check_engine, earliest_step, with_settings

JOB = TrainJob(lr=1e-3, batch_size=4, num_repeat=2)
CHANGES = st.lists(
    st.tuples(
        st.integers(1, 30),
        st.dictionaries(
            st.sampled_from(["lr", "temperature", "batch_size", "total_steps"]), st.integers(1, 9), min_size=1
        ),
    ),
    max_size=6,
)


def timeline_of(changes: list[tuple[int, dict[str, Any]]], job: TrainJob = JOB) -> JobTimeline:
    return JobTimeline(
        job, [JobChange(number + 1, at_step, settings) for number, (at_step, settings) in enumerate(changes)]
    )


@given(CHANGES)
def test_a_step_has_of_each_setting_the_latest_value_by_step_and_then_by_revision(
    changes: list[tuple[int, dict[str, Any]]],
) -> None:
    timeline = timeline_of(changes)
    for step in range(0, 32):
        expected: dict[str, Any] = {}
        for at_step, settings in sorted(changes, key=lambda change: change[0]):
            if at_step <= step:
                expected |= settings
        job = timeline.at(step)
        assert {name: getattr(job, name) for name in expected} == expected
        unchanged = {"lr", "temperature", "batch_size", "total_steps"} - expected.keys()
        assert all(getattr(job, name) == getattr(JOB, name) for name in unchanged)


@given(CHANGES)
def test_the_settings_of_a_step_make_its_job_of_the_job_as_given(changes: list[tuple[int, dict[str, Any]]]) -> None:
    timeline = timeline_of(changes)
    for step in range(0, 32):
        assert with_settings(JOB.resolve(), timeline.settings_of(step)) == timeline.at(step)


@given(CHANGES, st.integers(0, 12))
def test_the_last_step_is_the_first_after_which_no_other_may_follow(
    changes: list[tuple[int, dict[str, Any]]], done: int
) -> None:
    timeline = timeline_of(changes)

    def is_over(step: int) -> bool:
        total = timeline.at(step + 1).total_steps
        return total is not None and step >= total

    expected = next((step for step in range(done, 60) if is_over(step)), None)
    assert timeline.last_step(done) == expected


def test_what_a_job_leaves_to_defaults_follows_what_is_changed() -> None:
    timeline = timeline_of([(2, {"clip_ratio": 0.1, "num_repeat": 1})])
    assert timeline.settings_of(2) == {
        "clip_ratio": 0.1, "clip_ratio_low": 0.1, "clip_ratio_high": 0.1, "num_repeat": 1, "min_group": 1
    }  # fmt: skip


def test_a_change_is_checked_together_with_those_that_hold_by_then() -> None:
    with pytest.raises(JobInvalid, match="min_group"):
        timeline_of([(5, {"min_group": 2}), (7, {"num_repeat": 1})])


def test_what_is_read_from_the_first_episode_on_waits_for_the_next_batch() -> None:
    for name, traits in LIVE.items():
        assert earliest_step({name: None}, 4) == (5 if traits.reader == "batch" else 4)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"temperature": 0.5, "batch_size": 8, "save_freq": 3, "total_steps": 9}, None),
        ({"lr": 1e-6}, "lr cannot change while engine verl runs"),
        ({"kl_loss_coef": 0.1}, "kl_loss_coef cannot change"),
        ({"max_staleness": 1}, "rollout_is cannot change"),
    ],
)
def test_engine_verl_takes_what_the_server_carries_out_and_refuses_what_its_processes_are_built_with(
    change: dict[str, Any], says: str | None
) -> None:
    timeline = timeline_of([(2, change)], JOB.model_copy(update={"engine": "verl"}))
    if says is None:
        check_engine(timeline)
    else:
        with pytest.raises(BadRequest, match=says):
            check_engine(timeline)


def test_engine_verl_keeps_the_steps_of_a_rate_that_goes_down() -> None:
    job = JOB.model_copy(update={"engine": "verl", "lr_scheduler_type": "cosine", "total_steps": 5})
    with pytest.raises(BadRequest, match="total_steps cannot change while engine verl runs"):
        check_engine(timeline_of([(2, {"total_steps": 9})], job))
