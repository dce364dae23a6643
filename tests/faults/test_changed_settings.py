"""Settings that change at named steps, and kill -9 afterwards: every step has the weights of an undisturbed run."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.changed_run import BATCH_SIZE, JOB, LR, TEMPERATURE, ChangedRun, Plan, moments
from server_processes import server_processes


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_with_changed_settings_that_is_killed_has_the_weights_of_an_undisturbed_one(tmp_path: Path) -> None:
    check(tmp_path, Plan(steps=4, changed_at=2, size_changed_at=3), moments(seed=3, number=2, longest_s=2.0))


@pytest.mark.faults
@pytest.mark.timeout(7200)
def test_twenty_kills_at_random_moments_change_no_bit_of_any_step(tmp_path: Path) -> None:
    check(tmp_path, Plan(steps=40, changed_at=5, size_changed_at=9), moments(seed=1, number=20, longest_s=12.0), 0.4)


def check(home: Path, plan: Plan, kills: list[float], pause_s: float = 0.0) -> None:
    with server_processes(home) as make:
        undisturbed = ChangedRun(make(), plan, save_freq=1)
        undisturbed.play()
        expected = undisturbed.kept_weights()
        batches = undisturbed.batches()
        undisturbed.server.close()
        killed = ChangedRun(make(), plan, pause_s=pause_s)
        killed.play(kills)
        assert killed.kills == len(kills), "the run was over before its server had been killed so often"
        assert sorted(expected) == list(range(1, plan.steps + 1))
        assert [batch["settings"] for batch in killed.batches()] == [batch["settings"] for batch in batches]
        replayed = killed.replayed_weights()
    for batch in batches:
        step, size = batch["step"], BATCH_SIZE if batch["step"] >= plan.size_changed_at else JOB.batch_size
        assert batch["metrics"]["batch/groups"] == size
        assert batch["settings"].get("lr", JOB.lr) == (LR if step >= plan.changed_at else JOB.lr)
        assert batch["settings"].get("temperature", 1.0) == (TEMPERATURE if step >= plan.changed_at else 1.0)
        assert replayed[step] == expected[step], f"the weights of step {step} are others"
    # A step whose groups all have equal rewards moves nothing, and leaves the weights of the step before.
    moved = {batch["step"] for batch in batches if batch["metrics"]["actor/updates"]}
    assert {step for step in range(2, plan.steps + 1) if expected[step] != expected[step - 1]} == moved - {1}
    assert len(moved) > plan.steps / 2
