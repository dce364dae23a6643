"""What `make bench` measures at each commit: the steps of a real server, charged to who spent their processor time."""

from __future__ import annotations

import pytest

from bench.versions.processor_time import FakeStep, LocalStep, StepCost


@pytest.mark.parametrize("benchmark", [FakeStep, pytest.param(LocalStep, marks=pytest.mark.slow)])
def test_a_step_of_a_real_server_costs_each_process_something(benchmark: type[FakeStep | LocalStep]) -> None:
    cost = benchmark().setup_cache()
    assert 0 < cost.client < 60 and 0 < cost.server < 60
    assert (cost.sampler > 0, cost.learner > 0) == (benchmark is LocalStep, benchmark is LocalStep)


@pytest.mark.parametrize("part", ["sampler", "learner", "server"])
def test_the_clock_of_a_benchmark_moves_by_what_its_process_spent(part: str) -> None:
    benchmark, cost = LocalStep(), StepCost(sampler=1.0, learner=2.0, server=3.0, client=4.0)
    before = benchmark.timer()
    getattr(benchmark, f"time_{part}")(cost)
    assert benchmark.timer() - before == getattr(cost, part)
