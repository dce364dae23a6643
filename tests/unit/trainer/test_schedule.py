"""The learning rate of every step, held against the schedules of transformers, torch and verl."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from late import Late

from swarm.job import TrainJob, build_job
from swarm.trainer.schedule import learning_rate

torch, transformers, verl = Late("torch"), Late("transformers"), Late("verl.utils.torch_functional")

PEAK = 3e-3
PLANS = st.integers(1, 60).flatmap(lambda total: st.tuples(st.just(total), st.integers(0, total - 1)))
"""Total steps and the warm-up among them."""


def rates(total: int, warmup: int, **job: object) -> list[float]:
    """Our rates of the steps 1 to `total`."""
    resolved = build_job({"lr": PEAK, "lr_warmup_steps": warmup, "total_steps": total, **job}).resolve()
    return [learning_rate(resolved, step) for step in range(1, total + 1)]


def rates_of(make: Callable[[torch.optim.Optimizer], Any], total: int) -> list[float]:
    """The rates that a scheduler of torch gives to the steps 1 to `total` + 1."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    schedule = make(optimizer)
    found: list[float] = []
    with warnings.catch_warnings():
        # Nothing is trained here, so no step of the optimizer comes before one of its schedule.
        warnings.simplefilter("ignore", UserWarning)
        for _ in range(total + 1):
            found.append(schedule.get_last_lr()[0])
            schedule.step()
    return found


@given(PLANS)
def test_linear_and_cosine_are_those_of_transformers_but_for_a_warm_up_without_the_rate_0(
    plan: tuple[int, int],
) -> None:
    total, warmup = plan
    for name, theirs in (
        ("linear", transformers.get_linear_schedule_with_warmup),
        ("cosine", transformers.get_cosine_schedule_with_warmup),
    ):
        expected = rates_of(lambda optimizer, theirs=theirs: theirs(optimizer, warmup, total), total)
        own = rates(total, warmup, lr_scheduler_type=name)
        assert own[:warmup] == pytest.approx(expected[1 : warmup + 1])
        assert own[warmup:] == pytest.approx(expected[warmup:total])


@given(PLANS, st.floats(0, 1))
def test_the_floor_is_that_of_verl_and_of_torch(plan: tuple[int, int], floor: float) -> None:
    total, warmup = plan
    cosine = rates_of(
        lambda optimizer: verl.get_cosine_schedule_with_warmup(optimizer, warmup, total, min_lr_ratio=floor), total
    )
    own = rates(total, warmup, lr_scheduler_type="cosine", min_lr_ratio=floor)
    assert own[warmup:] == pytest.approx(cosine[warmup:total])
    straight = rates_of(
        lambda optimizer: torch.optim.lr_scheduler.LinearLR(
            optimizer, start_factor=1.0, end_factor=floor, total_iters=total - warmup
        ),
        total,
    )
    own = rates(total, warmup, lr_scheduler_type="linear", min_lr_ratio=floor)
    assert own[warmup:] == pytest.approx(straight[: total - warmup])


def test_a_constant_rate_rises_to_its_peak_and_stays() -> None:
    assert rates(6, 4) == pytest.approx([PEAK / 4, PEAK / 2, 0.75 * PEAK, PEAK, PEAK, PEAK])


def test_a_job_whose_rate_goes_down_has_no_longer_version() -> None:
    job = TrainJob(lr_scheduler_type="linear", total_steps=5)
    assert not job.model_copy(update={"total_steps": 9}).extends(job)
    constant = job.model_copy(update={"lr_scheduler_type": "constant"})
    assert constant.model_copy(update={"total_steps": 9}).extends(constant)
